// Where kernels are enqueued, and how closely they follow one another.
#pragma once

#include <cuda_runtime_api.h>

namespace switchyard::cuda {

// Functions that take one launch kernels that may begin early (kernel_chain.cuh) where it says so.
// Whatever else is enqueued on the stream in between follows in full, so that kinds may be mixed.
struct StreamChain {
  // NOLINTNEXTLINE(google-explicit-constructor): a stream is a chain without early launches.
  StreamChain(cudaStream_t on, bool begins_early = false) : stream(on), early(begins_early) {}

  cudaStream_t stream;
  bool early;
};

}  // namespace switchyard::cuda
