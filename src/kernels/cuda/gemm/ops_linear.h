// Portable GEMM kernels (semantics: LinearParams and HeadLinearParams of kernels/ops.h). Internal
// to kernels/cuda.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/device/ops_weight.h"

namespace switchyard::cuda::ops {

constexpr int kMaxHeads = 64;  // heads of one launch

// For every head h: y_h = x_h · W_hᵀ (+ bias), or x_h · W_h if not `transposed`.
struct LinearLaunch {
  const float* x = nullptr;  // head h at x + h · head_stride_x
  int64_t ldx = 0, head_stride_x = 0;
  float* y = nullptr;
  int64_t ldy = 0, head_stride_y = 0;
  const float* bias = nullptr;  // [outputs]; only with one head
  int64_t m = 0;
  bool transposed = true, accumulate = false;
  WeightShape shape;  // shape of every head's weight
  int heads = 1;
  WeightArg weights[kMaxHeads];

  int64_t outputs() const { return transposed ? shape.n : shape.k; }
  int64_t depth() const { return transposed ? shape.k : shape.n; }
};

// Whether x and the weights allow vector loads of `run` elements, 4 or 8.
inline bool CanVectorLoad(const LinearLaunch& p, int64_t run) {
  bool aligned = reinterpret_cast<uintptr_t>(p.x) % 16 == 0 && p.ldx % 4 == 0 &&
                 p.head_stride_x % 4 == 0 && p.depth() % run == 0;
  for (int h = 0; h < p.heads; ++h) aligned = aligned && CanVectorLoad(p.weights[h], p.shape, run);
  return aligned;
}

// Sums of float32 products in one order along K, for any size.
cudaError_t LinearExact(const LinearLaunch& p, cudaStream_t stream);
// Rounds both operands to bfloat16 and sums in float32 with tensor cores (mma.sync), 16 elements at
// a time along K, in one order for any size. For weights of kBF16 and kFp8Block.
cudaError_t LinearBf16(const LinearLaunch& p, cudaStream_t stream);

}  // namespace switchyard::cuda::ops
