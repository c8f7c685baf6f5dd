// Device memory of the MoE layers of one pass on a GPU, for memory plans. Builds without CUDA have
// this too. The buffers are those of CudaMoeBackend::MakeState.
#pragma once

#include <cstdint>

#include "comm/mesh.h"
#include "moe/gpu_backends.h"
#include "moe/options.h"

namespace switchyard::cuda {

// Minimum number of rows of a chunk. A chunk is smaller only if the maximum number of rows is
// smaller.
constexpr int64_t kMinChunkRows = 16384;

// Maximum tokens of a rank whose shared expert runs on its own stream. With so few tokens, router,
// selection and row ordering leave most of the GPU idle. Limits of 4096 and 8192 gained nothing
// (measured).
constexpr int64_t kMaxTokensOnSideStream = 2048;

// Sizes and formats of the experts on one rank.
struct GpuExpertSizes {
  int64_t intermediate = 0;         // columns of a routed expert on this rank
  int64_t shared_intermediate = 0;  // the same of the shared expert; 0: there is none
  bool fp8 = false;                 // both products have FP8 rows, in groups of 128
  bool gated = true;                // ExpertArithmetic::gated
};

// Bytes for one pass. `options` and `shape` as for MakeCudaMoe; options.row_dtype is the device's
// precision. Errors as from CheckGpuOptions.
double GpuPassBytes(const MoeOptions& options, const MoeShape& shape, const MeshShape& mesh,
                    const GpuExpertSizes& experts, const GpuMoeBackends& backends);

}  // namespace switchyard::cuda
