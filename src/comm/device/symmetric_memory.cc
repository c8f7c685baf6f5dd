#include "comm/device/symmetric_memory.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

#include "comm/device/arena_layout.h"
#include "comm/device/futex.h"
#include "comm/device/test_faults.h"
#include "core/check.h"
#include "core/error.h"
#include "core/parallel.h"

namespace switchyard {
namespace {

using std::chrono::steady_clock;

// A wait has three stages. First it spins, because the peer may be about to raise the flag. Then it
// yields its core, because the peer may need it. Then it sleeps, because the peer computes or is
// idle.
constexpr int kSpins = 64;  // pauses, about 3 µs
constexpr auto kYieldTime = std::chrono::microseconds(200);
// Longest sleep between two checks for an abort. An abort just before the sleep does not wake the
// rank.
constexpr std::chrono::nanoseconds kMaxSleep = std::chrono::milliseconds(100);
constexpr auto kNoTimeout = std::chrono::milliseconds::max();
// The stages of Poll: the time in which it keeps its core, the time in which it only yields it, and
// the sleep between two polls after that. A pass of a GPU is usually shorter than kPollTime.
constexpr auto kPollSpinTime = std::chrono::microseconds(50);
constexpr auto kPollTime = std::chrono::milliseconds(20);
constexpr auto kPollSleep = std::chrono::microseconds(50);

bool AtOrPast(uint32_t flag, uint32_t value) { return static_cast<int32_t>(flag - value) >= 0; }

// This process's images of the arenas of remote ranks: the bytes that it wrote there and fetched
// from there. Pages are committed on first touch.
class Images {
 public:
  explicit Images(size_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    void* start = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) {
      throw Resource("cannot map {} bytes for the ranks of other hosts: {}", bytes,
                     std::strerror(errno));
    }
    start_ = static_cast<std::byte*>(start);
  }
  Images(const Images&) = delete;
  Images& operator=(const Images&) = delete;
  ~Images() {
    if (start_ != nullptr) munmap(start_, bytes_);
  }
  std::byte* start() const { return start_; }

 private:
  std::byte* start_ = nullptr;
  size_t bytes_;
};

// A peer rank as seen by this rank.
struct Peer {
  std::byte* base = nullptr;  // start of its arena, or of this process's image of it
  bool remote = false;
  std::vector<ByteRange> written;  // ranges of the image written since the last Raise
};

size_t CountRemote(const RemoteRanks* remote, std::span<const int> members) {
  if (remote == nullptr) return 0;
  return static_cast<size_t>(
      std::ranges::count_if(members, [&](int rank) { return remote->IsRemote(rank); }));
}

}  // namespace

struct SymmetricMemory::Impl {
  Impl(std::shared_ptr<SharedArena> arena_in, SharedArena::Impl& shared_in, int rank_in,
       Options options_in)
      : arena(std::move(arena_in)),
        shared(shared_in),
        rank(rank_in),
        members(arena->ActiveRanks()),
        index(static_cast<int>(std::ranges::lower_bound(members, rank) - members.begin())),
        options(options_in),
        spins(std::ssize(members) <= sysconf(_SC_NPROCESSORS_ONLN) ? kSpins : 0),
        faults(TestFaults::FromEnvironment(rank_in)),
        images(CountRemote(shared.remote.get(), members) * shared.bytes_per_rank),
        peers(members.size()) {
    CHECK(arena->Active(rank));
    std::byte* image = images.start();
    for (size_t i = 0; i < members.size(); ++i) {
      Peer& peer = peers[i];
      peer.remote = shared.remote != nullptr && shared.remote->IsRemote(members[i]);
      peer.base = peer.remote ? std::exchange(image, image + shared.bytes_per_rank)
                              : shared.At(members[i], 0);
    }
  }

  std::shared_ptr<SharedArena> arena;
  SharedArena::Impl& shared;
  const int rank;                  // in the arena
  const std::vector<int> members;  // the active ranks; peers have the same order
  const int index;                 // of this rank in `members`
  Options options;
  int spins;  // 0 if ranks outnumber cores: the peer may need this core
  const std::unique_ptr<TestFaults> faults;  // null outside of tests
  Images images;
  std::vector<Peer> peers;
  size_t used = 0;

  void Beat() const {
    const uint64_t beats = shared.Beat(rank);
    if (beats != 0 && shared.remote != nullptr) shared.remote->SendBeats(beats);
  }

