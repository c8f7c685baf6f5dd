// Launch functions of the fused row ops (semantics: kernels/fused_ops.h). They enqueue on `chain`
// and return the launch status; cudaErrorInvalidValue for unsupported arguments. Internal to
// kernels/cuda.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/stream_chain.h"
#include "kernels/fused_ops.h"

namespace switchyard::cuda::ops {

cudaError_t AddNorm(const kernels::AddNormParams& p, const PdlStream& chain);
// Up to this number of rows, AddNorm keeps rows in registers: one block per SM. With more rows the
// blocks would not hide the latency of memory.
constexpr int64_t kFewNormRows = 128;

constexpr int64_t kMaxHeadDim = 256;
inline bool NormRopeStoreKvSupports(int64_t head_dim, int64_t rotary_dim) {
  return head_dim > 0 && head_dim % 4 == 0 && head_dim <= kMaxHeadDim && rotary_dim >= 0 &&
         rotary_dim % 2 == 0 && rotary_dim <= head_dim;
}
cudaError_t NormRopeStoreKv(const kernels::NormRopeStoreKvParams& p, const PdlStream& chain);

}  // namespace switchyard::cuda::ops
