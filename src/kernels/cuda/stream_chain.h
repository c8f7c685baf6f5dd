// A stream, and whether its kernels use programmatic dependent launch (PDL).
#pragma once

#include <cuda_runtime_api.h>

namespace switchyard::cuda {

// Functions that take a PdlStream launch kernels with PDL (kernel_chain.cuh) if `early` is set.
// Other work on the same stream is fully ordered, so both kinds may be mixed.
struct PdlStream {
  // NOLINTNEXTLINE(google-explicit-constructor): a plain stream is a chain without PDL.
  PdlStream(cudaStream_t on, bool begins_early = false) : stream(on), early(begins_early) {}

  cudaStream_t stream;
  bool early;
};

}  // namespace switchyard::cuda
