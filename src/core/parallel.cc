#include "core/parallel.h"

#include <algorithm>
#include <atomic>
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

template <typename Done>
bool SpinUntil(const Done& done) {
  for (int i = 0; i < kSpins; ++i) {
    if (done()) return true;
    __builtin_ia32_pause();
  }
  for (int i = 0; i < kYields; ++i) {
    if (done()) return true;
    std::this_thread::yield();
  }
  return false;
}

}  // namespace

struct ThreadPool::State {
  std::vector<std::thread> workers;
  std::mutex mutex;
  std::condition_variable wake;
  std::atomic<uint64_t> epoch{0};  // number of the loop; a worker takes part in a loop at most once
  std::atomic<bool> open{false};   // a loop is running and accepts workers
  std::atomic<int> inside{0};      // workers that may be reading n and body
  std::atomic<int64_t> next{0};
  std::atomic<bool> stop{false};
  int64_t n = 0;
  const std::function<void(int64_t)>* body = nullptr;

  void Drain() {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < n;) (*body)(i);
  }

  void Work() {
    uint64_t seen = 0;
    const auto changed = [&] { return epoch.load(std::memory_order_acquire) != seen; };
    while (true) {
      if (!SpinUntil(changed)) {
        std::unique_lock lock(mutex);
        wake.wait(lock, changed);
      }
      seen = epoch.load(std::memory_order_acquire);
      if (stop.load(std::memory_order_relaxed)) return;
      // Increment `inside` before reading `open`. Either Run closes the loop first and this worker
      // skips it, or Run sees this worker inside and waits. Both sides need sequentially consistent
      // order.
      inside.fetch_add(1);
      if (open.load()) Drain();
      inside.fetch_sub(1, std::memory_order_release);
    }
  }

  void Raise() {
    {
      std::lock_guard lock(mutex);
      epoch.fetch_add(1, std::memory_order_release);
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
  state_->Raise();
  for (std::thread& w : state_->workers) w.join();
}

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
  state_->open.store(true);
  state_->Raise();
  state_->Drain();
  // All indices are taken. Workers that have not woken up yet are not waited for.
  state_->open.store(false);
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
