// The thread pool of one rank, and the pause of a polling loop.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

namespace switchyard {

// Lets the other hardware thread of the core run for a moment. For loops that poll.
inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Parallel loops over a fixed set of threads, which includes the caller. One pool per rank; only
// the rank's own thread calls Run, one loop at a time. Workers spin briefly after a loop, then
// sleep.
class ThreadPool {
 public:
  explicit ThreadPool(int num_threads);  // 1: everything runs on the caller
  // Pins worker i to cpus[i]; one CPU per thread. The caller (thread 0) gets the affinity mask of
  // all of `cpus`, and so do threads that it starts later. So threads that load weights or move
  // experts do not crowd onto one CPU.
  ThreadPool(int num_threads, std::span<const int> cpus);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const;

  // Workers poll for the next loop for this time before they sleep, and yield their CPUs meanwhile.
  // For a rank that gets its work at short intervals: to wake the workers of a host takes up to 0.1
  // ms. Without a call it is about 50 µs. Called by the rank's own thread, between two loops.
  void StayAwake(std::chrono::microseconds time);

  // Calls body(i) exactly once for every i in [0, n). Indices come from a shared counter, which
  // balances tasks of unequal length. Returns when all are done. `body` must not throw and must not
  // call Run.
  void Run(int64_t n, const std::function<void(int64_t)>& body);

  // Splits [0, n) into contiguous ranges of at least `grain`, a few per thread, and calls
  // body(begin, end).
  void RunRanges(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace switchyard
