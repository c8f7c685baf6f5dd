// The CUDA implementation of kernels::Device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>
#include <vector>

#include "core/cuda/runtime.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/device.h"

namespace switchyard::cuda {

// The type that MakeCudaDevice returns. Code in `cuda` folders uses it to access the stream.
class CudaDevice : public kernels::Device {
 public:
  virtual cudaStream_t stream() const = 0;
  virtual int index() const = 0;
  virtual const kernels::CudaDeviceOptions& options() const = 0;
  // The stream as a chain, with programmatic dependent launch if CudaDeviceOptions has `fused` and
  // the GPU supports it.
  virtual PdlStream chain() const = 0;
  // `check` runs after every stream synchronization; it throws if a kernel of another component
  // timed out.
  virtual void AddCheck(std::function<void()> check) = 0;
  // `wait` blocks until an event of the stream completes, or throws: for streams with kernels that
  // have no timeout of their own, such as NCCL's. Without it the host waits indefinitely.
  virtual void SetWait(std::function<void(cudaEvent_t)> wait) = 0;
  // The argument of the last SetWeightStore, for weights that other components place.
  virtual DeviceStore* weight_store() const = 0;
  // Destroys captured graphs; they are captured again on demand. Call it before freeing resources
  // that captured batches use.
  virtual void ClearGraphs() = 0;

  static CudaDevice& From(kernels::Device& device);  // CHECKs that `device` is a CudaDevice
};

// Times of work on a GPU's stream, by CUDA events. Marks the stream of `device`, or another stream
// of the same GPU, whose work the stream of `device` has joined before Resolve. Keeps its events
// for reuse.
class StreamTimer final : public kernels::DeviceTimer {
 public:
  // Maximum number of marks between two calls of Resolve, two for each operation: a training step
  // of 64 micro-batches and 100 layers. Events are created when they are first needed.
  static constexpr size_t kMaxMarks = size_t{1} << 17;

  explicit StreamTimer(CudaDevice& device) : StreamTimer(device, device.stream()) {}
  StreamTimer(CudaDevice& device, cudaStream_t stream) : device_(device), stream_(stream) {}

  int Mark() noexcept override;
  std::span<const int64_t> Resolve() override;

 private:
  CudaDevice& device_;
  const cudaStream_t stream_;
  std::vector<Event> events_;
  size_t marks_ = 0;  // number of recorded, unresolved events of events_
  Event reference_;
  std::vector<int64_t> times_;  // [marks of the last Resolve] nanoseconds of steady_clock
};

}  // namespace switchyard::cuda
