// Copies between pageable host memory and the device, staged through page-locked memory.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <functional>
#include <utility>

#include "core/cuda/runtime.h"

namespace switchyard::cuda {

// Owned by a device, for its stream; used by the device's thread. A ring of page-locked segments:
// DMA reads one segment while the host fills the next.
class Staging {
 public:
  explicit Staging(cudaStream_t stream);

  // Copies host memory to the device. The caller may change `from` when this returns.
  void CopyIn(void* to, const void* from, size_t bytes);
  // Copies device memory to the host. `to` is complete when this returns.
  void CopyOut(void* to, const void* from, size_t bytes);

  // Returns at most kSegmentBytes of page-locked memory, aligned to 16. Copies that read it must be
  // enqueued before the next call on this object.
  void* Reserve(size_t bytes);
  static constexpr size_t kSegmentBytes = size_t{4} << 20;

  void SetWait(std::function<void(cudaEvent_t)> wait) {
    wait_ = std::move(wait);
  }  // see CudaDevice::SetWait

 private:
  static constexpr int kSegments = 4;
  std::byte* segment(int i) const { return memory_.as<std::byte>() + i * kSegmentBytes; }
  void NextSegment();
  void WaitFor(const Event& event) const;

  cudaStream_t stream_;
  PinnedMemory memory_{kSegments * kSegmentBytes};
  std::array<Event, kSegments> read_;  // completion of the copies of each segment
  int segment_ = 0;
  size_t used_ = 0;                        // bytes used in it
  std::function<void(cudaEvent_t)> wait_;  // may be empty
};

}  // namespace switchyard::cuda
