// Threads for the CPU work of the front: parsing, templates, tokenization, and large responses.
// They run at a lower priority than the I/O threads.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace switchyard::http {

// A pool with two lanes (quick and bulk), each with its own queue and threads, so that a small
// request never waits for a large one. Thread-safe.
class WorkerPool {
 public:
  enum class Lane { kQuick, kBulk };
  struct Options {
    int quick_threads = 1;
    int bulk_threads = 1;
    size_t max_queued = 4096;  // maximum queued jobs per lane
  };

  // Maximum size in bytes of work for the quick lane.
  static constexpr size_t kQuickBytes = 64 << 10;
  static Lane LaneOf(size_t bytes) { return bytes <= kQuickBytes ? Lane::kQuick : Lane::kBulk; }

  explicit WorkerPool(const Options& options);
  ~WorkerPool() { Stop(); }

  // Queues `job`. Returns false and drops the job if the lane is full or the pool has stopped. If
  // `must` is true, the limit of the queue does not apply. A job must not throw.
  bool Post(Lane lane, std::function<void()> job, bool must = false);

  // Drops queued jobs and waits for running ones. Must not be called from a job.
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
