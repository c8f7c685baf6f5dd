// A 16-byte quad sent to a peer as two cells of data and tags. Internal to comm/device/cuda.
#pragma once

#include <cstdint>

namespace switchyard::cuda {

// A cell is {data, tag, data, tag}: 8-byte stores are not torn.
__device__ __forceinline__ void SendTagged(uint4* cells, uint4 quad, uint32_t tag) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(cells), "r"(quad.x),
               "r"(tag), "r"(quad.y)
               : "memory");
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(cells + 1), "r"(quad.z),
               "r"(tag), "r"(quad.w)
               : "memory");
}

__device__ __forceinline__ uint4 LoadCell(const uint4* cell) {
  uint4 v;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(cell)
               : "memory");
  return v;
}

// Returns false if part of the quad has not arrived; `seen` is then a tag found in the cell.
__device__ __forceinline__ bool LoadTagged(const uint4* cells, uint32_t tag, uint4& quad,
                                           uint32_t& seen) {
  const uint4 a = LoadCell(cells), b = LoadCell(cells + 1);
  quad = {a.x, a.z, b.x, b.z};
  seen = a.y;
  return a.y == tag && a.w == tag && b.y == tag && b.w == tag;
}

}  // namespace switchyard::cuda
