// A stream, and how kernels are launched on it.
#pragma once

#include <cuda_runtime_api.h>

namespace switchyard::cuda {

// Functions that take a PdlStream launch kernels with PDL (kernel_chain.cuh) if `early` is set.
// Other work on the same stream is fully ordered, so both kinds may be mixed. Persistent GEMMs use
// all multiprocessors (SMs) except `reserved` ones, which are left to kernels of other streams.
struct PdlStream {
  // NOLINTNEXTLINE(google-explicit-constructor): a plain stream is a chain without PDL.
  PdlStream(cudaStream_t on, bool begins_early = false, int reserved_processors = 0)
      : stream(on), early(begins_early), reserved(reserved_processors) {}

  cudaStream_t stream;
  bool early;
  int reserved;
};

}  // namespace switchyard::cuda
