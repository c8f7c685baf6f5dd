// PTX wrappers of Hopper instructions, one instruction each: barriers in shared memory (mbarrier),
// TMA copies, warpgroup matrix multiplication (wgmma). Names follow the PTX ISA.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace switchyard::cuda::ptx {

__device__ __forceinline__ uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// A 32-bit shared memory address, as instructions take it; converts implicitly from a pointer.
struct SharedAddr {
  uint32_t address;
  __device__ __forceinline__ SharedAddr(const void* p) : address(SharedAddress(p)) {}  // NOLINT
  __device__ __forceinline__ SharedAddr After(uint32_t bytes) const {
    SharedAddr place = *this;
    place.address += bytes;
    return place;
  }
};
// Pins a shared memory address in a register. Otherwise the compiler recomputes the block's shared
// memory window at every use (S2UR, some 30 clocks), which delays consecutive wgmmas in a main
// loop.
__device__ __forceinline__ SharedAddr Pinned(SharedAddr place) {
  asm volatile("mov.u32 %0, %0;" : "+r"(place.address));
  return place;
}
__device__ __forceinline__ float LoadFloat(SharedAddr from) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(from.address) : "memory");
  return x;
}

// --- mbarrier: arrivals and transaction bytes. Init, Arrive and Done need only sm_80. ---

__device__ __forceinline__ void BarrierInit(SharedAddr barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier.address), "r"(arrivals));
}
// Makes initialized barriers visible to TMA and to the other blocks of the cluster.
__device__ __forceinline__ void FenceBarrierInit() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void BarrierExpect(SharedAddr barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier.address),
               "r"(bytes)
               : "memory");
}
// Like the previous function, but without an arrival.
__device__ __forceinline__ void BarrierExpectOnly(SharedAddr barrier, uint32_t bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier.address),
               "r"(bytes)
               : "memory");
}
// Arrives at the barrier at the same offset in another block of the cluster.
__device__ __forceinline__ void BarrierArriveAt(SharedAddr barrier, uint32_t block_of_cluster) {
  asm volatile(
      "{\n\t.reg .b32 remote;\n\t"
      "mapa.shared::cluster.u32 remote, %0, %1;\n\t"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n\t}" ::"r"(barrier.address),
      "r"(block_of_cluster)
      : "memory");
}
__device__ __forceinline__ void BarrierArrive(SharedAddr barrier) {
  asm volatile(
      "{\n\t.reg .b64 state;\n\t"
      "mbarrier.arrive.shared::cta.b64 state, [%0];\n\t}" ::"r"(barrier.address)
      : "memory");
}
// Arrivals per warp when it releases what a barrier guards: one lane arrives after __syncwarp.
// racecheck does not recognize that this orders the other lanes' accesses, so in a racecheck build
// (cmake -DSWITCHYARD_RACECHECK=ON) every lane arrives.
#ifdef SWITCHYARD_RACECHECK
constexpr uint32_t kWarpArrivals = 32;
#else
constexpr uint32_t kWarpArrivals = 1;
#endif
__device__ __forceinline__ void BarrierArriveWarp(SharedAddr barrier) {
  __syncwarp();
  if (threadIdx.x % 32 < kWarpArrivals) BarrierArrive(barrier);
}
// Arrives at the barrier at the same offset in each of the cluster's `blocks` blocks, at most 32.
__device__ __forceinline__ void BarrierArriveWarpAt(SharedAddr barrier, uint32_t blocks) {
  const uint32_t lane = threadIdx.x % 32;
  __syncwarp();
  if constexpr (kWarpArrivals == 1) {
    if (lane < blocks) BarrierArriveAt(barrier, lane);
  } else {
    for (uint32_t block = 0; block < blocks; ++block) BarrierArriveAt(barrier, block);
  }
}
// Whether the barrier's phase with parity `parity` is complete; non-blocking.
__device__ __forceinline__ bool BarrierTestWait(SharedAddr barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n\t.reg .pred done;\n\t"
      "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n\t"
      "selp.u32 %0, 1, 0, done;\n\t}"
      : "=r"(done)
      : "r"(barrier.address), "r"(parity)
      : "memory");
  return done != 0;
}
__device__ __forceinline__ void BarrierWait(SharedAddr barrier, uint32_t parity) {
  asm volatile(
      "{\n\t.reg .pred done;\n\t"
      "again:\n\t"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
      "@done bra finished;\n\t"
      "bra again;\n\t"
      "finished:\n\t}" ::"r"(barrier.address),
      "r"(parity)
      : "memory");
}

// --- cluster ---

