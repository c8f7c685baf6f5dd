// What the kernels of ops_linear_exact.cu share: how K is cut, and where an output goes.
#pragma once

#include "kernels/cuda/ops_linear.h"

namespace switchyard::cuda::ops {

// An output is the sum of chains of fused multiply-adds, one for each kChain elements of K from the
// first to the last, added up in order: tiles of whatever size give the same bits, and few outputs
// with a long K still keep many threads busy.
constexpr int kChain = 512;

// Where an output goes.
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
