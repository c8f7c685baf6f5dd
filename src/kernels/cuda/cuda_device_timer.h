// Times of work on a GPU's stream, by CUDA events.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/cuda/runtime.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/device_timer.h"

namespace switchyard::cuda {

// Marks the stream of `device`. Keeps its events for reuse.
class StreamTimer final : public kernels::DeviceTimer {
 public:
  // Maximum number of marks between two calls of Resolve: two for each operation of a step of 1000
  // layers.
  static constexpr size_t kMaxMarks = size_t{1} << 14;

  explicit StreamTimer(CudaDevice& device) : device_(device) {}

  int Mark() noexcept override;
  std::span<const int64_t> Resolve() override;

 private:
  CudaDevice& device_;
  std::vector<Event> events_;
  size_t marks_ = 0;  // number of recorded, unresolved events of events_
  Event reference_;
  std::vector<int64_t> times_;  // [marks of the last Resolve] nanoseconds of steady_clock
};

}  // namespace switchyard::cuda