__device__ __forceinline__ uint32_t BlockOfCluster() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ uint32_t BlocksOfCluster() {
  uint32_t blocks;
  asm volatile("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(blocks));
  return blocks;
}
__device__ __forceinline__ void ClusterSync() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n\t"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}

// --- TMA copies ---

__device__ __forceinline__ void PrefetchTensorMap(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
// Loads the box at (column, row) into shared memory; its bytes count at the barrier.
__device__ __forceinline__ void LoadBox(void* to, const CUtensorMap* map, int column, int row,
                                        uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(SharedAddress(to)),
      "l"(map), "r"(column), "r"(row), "r"(SharedAddress(barrier))
      : "memory");
}
// Loads the 3-D box at (column, row, plane); its bytes count at the barrier.
__device__ __forceinline__ void LoadBox(void* to, const CUtensorMap* map, int column, int row,
                                        int plane, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(SharedAddress(to)),
      "l"(map), "r"(column), "r"(row), "r"(plane), "r"(SharedAddress(barrier))
      : "memory");
}
// L2 policy for data that is read once per step: it is evicted first, so that it does not displace
// what the next kernels read (activations, cached keys, their own code).
__device__ __forceinline__ uint64_t EvictFirst() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
// LoadBox with an L2 policy.
__device__ __forceinline__ void LoadBoxWith(uint64_t policy, void* to, const CUtensorMap* map,
                                            int column, int row, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(SharedAddress(to)),
      "l"(map), "r"(column), "r"(row), "r"(SharedAddress(barrier)), "l"(policy)
      : "memory");
}
__device__ __forceinline__ void LoadBoxWith(uint64_t policy, void* to, const CUtensorMap* map,
                                            int column, int row, int plane, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(SharedAddress(to)),
      "l"(map), "r"(column), "r"(row), "r"(plane), "r"(SharedAddress(barrier)), "l"(policy)
      : "memory");
}
// LoadBox with multicast to every block of the cluster whose bit is set in `blocks`, at equal
// offsets.
__device__ __forceinline__ void LoadBoxMulticast(void* to, const CUtensorMap* map, int column,
                                                 int row, uint64_t* barrier, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(SharedAddress(to)),
      "l"(map), "r"(column), "r"(row), "r"(SharedAddress(barrier)), "h"(blocks)
      : "memory");
}
// Copies `bytes` (a multiple of 16) from global memory; both addresses are aligned to 16.
__device__ __forceinline__ void LoadBytes(void* to, const void* from, uint32_t bytes,
                                          uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(SharedAddress(to)),
      "l"(from), "r"(bytes), "r"(SharedAddress(barrier))
      : "memory");
}
__device__ __forceinline__ void StoreBox(const CUtensorMap* map, const void* from, int column,
                                         int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
      "r"(column), "r"(row), "r"(SharedAddress(from))
      : "memory");
}
__device__ __forceinline__ void CommitStores() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Waits until TMA has read the sources of all but the last `kPending` store groups.
template <int kPending>
__device__ __forceinline__ void WaitStoresRead() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
// Orders this thread's generic-proxy writes to shared memory before TMA or wgmma accesses after a
// barrier.
__device__ __forceinline__ void FenceAsyncProxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// --- registers and warps ---

template <uint32_t kRegisters>
__device__ __forceinline__ void AllocateRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <uint32_t kRegisters>
__device__ __forceinline__ void DeallocateRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
// Named barrier `id` for `threads` threads of the block.
__device__ __forceinline__ void NamedBarrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// Stores four 8 × 8 matrices of 16-bit elements from registers to shared memory.
__device__ __forceinline__ void StoreMatrices(void* to, uint32_t a, uint32_t b, uint32_t c,
                                              uint32_t d) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(SharedAddress(to)),
      "r"(a), "r"(b), "r"(c), "r"(d)
      : "memory");
}
// Stores four 8 × 8 matrices, each transposed: columns of a matrix become rows in shared memory.
__device__ __forceinline__ void StoreMatricesTransposed(void* to, uint32_t a, uint32_t b,
                                                        uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                   SharedAddress(to)),
               "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

// --- wgmma ---

// Descriptor of a tile with rows of 128 bytes along K in shared memory, in TMA's 128-byte swizzle.
// Eight rows (1024 bytes) form a core block. `tile` is aligned to 1024 bytes. The low word holds
// the address in units of 16 bytes.
__device__ __forceinline__ uint64_t MatrixDescriptorOf(uint32_t low) {
  constexpr uint32_t kStride = 1024 >> 4, kSwizzle128 = 1;
  return uint64_t{kStride | kSwizzle128 << 30} << 32 | low;
}
__device__ __forceinline__ uint64_t MatrixDescriptor(SharedAddr tile) {
  constexpr uint32_t kLeading = 1;
  return MatrixDescriptorOf((tile.address >> 4 & 0x3fff) | kLeading << 16);
}
__device__ __forceinline__ void WgmmaFence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void WgmmaCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving accumulator registers across asynchronous wgmmas.
template <int kCount>
__device__ __forceinline__ void PinRegisters(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}

}  // namespace switchyard::cuda::ptx
