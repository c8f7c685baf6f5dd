// Threads that do the front's computing: parsing, templates, tokenizing, and large answers. They
// run at a lower priority than those that move bytes.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace switchyard::http {

// Two lanes, so that a small request never waits behind a large one. Any thread may call.
class WorkerPool {
 public:
  enum class Lane { kQuick, kBulk };
  struct Options {
    int quick_threads = 1;
    int bulk_threads = 1;
    size_t max_queued = 4096;  // jobs of one lane that wait
  };

  // What is at most this large (bytes) goes to the quick lane.
  static constexpr size_t kQuickBytes = 64 << 10;
  static Lane LaneOf(size_t bytes) { return bytes <= kQuickBytes ? Lane::kQuick : Lane::kBulk; }

  explicit WorkerPool(const Options& options);
  ~WorkerPool() { Stop(); }

  // False where the lane is full or the pool has stopped; the job is then dropped. `must` ignores
  // the limit of the queue. A job must not throw.
  bool Post(Lane lane, std::function<void()> job, bool must = false);

  // Jobs that wait are dropped, those that run are waited for. Not from a job.
  void Stop();

 private:
  struct Queue {
    std::deque<std::function<void()>> jobs;
    std::condition_variable news;
  };
  void Run(Queue& queue, int nice);

  const size_t max_queued_;
  std::mutex mutex_;  // guards the queues and stopped_
  bool stopped_ = false;
  Queue quick_, bulk_;
  std::vector<std::thread> threads_;
};

}  // namespace switchyard::http
