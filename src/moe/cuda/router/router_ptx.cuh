// PTX instructions of the router GEMM (router_logits.cu), for Ampere and later.
#pragma once

#include <cstdint>

namespace switchyard::cuda::ptx {

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
