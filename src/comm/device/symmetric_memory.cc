#include "comm/device/symmetric_memory.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>

#include "comm/device/arena_layout.h"
#include "comm/device/futex.h"
#include "core/check.h"
#include "core/error.h"

namespace switchyard {
namespace {

using std::chrono::steady_clock;

// A wait goes through three stages: it spins (answers of a peer that runs beside us), yields its
// core (a peer that needs it), and sleeps (a peer that computes, or has nothing to say).
constexpr int kSpins = 64;  // pauses, about 3 µs
constexpr auto kYieldTime = std::chrono::microseconds(200);
// The longest sleep without looking for an abort, whose wake-up can come just before the sleep.
constexpr std::chrono::nanoseconds kNap = std::chrono::milliseconds(100);

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

bool AtOrPast(uint32_t flag, uint32_t value) { return static_cast<int32_t>(flag - value) >= 0; }

}  // namespace

struct SymmetricMemory::Impl {
  std::shared_ptr<SharedArena> arena;
  SharedArena::Impl& shared;
  int rank;
  Options options;
  int spins;  // none where ranks outnumber cores: the peer may need this one
  size_t used = 0;

  // Sleeps until the flag is there, the arena is aborted (both: true) or `until` has passed.
  //
  // No wake-up is lost: the rank says where it sleeps and then reads the flag; a raiser writes the
  // flag and then reads where the rank sleeps. All four are sequentially consistent, so at least
  // one of them sees the other, and a flag raised in between makes the futex return at once.
  bool SleepUntil(size_t offset, uint32_t value, Deadline until) {
    uint32_t* word = shared.Flag(rank, offset);
    const std::atomic_ref<uint32_t> flag(*word);
    std::atomic<uint64_t>& sleeping_on = shared.header().ranks[rank].sleeping_on;
    bool done = false;
    sleeping_on.store(offset + 1);
    for (;;) {
      const uint32_t seen = flag.load();
      done = AtOrPast(seen, value) || shared.aborted();
      const auto left = until - steady_clock::now();
      if (done || left.count() <= 0) break;
      FutexWait(word, seen, std::min<std::chrono::nanoseconds>(left, kNap));
    }
    sleeping_on.store(0, std::memory_order_relaxed);
    return done;
  }
};

SymmetricMemory::SymmetricMemory(std::shared_ptr<SharedArena> arena, int rank, Options options) {
  CHECK(rank >= 0 && rank < arena->world());
  SharedArena::Impl& shared = *arena->impl_;
  const int spins = arena->world() <= sysconf(_SC_NPROCESSORS_ONLN) ? kSpins : 0;
  impl_.reset(new Impl{std::move(arena), shared, rank, options, spins});
  // Twice would hand out memory that is in use, with flags raised already.
  CHECK_EQ(shared.header().ranks[rank].joined.exchange(1), 0u);
}

SymmetricMemory::~SymmetricMemory() = default;

int SymmetricMemory::rank() const { return impl_->rank; }
int SymmetricMemory::world() const { return impl_->shared.world; }
size_t SymmetricMemory::bytes_used() const { return impl_->used; }

size_t SymmetricMemory::Allocate(size_t bytes, size_t alignment) {
  CHECK(std::has_single_bit(alignment));
  const size_t capacity = impl_->shared.bytes_per_rank;
  const size_t offset = (impl_->used + alignment - 1) & ~(alignment - 1);
  if (offset > capacity || bytes > capacity - offset) {
    throw Resource("a rank's shared memory of {} bytes is full: {} are taken, {} more are needed",
                   capacity, impl_->used, bytes);
  }
  impl_->used = offset + bytes;
  return offset;
}

std::byte* SymmetricMemory::At(int rank, size_t offset) { return impl_->shared.At(rank, offset); }

void SymmetricMemory::Raise(int rank, size_t flag_offset, uint32_t value) {
  uint32_t* word = impl_->shared.Flag(rank, flag_offset);
  std::atomic_ref<uint32_t>(*word).store(value);
  if (impl_->shared.header().ranks[rank].sleeping_on.load() == flag_offset + 1) FutexWakeAll(word);
}

bool SymmetricMemory::Reached(size_t flag_offset, uint32_t value) {
  const std::atomic_ref<uint32_t> flag(*impl_->shared.Flag(rank(), flag_offset));
  return AtOrPast(flag.load(std::memory_order_acquire), value);
}

void SymmetricMemory::Wait(size_t flag_offset, uint32_t value, int peer, const char* stage,
                           bool idle) {
  Impl& my = *impl_;
  if (my.shared.aborted()) my.shared.ThrowAborted();
  if (Reached(flag_offset, value)) return;
  for (int i = 0; i < my.spins; ++i) {
    Pause();
    if (Reached(flag_offset, value)) return;
  }
  const auto start = steady_clock::now();
  while (steady_clock::now() - start < kYieldTime) {
    sched_yield();
    if (Reached(flag_offset, value)) return;
  }
  const Deadline until = idle ? Deadline::max() : start + my.options.timeout;
  const bool done = my.SleepUntil(flag_offset, value, until);
  if (my.shared.aborted()) my.shared.ThrowAborted();
  if (!done) {
    throw Error(
        ErrorKind::kTimeout,
        fmt::format("rank {} waited {:g} s for rank {} in {} (round {})", my.rank,
                    std::chrono::duration<double>(my.options.timeout).count(), peer, stage, value));
  }
}

void SymmetricMemory::Abort(std::string_view reason) { impl_->shared.Abort(reason); }

}  // namespace switchyard
