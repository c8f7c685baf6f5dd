// A GPU as a Device.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/stream_chain.h"
#include "kernels/device.h"

namespace switchyard::cuda {

// What MakeCudaDevice gives. Code of `cuda` folders gets at the stream by this.
class CudaDevice : public kernels::Device {
 public:
  virtual cudaStream_t stream() const = 0;
  virtual int index() const = 0;
  virtual const kernels::CudaDeviceOptions& options() const = 0;
  // The stream as a chain, early where CudaDeviceOptions has `fused` and the GPU can do that.
  virtual StreamChain chain() const = 0;
  // Called after every wait for the stream: kernels of others that gave up are to throw here.
  virtual void AddCheck(std::function<void()> check) = 0;
  // Waits until an event of the stream has passed, or throws: for a stream with kernels of others
  // that have no deadline of their own. Without it the host waits for as long as it takes.
  virtual void SetWait(std::function<void(cudaEvent_t)> wait) = 0;
  // What was recorded is recorded anew: who owns what recorded passes use calls it before that
  // goes.
  virtual void ForgetGraphs() = 0;

  static CudaDevice& From(kernels::Device& device);  // CHECKs that it is one
};

}  // namespace switchyard::cuda
