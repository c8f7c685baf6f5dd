#include "comm/device/progress_clock.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "comm/device/arena_layout.h"
#include "core/check.h"
#include "core/error.h"

namespace switchyard {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr size_t kLine = 64;
constexpr milliseconds kActionPoll{1};
// The time between two looks at the count of the awaited rank. A flag that is raised ends the wait
// at once.
constexpr milliseconds kLookPoll{50};
constexpr milliseconds kLongestInterval{500};

bool Later(uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b) > 0; }

}  // namespace

ProgressClock::ProgressClock(SymmetricMemory& memory, Options options)
    : memory_(memory),
      options_(std::move(options)),
      interval_(std::min(kLongestInterval, memory.timeout() / 8)),
      counts_(memory.Allocate(kLine * static_cast<size_t>(memory.world()))) {
  CHECK(options_.describe != nullptr);
}

size_t ProgressClock::BytesPerRank() { return kLine * kMaxRanksPerArena; }

uint32_t ProgressClock::CountOf(int rank) const {
  std::byte* const at = memory_.Local(counts_ + kLine * static_cast<size_t>(rank));
  return std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(at)).load();
}

void ProgressClock::Raise(uint32_t count) {
  count_ = count;
  raised_ = steady_clock::now();
  const size_t mine = counts_ + kLine * static_cast<size_t>(memory_.rank());
  for (const int peer : options_.peers) memory_.Raise(peer, mine, count);
}

void ProgressClock::Advance() {
  if (steady_clock::now() - raised_ < interval_) return;
  uint32_t latest = count_;
  for (const int peer : options_.peers)
    if (const uint32_t count = CountOf(peer); Later(count, latest)) latest = count;
  Raise(latest + 1);
}

void ProgressClock::Wait(size_t flag, uint32_t value, int peer, const char* stage,
                         const std::function<void()>& action) {
  const milliseconds timeout = memory_.timeout();
  const milliseconds poll =
      action ? kActionPoll : std::clamp(timeout / 4, milliseconds(1), kLookPoll);
  auto since = steady_clock::now();
  uint32_t seen = CountOf(peer);
  while (!memory_.WaitFor(flag, value, poll)) {
    if (action) {
      const auto begin = steady_clock::now();
      action();
      since += steady_clock::now() - begin;  // it waits for other ranks, with limits of its own
    }
    const auto now = steady_clock::now();
    if (const uint32_t count = CountOf(peer); count != seen) {
      seen = count;
      since = now;
      if (!Later(count, count_)) continue;
      Raise(count);
      const size_t mine = counts_ + kLine * static_cast<size_t>(memory_.rank());
      for (const int follower : options_.followers) memory_.Raise(follower, mine, count);
    } else if (now - since >= timeout) {
      throw Error(
          ErrorKind::kTimeout,
          fmt::format("{} waited {:g} s for {} in {}, and the awaited rank made no progress",
                      options_.describe(memory_.rank()),
                      std::chrono::duration<double>(timeout).count(), options_.describe(peer),
                      stage));
    }
  }
}

}  // namespace switchyard
