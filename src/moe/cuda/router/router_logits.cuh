// Device functions of the router logits: tiles of x · Wᵀ at float32 precision on tensor cores.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "moe/cuda/router/router_logits.h"

namespace switchyard::cuda::ptx {

// PTX instructions of the router GEMM (router_logits.cu), for Ampere and later.

// D += A · B of m16n8k16 bfloat16 fragments.
__device__ __forceinline__ void MultiplyM16N8K16(float (&d)[4], const uint32_t (&a)[4],
                                                 const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Loads that the compiler must keep above the next __syncwarp. Otherwise it would move each load
// down to the use of its result, and no load would be in flight during the mma.
__device__ __forceinline__ float4 LoadAhead(const float* p) {
  float4 x;
  asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "l"(p)
               : "memory");
  return x;
}
__device__ __forceinline__ uint2 LoadAhead(const uint2* p) {
  uint2 x;
  asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "l"(p) : "memory");
  return x;
}

// Prefetches the cache line of `p` into L2.
__device__ __forceinline__ void PrefetchToL2(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

}  // namespace switchyard::cuda::ptx

namespace switchyard::cuda::router {

constexpr int kSlices = 8;  // K is split into slices, one warp each; their sums are added in order
constexpr int kStep = 16;   // K elements of one mma

// Splits x = parts[0] + parts[1] + parts[2], each bfloat16: 24 mantissa bits as three times 8.
__device__ __forceinline__ void Split(float2 x, uint32_t (&parts)[3]) {
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    const __nv_bfloat162 part = __floats2bfloat162_rn(x.x, x.y);
    parts[i] = reinterpret_cast<const uint32_t&>(part);
    x.x -= __low2float(part);
    x.y -= __high2float(part);
  }
}

// Lane t reads elements 4t … 4t + 3 of a step as fragment columns 2t, 2t + 1, 2t + 8, 2t + 9. This
// permutes K in the same way in A and B, so the products are unchanged. A lane can then load its
// four elements with one instruction.
__device__ __forceinline__ float4 FourOf(const float* row, int64_t k) {
  return ptx::LoadAhead(row + k);
}
__device__ __forceinline__ uint2 FourOf(const __nv_bfloat16* row, int64_t k) {
  return ptx::LoadAhead(reinterpret_cast<const uint2*>(row + k));
}

struct Weights {
  uint32_t parts[3][2];
};
__device__ __forceinline__ Weights SplitWeights(uint2 four) {
  Weights w = {};
  w.parts[0][0] = four.x;
  w.parts[0][1] = four.y;
  return w;
}
__device__ __forceinline__ Weights SplitWeights(float4 four) {
  uint32_t low[3], high[3];
  Split({four.x, four.y}, low);
  Split({four.z, four.w}, high);
  Weights w;
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    w.parts[i][0] = low[i];
    w.parts[i][1] = high[i];
  }
  return w;
}

// sums += products of one step.
template <bool kExactWeights, int kRowTiles, int kColumnTiles, typename Four>
__device__ __forceinline__ void MultiplyStep(const float4 (&x)[kRowTiles][2],
                                             const Four (&w)[kColumnTiles],
                                             float (&sums)[kRowTiles][kColumnTiles][4]) {
  uint32_t a[kRowTiles][3][4];
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      uint32_t low[3], high[3];
      Split({x[i][h].x, x[i][h].y}, low);
      Split({x[i][h].z, x[i][h].w}, high);
#pragma unroll
      for (int part = 0; part < 3; ++part) {
        a[i][part][h] = low[part];
        a[i][part][2 + h] = high[part];
      }
    }
  }
#pragma unroll
  for (int j = 0; j < kColumnTiles; ++j) {
    const Weights b = SplitWeights(w[j]);
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
      // Small products are added first. Products of two small parts are below the last bit of
      // float32 and are omitted.
      ptx::MultiplyM16N8K16(sums[i][j], a[i][2], b.parts[0]);
      if (!kExactWeights) {
        ptx::MultiplyM16N8K16(sums[i][j], a[i][0], b.parts[2]);
        ptx::MultiplyM16N8K16(sums[i][j], a[i][1], b.parts[1]);
      }
      ptx::MultiplyM16N8K16(sums[i][j], a[i][1], b.parts[0]);
      if (!kExactWeights) ptx::MultiplyM16N8K16(sums[i][j], a[i][0], b.parts[1]);
      ptx::MultiplyM16N8K16(sums[i][j], a[i][0], b.parts[0]);
    }
  }
}

}  // namespace switchyard::cuda::router
