// Launch functions of row and elementwise ops (semantics: kernels/ops.h). They enqueue on `stream`
// and return the launch status; empty inputs launch nothing. Internal to kernels/cuda.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/ops_weight.h"
#include "kernels/fused_ops.h"
#include "kernels/ops.h"

namespace switchyard::cuda::ops {

cudaError_t Embed(const kernels::EmbedParams& p, cudaStream_t stream);
// Does not store rows whose slot is negative.
cudaError_t StoreKv(const kernels::StoreKvParams& p, cudaStream_t stream);
cudaError_t CopyRows(const kernels::CopyRowsParams& p, cudaStream_t stream);
// Passes arrays and moves as arguments of the kernel, in several launches if there are many.
cudaError_t MoveRows(const kernels::MoveRowsParams& p, cudaStream_t stream);
cudaError_t AddInPlace(float* y, const float* x, int64_t count, cudaStream_t stream);
cudaError_t Clamp(float* x, int64_t count, float limit, cudaStream_t stream);
cudaError_t MultiplyBySigmoid(float* x, const float* gate, int64_t count, cudaStream_t stream);
cudaError_t MultiplyRowsBySigmoid(float* x, const float* gate, int64_t rows, int64_t n,
                                  cudaStream_t stream);
cudaError_t GatherTokens(int32_t* ids, const int32_t* rows, const int32_t* tokens, int64_t count,
                         cudaStream_t stream);
cudaError_t TokensToFloats(float* y, int64_t ldy, const int32_t* tokens, int64_t count,
                           cudaStream_t stream);
cudaError_t ClearEntries(int32_t* values, const int32_t* index, int64_t count, cudaStream_t stream);
cudaError_t Rope(const kernels::RopeParams& p, cudaStream_t stream);

// Norms sum in double, in an order that depends only on n.
cudaError_t RmsNorm(const kernels::RmsNormParams& p, cudaStream_t stream);
cudaError_t LayerNorm(const kernels::LayerNormParams& p, cudaStream_t stream);
cudaError_t SumSquares(const kernels::SumSquaresParams& p, cudaStream_t stream);
cudaError_t ScaleBySquares(const kernels::ScaleBySquaresParams& p, cudaStream_t stream);

// Launch functions of the fused row ops (semantics: kernels/fused_ops.h). They enqueue on `chain`
// and return the launch status; cudaErrorInvalidValue for unsupported arguments. Internal to
// kernels/cuda.

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
