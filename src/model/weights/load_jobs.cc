#include "model/weights/load_jobs.h"

#include <algorithm>
#include <exception>

namespace switchyard {

namespace {
constexpr size_t kJobsPerReport = 64;
}

void LoadJobs::Run(ThreadPool& pool, size_t done_before, size_t total, const Progress& progress) {
  const std::vector<Job> jobs = std::exchange(jobs_, {});
  total_ = 0;
  std::vector<std::exception_ptr> errors(kJobsPerReport);
  size_t done = done_before;
  for (size_t first = 0; first < jobs.size(); first += kJobsPerReport) {
    const size_t count = std::min(kJobsPerReport, jobs.size() - first);
    pool.Run(static_cast<int64_t>(count), [&](int64_t i) {
      try {
        jobs[first + i].work();
      } catch (...) {
        errors[i] = std::current_exception();
      }
    });
    for (const std::exception_ptr& error : errors) {
      if (error) std::rethrow_exception(error);
    }
    for (size_t i = first; i < first + count; ++i) done += jobs[i].bytes;
    if (progress) progress(done, total);
  }
}

}  // namespace switchyard
