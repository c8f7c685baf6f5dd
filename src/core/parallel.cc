#include "core/parallel.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "core/check.h"
#include "core/cpus.h"
#include "core/log.h"

namespace switchyard {
namespace {

// Number of polls before a waiting thread yields, and number of yields before it sleeps. Together
// about 50 µs on an idle core, which covers the gap between two loops of one step.
constexpr int kSpins = 2000;
constexpr int kYields = 20;

// `awake`: the least time before it returns false.
template <typename Done>
bool SpinUntil(const Done& done, std::chrono::microseconds awake = {}) {
  using std::chrono::steady_clock;
  const auto start = awake.count() > 0 ? steady_clock::now() : steady_clock::time_point();
  for (int i = 0; i < kSpins; ++i) {
    if (done()) return true;
    Pause();
  }
  do {
    for (int i = 0; i < kYields; ++i) {
      if (done()) return true;
      std::this_thread::yield();
    }
  } while (awake.count() > 0 && steady_clock::now() - start < awake);
  return false;
}

}  // namespace

struct ThreadPool::State {
  static constexpr size_t kLine = 64;  // bytes of a cache line

  std::vector<std::thread> workers;
  std::mutex mutex;
  std::condition_variable wake;

  // Each group of members below has a cache line of its own. A loop of a decode step takes some
  // microseconds, and moving a line to another core takes up to 0.2 µs.

  // Odd while a loop accepts workers; a new odd number for each loop. A worker takes part in a loop
  // at most once.
  alignas(kLine) std::atomic<uint64_t> epoch{0};
  std::atomic<int> sleepers{0};  // workers that Wake must wake
  std::atomic<bool> stop{false};
  std::atomic<int64_t> awake_us{0};  // StayAwake

  alignas(kLine) std::atomic<int64_t> next{0};
  int64_t n = 0;
  const std::function<void(int64_t)>* body = nullptr;

  alignas(kLine) std::atomic<int> inside{0};  // workers that may be reading n and body

  void Drain() {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < n;) (*body)(i);
  }

  void Work() {
    uint64_t seen = 0;
    const auto called = [&] {
      const uint64_t now = epoch.load();
      return (now % 2 == 1 && now != seen) || stop.load();
    };
    while (true) {
      const std::chrono::microseconds awake(awake_us.load(std::memory_order_relaxed));
      if (!SpinUntil(called, awake)) Sleep(called);
      if (stop.load()) return;
      const uint64_t now = epoch.load();
      if (now % 2 == 0) continue;  // the loop has ended
      seen = now;
      // Increment `inside` before reading `epoch` again. Either Run closes the loop first and this
      // worker skips it, or Run sees this worker inside and waits. Both sides need sequentially
      // consistent order.
      inside.fetch_add(1);
      if (epoch.load() == now) Drain();
      inside.fetch_sub(1, std::memory_order_release);
    }
  }

  // Increment `sleepers` before `called` reads `epoch`. Either this worker sees the new epoch, or
  // Wake sees the sleeper. This needs sequentially consistent order too.
  template <typename Called>
  void Sleep(const Called& called) {
    sleepers.fetch_add(1);
    std::unique_lock lock(mutex);
    wake.wait(lock, called);
    sleepers.fetch_sub(1);
  }

  void Wake() {
    if (sleepers.load() == 0) return;
    {
      const std::lock_guard lock(mutex);  // a sleeper has either not yet tested `called`, or waits
    }
    wake.notify_all();
  }
};

ThreadPool::ThreadPool(int num_threads) : ThreadPool(num_threads, {}) {}

ThreadPool::ThreadPool(int num_threads, std::span<const int> cpus)
    : state_(std::make_unique<State>()) {
  CHECK_GE(num_threads, 1);
  CHECK(cpus.empty() || std::ssize(cpus) == num_threads);
  if (!cpus.empty() && !SetThreadAffinity(cpus)) {
    LOG_WARNING("cannot pin threads to CPUs {}: sched_setaffinity failed",
                FormatCpuList({cpus.begin(), cpus.end()}));
    cpus = {};
  }
  for (int i = 1; i < num_threads; ++i) {
    state_->workers.emplace_back([s = state_.get(), cpu = cpus.empty() ? -1 : cpus[i]] {
      if (cpu >= 0) SetThreadAffinity({&cpu, 1});
      s->Work();
    });
  }
}

ThreadPool::~ThreadPool() {
  state_->stop.store(true);
  state_->Wake();
  for (std::thread& w : state_->workers) w.join();
}

void ThreadPool::StayAwake(std::chrono::microseconds time) { state_->awake_us.store(time.count()); }

int ThreadPool::num_threads() const { return static_cast<int>(state_->workers.size()) + 1; }

void ThreadPool::Run(int64_t n, const std::function<void(int64_t)>& body) {
  if (n <= 0) return;
  if (n == 1 || state_->workers.empty()) {
    for (int64_t i = 0; i < n; ++i) body(i);
    return;
  }
  state_->n = n;
  state_->body = &body;
  state_->next.store(0, std::memory_order_relaxed);
  state_->epoch.fetch_add(1);
  state_->Wake();
  state_->Drain();
  // All indices are taken. Workers that have not woken up yet are not waited for.
  state_->epoch.fetch_add(1);
  const auto left = [this] { return state_->inside.load() == 0; };
  while (!SpinUntil(left)) {
  }
}

void ThreadPool::RunRanges(int64_t n, int64_t grain,
                           const std::function<void(int64_t, int64_t)>& body) {
  if (n <= 0) return;
  const int64_t most = num_threads() == 1 ? 1 : int64_t{4} * num_threads();
  const int64_t pieces = std::clamp<int64_t>(n / std::max<int64_t>(grain, 1), 1, most);
  const auto piece = [&](int64_t p) { body(n * p / pieces, n * (p + 1) / pieces); };
  Run(pieces, std::cref(piece));  // std::cref: no heap copy
}

}  // namespace switchyard
