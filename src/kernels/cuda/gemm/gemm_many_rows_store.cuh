// Epilogue of the many-rows GEMM.
#pragma once

#include "kernels/cuda/gemm/gemm_many_rows_tiles.cuh"

namespace switchyard::cuda::many_rows {

template <int kCount>
__device__ __forceinline__ void AddBias(const Kernel& p, int group, int column, int lane,
                                        float (&sums)[kCount]) {
  const float* bias = p.bias + int64_t{group} * p.n;
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
    const int c = column + 8 * j + 2 * (lane % 4);
    const float even = c < p.n ? bias[c] : 0.0f, odd = c + 1 < p.n ? bias[c + 1] : 0.0f;
    sums[4 * j] = __fadd_rn(sums[4 * j], even);
    sums[4 * j + 1] = __fadd_rn(sums[4 * j + 1], odd);
    sums[4 * j + 2] = __fadd_rn(sums[4 * j + 2], even);
    sums[4 * j + 3] = __fadd_rn(sums[4 * j + 3], odd);
  }
}

// Four lanes write 32 contiguous bytes, one memory sector.
template <int kCount>
__device__ __forceinline__ void StoreFloats(const Kernel& p, int row, int column, int thread,
                                            const float (&sums)[kCount]) {
  const int lane = thread % 32;
  const bool pairs = p.n % 2 == 0 && p.ldd % 2 == 0;  // D is aligned to 8 bytes
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = row + thread / 32 * 16 + lane / 4 + half * 8;
    if (r >= p.rows) continue;
    float* d = static_cast<float*>(p.d) + r * p.ldd;
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j) {
      const int c = column + 8 * j + 2 * (lane % 4);
      float2 x = {sums[4 * j + 2 * half], sums[4 * j + 2 * half + 1]};
      if (pairs && c < p.n) {
        auto* to = reinterpret_cast<float2*>(d + c);
        if (p.accumulate) x = {__fadd_rn(to->x, x.x), __fadd_rn(to->y, x.y)};
        *to = x;
      } else {
        if (c < p.n) d[c] = p.accumulate ? __fadd_rn(d[c], x.x) : x.x;
        if (c + 1 < p.n) d[c + 1] = p.accumulate ? __fadd_rn(d[c + 1], x.y) : x.y;
      }
    }
  }
}

// Stages slabs of 64 columns in shared memory, with TMA's 128-byte swizzle, and stores them by TMA.
template <typename Format>
__device__ __forceinline__ void StoreTile(const CUtensorMap& d_map, Shared<Format>& shared, int row,
                                          int column, int warpgroup, int thread,
                                          const float (&sums)[Format::kBlockN / 2]) {
  constexpr int kSlabs = Shared<Format>::kSlabs;
  const int lane = thread % 32;
  const int in_tile = thread / 32 * 16 + lane % 16;  // row whose address this lane provides
#pragma unroll
  for (int first = 0; first < Format::kBlockN / 64; first += kSlabs) {
    if (thread == 0) ptx::WaitStoresRead<0>();
    ptx::NamedBarrier(1 + warpgroup, 128);
#pragma unroll
    for (int slab = 0; slab < kSlabs; ++slab) {
      uint8_t* base = shared.d[warpgroup][slab] + in_tile * 128;
#pragma unroll
      for (int chunk = 0; chunk < 8; chunk += 2) {
        const float* x = &sums[((first + slab) * 8 + chunk) * 4];
        const int place = (chunk + lane / 16) ^ (in_tile % 8);
        ptx::StoreMatrices(base + place * 16, Pack(x[0], x[1]), Pack(x[2], x[3]), Pack(x[4], x[5]),
                           Pack(x[6], x[7]));
      }
    }
    ptx::FenceAsyncProxy();
    ptx::NamedBarrier(1 + warpgroup, 128);
    if (thread == 0) {
#pragma unroll
      for (int slab = 0; slab < kSlabs; ++slab)
        ptx::StoreBox(&d_map, shared.d[warpgroup][slab], column + (first + slab) * 64,
                      row + warpgroup * 64);
      ptx::CommitStores();
    }
  }
}

}  // namespace switchyard::cuda::many_rows
