// Products of small float32 matrices on tensor cores, for a warp: each operand is the sum of two
// bfloat16 values, and a product is three products of bfloat16 (high · high, high · low, low ·
// high) with float32 sums. The relative error of a factor is at most 2^-17, and the product of the
// two low parts, which is left out, is at most 2^-16 of the whole.
#pragma once

#include <cuda_bf16.h>
#include <cuda_pipeline_primitives.h>

#include <cstdint>

#include "kernels/cuda/attention/attention_ptx.cuh"

namespace switchyard::cuda::ops {

// Starts the copy of four floats, of which `count` exist. kAligned: all four of them, or none.
template <bool kAligned>
__device__ __forceinline__ void CopyFour(float* to, const float* from, int64_t count) {
  if constexpr (kAligned) {
    if (count > 0) __pipeline_memcpy_async(to, from, 4 * sizeof(float));
  } else {
    for (int i = 0; i < 4 && i < count; ++i)
      __pipeline_memcpy_async(to + i, from + i, sizeof(float));
  }
}

// The place of an element of a matrix in shared memory with rows of 64 or 128 floats. The lanes of
// a warp read pairs of columns (2t, 2t + 1) of rows 0 to 3 and of rows 4 to 7 without conflicts of
// banks, and single columns g of rows 0, 2, 4, 6 and of rows 1, 3, 5, 7.
template <int kWidth>
__device__ __forceinline__ int Swizzled(int row, int column) {
  const int sector = (row & 2) | ((row ^ (row >> 2)) & 1);
  return row * kWidth + (column ^ (sector * 8));
}

// Two adjacent elements of an operand.
struct SplitPair {
  uint32_t high, low;  // two bfloat16 each, the first one in the low bits
};
__device__ __forceinline__ SplitPair Split(float x, float y) {
  const __nv_bfloat162 high = __floats2bfloat162_rn(x, y);
  const uint32_t bits = *reinterpret_cast<const uint32_t*>(&high);
  const __nv_bfloat162 low = __floats2bfloat162_rn(x - __uint_as_float(bits << 16),
                                                   y - __uint_as_float(bits & 0xffff0000u));
  return {bits, *reinterpret_cast<const uint32_t*>(&low)};
}

// A lane's part of the left operand [16, 16] and of the right operand [16, 8] of mma.sync. With g =
// lane / 4 and t = lane % 4, the left one has rows g and g + 8, the right one has column g. Both
// have the elements 2t, 2t + 1, 2t + 8 and 2t + 9 of the dimension of the sum.
struct SplitLeft {
  uint32_t high[4], low[4];

  // Pair 0: row g, elements from 2t on; 1: row g + 8; 2 and 3: the same, elements from 2t + 8 on.
  __device__ __forceinline__ void Set(int pair, SplitPair split) {
    high[pair] = split.high, low[pair] = split.low;
  }
};
struct SplitRight {
  uint32_t high[2], low[2];

  // Pair 0: elements from 2t on; 1: from 2t + 8 on.
  __device__ __forceinline__ void Set(int pair, SplitPair split) {
    high[pair] = split.high, low[pair] = split.low;
  }
};

// The left operand whose elements are the results d [16, 8] of two products: those of a lane are
// in the same lane.
__device__ __forceinline__ SplitLeft LeftOf(const float (&first)[4], const float (&second)[4]) {
  SplitLeft a;
  a.Set(0, Split(first[0], first[1]));
  a.Set(1, Split(first[2], first[3]));
  a.Set(2, Split(second[0], second[1]));
  a.Set(3, Split(second[2], second[3]));
  return a;
}

// d[i] [16, 8] += a[i] · b[i]. Independent products alternate, since each takes longer than its
// place in the pipeline.
template <int kCount>
__device__ __forceinline__ void AddProducts(float* const (&d)[kCount],
                                            const SplitLeft* const (&a)[kCount],
                                            const SplitRight (&b)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) ptx::MmaBf16(d[i], a[i]->high, b[i].high[0], b[i].high[1]);
#pragma unroll
  for (int i = 0; i < kCount; ++i) ptx::MmaBf16(d[i], a[i]->high, b[i].low[0], b[i].low[1]);
#pragma unroll
  for (int i = 0; i < kCount; ++i) ptx::MmaBf16(d[i], a[i]->low, b[i].high[0], b[i].high[1]);
}

}  // namespace switchyard::cuda::ops
