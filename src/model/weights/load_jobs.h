// A list of deferred load jobs. Each fills memory that weight views (quant/weight_view.h) already
// point to.
#pragma once

#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "core/parallel.h"

namespace switchyard {

// Filled and run by one thread; the work itself runs on many.
class LoadJobs {
 public:
  using Progress = std::function<void(size_t done, size_t total)>;

  // `bytes`: counted by progress. `work` may throw Error; jobs write to disjoint memory.
  void Add(size_t bytes, std::function<void()> work) {
    jobs_.push_back({bytes, std::move(work)});
    total_ += bytes;
  }
  size_t total() const { return total_; }
  bool empty() const { return jobs_.empty(); }

  // Runs each job once, and clears the list. `done_before` of `total` bytes were counted before.
  // Throws the error of the first failed job.
  void Run(ThreadPool& pool, size_t done_before, size_t total, const Progress& progress);

 private:
  struct Job {
    size_t bytes = 0;
    std::function<void()> work;
  };
  std::vector<Job> jobs_;
  size_t total_ = 0;
};

}  // namespace switchyard
