// PTX wrappers of Ampere instructions for attention, one instruction each: warp-level matrix
// products (mma.sync), loads of their operands from shared memory (ldmatrix), asynchronous copies
// (cp.async).
#pragma once

#include <cstdint>

namespace switchyard::cuda::ptx {

// Copies 16 bytes from global to shared memory; zero-fills if `real` is false.
__device__ __forceinline__ void CopyAsync16(uint32_t to, const void* from, bool real) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(real ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
__device__ __forceinline__ void StoreShared16(uint32_t to, uint4 x) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z),
               "r"(x.w)
               : "memory");
}
// Delays the completion of an mbarrier's present phase until all earlier copies of this thread are
// complete. Does not change how many other arrivals the phase expects. Needs sm_80.
__device__ __forceinline__ void BarrierAwaitCopies(const void* barrier) {
  asm volatile("cp.async.mbarrier.arrive.shared.b64 [%0];" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(barrier)))
               : "memory");
}
// Waits until at most the last `kPending` groups of this thread are in flight.
template <int kPending>
__device__ __forceinline__ void WaitCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Loads four 8 × 8 matrices of 16-bit elements; lanes 8i to 8i + 7 give the row addresses of matrix
// i.
__device__ __forceinline__ void LoadMatrices(uint32_t (&to)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}
__device__ __forceinline__ void LoadMatricesTransposed(uint32_t (&to)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}

// d [16, 8] += a [16, 16] · b [16, 8] in bf16.
__device__ __forceinline__ void MmaBf16(float* d, const uint32_t (&a)[4], uint32_t b0,
                                        uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// 2^x, to 2 ulp; 2^−∞ is 0 and 2^0 is 1.
__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace switchyard::cuda::ptx
