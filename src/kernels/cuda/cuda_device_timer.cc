#include "kernels/cuda/cuda_device_timer.h"

#include <cmath>
#include <exception>
#include <limits>

#include "core/duration.h"

namespace switchyard::cuda {
namespace {

constexpr int kReadings = 100;
constexpr int64_t kGoodWindow = 50'000;  // nanoseconds

}  // namespace

int StreamTimer::Mark() noexcept {
  if (marks_ == kMaxMarks) return -1;
  try {
    if (marks_ == events_.size()) events_.emplace_back();
  } catch (const std::exception&) {
    return -1;  // no memory for an event
  }
  if (cudaEventRecord(events_[marks_].get(), device_.stream()) != cudaSuccess) return -1;
  return static_cast<int>(marks_++);
}

std::span<const int64_t> StreamTimer::Resolve() {
  times_.clear();
  if (marks_ == 0) return times_;
  device_.Synchronize();
  // The stream is idle, so the reference event completes immediately: between two readings of the
  // host's clock. If other processes use the GPU, it may complete later, so the readings are
  // repeated.
  int64_t reference = 0, window = std::numeric_limits<int64_t>::max();
  for (int i = 0; i < kReadings && window > kGoodWindow; ++i) {
    const int64_t before = SteadyNanoseconds();
    reference_.Record(device_.stream());
    reference_.Wait();
    window = SteadyNanoseconds() - before;
    reference = before + window / 2;
  }
  for (size_t i = 0; i < marks_; ++i) {
    const double milliseconds = reference_.MillisecondsSince(events_[i]);
    times_.push_back(reference - std::llround(milliseconds * 1e6));
  }
  marks_ = 0;
  return times_;
}

}  // namespace switchyard::cuda
