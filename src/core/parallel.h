// The thread pool of one rank.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

namespace switchyard {

// Runs loops over a fixed set of threads, the caller being one of them. One pool per rank; only the
// rank's own thread calls Run, one loop at a time. Workers spin for a short while after a loop,
// then sleep.
class ThreadPool {
 public:
  explicit ThreadPool(int num_threads);  // 1: everything runs on the caller
  // Pinned: worker i runs on cpus[i] alone, one for each thread. The caller, which is thread 0, and
  // what it starts from now on are held to all of them: threads that load weights or move experts
  // are not to crowd on one.
  ThreadPool(int num_threads, std::span<const int> cpus);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const;

  // Calls body(i) for every i in [0, n), each exactly once, taken from a shared counter: tasks of
  // unequal length level out. Returns when all are done. `body` must not throw and must not call
  // Run.
  void Run(int64_t n, const std::function<void(int64_t)>& body);

  // Splits [0, n) into contiguous ranges of at least `grain`, a few for each thread, and calls
  // body(begin, end).
  void RunRanges(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace switchyard