  [[noreturn]] void ThrowTimeout(int peer, const char* stage, uint32_t value) const {
    throw Error(ErrorKind::kTimeout,
                fmt::format("rank {} waited {:g} s for rank {} in {} (round {})", rank,
                            std::chrono::duration<double>(options.timeout).count(),
                            members.at(peer), stage, value));
  }

  Peer& PeerOf(int r) {
    CHECK_GE(r, 0);
    CHECK_LT(r, std::ssize(members));
    return peers[r];
  }

  // Sleeps until the flag is raised or the arena is aborted (returns true), or until `until` has
  // passed (returns false).
  //
  // No wake-up is lost. The sleeper stores where it sleeps and then loads the flag. The raiser
  // stores the flag and then loads where the rank sleeps. These four accesses are sequentially
  // consistent, so at least one load returns what the other thread stored. If the flag is raised in
  // between, the futex call returns immediately.
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
      Beat();
      FutexWait(word, seen, std::min<std::chrono::nanoseconds>(left, kMaxSleep));
    }
    sleeping_on.store(0, std::memory_order_relaxed);
    return done;
  }
};

SymmetricMemory::SymmetricMemory(std::shared_ptr<SharedArena> arena, int rank, Options options) {
  CHECK(rank >= 0 && rank < arena->world());
  SharedArena::Impl& shared = *arena->impl_;
  impl_ = std::make_unique<Impl>(std::move(arena), shared, rank, options);
  // A second attach would allocate memory that is in use, with flags already raised.
  CHECK_EQ(shared.header().ranks[rank].joined.exchange(1), 0u);
}

SymmetricMemory::~SymmetricMemory() = default;

int SymmetricMemory::rank() const { return impl_->index; }
int SymmetricMemory::world() const { return static_cast<int>(impl_->members.size()); }
std::chrono::milliseconds SymmetricMemory::timeout() const { return impl_->options.timeout; }
size_t SymmetricMemory::bytes_used() const { return impl_->used; }

size_t SymmetricMemory::Allocate(size_t bytes, size_t alignment) {
  CHECK(std::has_single_bit(alignment));
  const size_t capacity = impl_->shared.bytes_per_rank;
  const size_t offset = (impl_->used + alignment - 1) & ~(alignment - 1);
  if (offset > capacity || bytes > capacity - offset) {
    throw Resource("a rank's shared memory of {} bytes is full: {} are used, {} more are needed",
                   capacity, impl_->used, bytes);
  }
  impl_->used = offset + bytes;
  return offset;
}

std::byte* SymmetricMemory::At(int rank, size_t offset) {
  CHECK_LE(offset, impl_->shared.bytes_per_rank);
  return impl_->PeerOf(rank).base + offset;
}

bool SymmetricMemory::Mapped(int rank) const { return !impl_->PeerOf(rank).remote; }

void SymmetricMemory::Wrote(int rank, size_t offset, size_t bytes) {
  Peer& peer = impl_->PeerOf(rank);
  if (!peer.remote || bytes == 0) return;
  const size_t capacity = impl_->shared.bytes_per_rank;
  CHECK(offset <= capacity && bytes <= capacity - offset);
  if (!peer.written.empty() && peer.written.back().offset + peer.written.back().bytes == offset) {
    peer.written.back().bytes += bytes;
  } else {
    peer.written.push_back({offset, bytes});
  }
}

void SymmetricMemory::Fetch(int rank, size_t offset, size_t bytes, const char* stage) {
  Peer& peer = impl_->PeerOf(rank);
  if (!peer.remote || bytes == 0) return;
  const size_t capacity = impl_->shared.bytes_per_rank;
  CHECK(offset <= capacity && bytes <= capacity - offset);
  impl_->shared.remote->Fetch(impl_->members[rank], peer.base, {offset, bytes}, stage,
                              impl_->options.timeout);
}

void SymmetricMemory::TestFault(std::string_view point) const {
  if (impl_->faults) impl_->faults->At(point);
}

