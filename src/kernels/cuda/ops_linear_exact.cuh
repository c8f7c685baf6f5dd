// Reduction order and output store shared by the kernels of ops_linear_exact.cu.
#pragma once

#include "kernels/cuda/ops_linear.h"

namespace switchyard::cuda::ops {

// An output is the sum of chains of fused multiply-adds. Each chain covers kChain elements of K in
// order, and the chains are added in order. All tile sizes therefore give the same bits, and few
// outputs with a long K still use many threads.
constexpr int kChain = 512;

// Destination of the outputs.
struct Output {
  float* y;
  const float* bias;
  int64_t ldy, m, n;
  bool accumulate;

  __device__ __forceinline__ void Put(int64_t row, int64_t column, float value) const {
    if (row >= m || column >= n) return;
    if (bias != nullptr) value += bias[column];
    float& to = y[row * ldy + column];
    to = accumulate ? to + value : value;
  }
};

__device__ __forceinline__ Output OutputOf(const LinearLaunch& p, int head) {
  return {.y = p.y + head * p.head_stride_y,
          .bias = p.bias,
          .ldy = p.ldy,
          .m = p.m,
          .n = p.transposed ? p.shape.n : p.shape.k,
          .accumulate = p.accumulate};
}

}  // namespace switchyard::cuda::ops