void SymmetricMemory::Raise(int rank, size_t flag_offset, uint32_t value) {
  TestFault("post");
  Peer& peer = impl_->PeerOf(rank);
  if (!peer.remote) {
    impl_->shared.Raise(impl_->members[rank], flag_offset, value);
    return;
  }
  CHECK(flag_offset % alignof(uint32_t) == 0 &&
        flag_offset + sizeof value <= impl_->shared.bytes_per_rank);
  impl_->shared.remote->Put(impl_->members[rank], peer.base, peer.written, flag_offset, value,
                            impl_->options.timeout);
  peer.written.clear();
}

bool SymmetricMemory::Reached(size_t flag_offset, uint32_t value) {
  const std::atomic_ref<uint32_t> flag(*impl_->shared.Flag(impl_->rank, flag_offset));
  return AtOrPast(flag.load(std::memory_order_acquire), value);
}

bool SymmetricMemory::WaitFor(size_t flag_offset, uint32_t value,
                              std::chrono::milliseconds timeout) {
  Impl& my = *impl_;
  if (my.shared.aborted()) my.shared.ThrowAborted();
  my.Beat();
  if (Reached(flag_offset, value)) return true;
  for (int i = 0; i < my.spins; ++i) {
    Pause();
    if (Reached(flag_offset, value)) return true;
  }
  const auto start = steady_clock::now();
  while (steady_clock::now() - start < kYieldTime) {
    sched_yield();
    if (Reached(flag_offset, value)) return true;
  }
  const Deadline until = timeout == kNoTimeout ? Deadline::max() : start + timeout;
  const bool done = my.SleepUntil(flag_offset, value, until);
  if (my.shared.aborted()) my.shared.ThrowAborted();
  return done;
}

void SymmetricMemory::Wait(size_t flag_offset, uint32_t value, int peer, const char* stage,
                           bool idle) {
  const auto timeout = impl_->options.timeout;
  if (WaitFor(flag_offset, value, idle ? kNoTimeout : timeout)) return;
  impl_->ThrowTimeout(peer, stage, value);
}

void SymmetricMemory::Poll(size_t flag_offset, uint32_t value, int peer, const char* stage) {
  Impl& my = *impl_;
  const auto start = steady_clock::now();
  while (true) {
    if (my.shared.aborted()) my.shared.ThrowAborted();
    my.Beat();
    if (Reached(flag_offset, value)) return;
    for (int i = 0; i < my.spins; ++i) {
      Pause();
      if (Reached(flag_offset, value)) return;
    }
    const auto waited = steady_clock::now() - start;
    if (waited >= my.options.timeout) my.ThrowTimeout(peer, stage, value);
    if (waited < kPollSpinTime) continue;
    if (waited < kPollTime) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(kPollSleep);
    }
  }
}

uint32_t SymmetricMemory::epoch() const { return impl_->arena->epoch(); }

bool SymmetricMemory::aborted() const { return impl_->shared.aborted(); }

void SymmetricMemory::CheckAborted() const {
  if (impl_->shared.aborted()) impl_->shared.ThrowAborted();
}

const uint32_t* SymmetricMemory::abort_word() const {
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t) && ArenaHeader::kRunning == 0);
  return reinterpret_cast<const uint32_t*>(&impl_->shared.header().abort_state);
}

void SymmetricMemory::StartHeartbeat() {
  impl_->shared.header().ranks[impl_->rank].beats.store(1, std::memory_order_relaxed);
}

void SymmetricMemory::Beat() { impl_->Beat(); }

void SymmetricMemory::StopHeartbeat() {
  impl_->shared.header().ranks[impl_->rank].beats.store(0, std::memory_order_relaxed);
  if (impl_->shared.remote != nullptr) impl_->shared.remote->SendBeats(0);
}

void SymmetricMemory::SetHeartbeatTimeout(std::chrono::milliseconds time) {
  const auto limited = std::clamp<int64_t>(time.count(), 0, std::numeric_limits<uint32_t>::max());
  impl_->shared.header().ranks[impl_->rank].heartbeat_timeout_ms.store(
      static_cast<uint32_t>(limited), std::memory_order_relaxed);
}

void SymmetricMemory::RecordRequests(std::span<const uint64_t> ids) {
  RequestRecord& record = impl_->shared.requests(impl_->rank);
  record.count.store(RequestRecord::kUnknown);
  if (ids.size() > record.ids.size()) return;
  std::ranges::copy(ids, record.ids.begin());
  record.count.store(ids.size());
}

void SymmetricMemory::Abort(std::string_view reason) { impl_->arena->Abort(reason); }

}  // namespace switchyard
