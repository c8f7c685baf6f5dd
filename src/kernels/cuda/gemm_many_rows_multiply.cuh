// The warpgroups of the GEMM of many rows that multiply.
#pragma once

#include "kernels/cuda/gemm_many_rows_tiles.cuh"

namespace switchyard::cuda::many_rows {

// Says to the producers of both blocks that this warp has read a stage. Each warp for itself: a
// wait for wgmma says nothing of what other warps have read of the scales.
template <typename Format>
__device__ __forceinline__ void Release(Shared<Format>& shared, int stage) {
  ptx::BarrierArriveWarpAt(&shared.empty[stage], kCluster);
}

// Scales of a tile of 192 columns, which begins at a multiple of 64: its first and its last 64
// columns may be of different blocks of 128, and those between are of one of the two.
struct WeightScales {
  const float *first, *last;  // of step 0
  bool middle_is_first;

  __device__ WeightScales(const Kernel& p, int group, int column) {
    const int rows = (p.n + 127) / 128;
    const float* scales = p.b_scales + int64_t{group} * rows * p.k_blocks;
    first = scales + int64_t{min(column / 128, rows - 1)} * p.k_blocks;
    last = scales + int64_t{min((column + 128) / 128, rows - 1)} * p.k_blocks;
    middle_is_first = column % 128 == 0;
  }
};

// A tile's products, as the thread's part of 64 × kBlockN sums: element 4j + i is row lane / 4 + 8
// (i / 2) of the warp's 16, column 8j + 2 (lane % 4) + i % 2.
//
// FP8: the matrix unit adds with fewer bits than float32 has, so its sums are taken over every 128
// elements only, scaled, and added to sums in registers. While one warpgroup adds, the matrix unit
// works for the other: the second one starts when the first has its first step, so that they do not
// wait for the same stage and then add at the same time.
template <typename Format>
__device__ __forceinline__ void MultiplyScaled(const Kernel& p, Shared<Format>& shared, Ring& ring,
                                               int group, int column, int warpgroup, int thread,
                                               float (&sums)[Format::kBlockN / 2]) {
  const int lane = thread % 32, row = warpgroup * 64 + thread / 32 * 16 + lane / 4;
  const WeightScales weights(p, group, column);
  float first_of_lane = 0.0f, last_of_lane = 0.0f;  // of the steps kb / 32 · 32 + lane
  float part[Format::kBlockN / 2];
#pragma unroll
  for (float& sum : sums) sum = 0.0f;
  for (int kb = 0; kb < p.k_blocks; ++kb, ring.Next(Format::kStages)) {
    const int s = ring.stage;
    if (kb % 32 == 0 && kb + lane < p.k_blocks) {
      first_of_lane = weights.first[kb + lane];
      last_of_lane = weights.last[kb + lane];
    }
    ptx::BarrierWait(&shared.full[s], ring.parity);
    if (kb == 0 && warpgroup == 1) ptx::NamedBarrier(1 + kConsumers, 2 * 128);
    StartMultiply<true>(shared.a[s] + warpgroup * 64 * kGemmRowBytes, shared.b[s], false, part);
    const float b0 = __shfl_sync(~0u, first_of_lane, kb % 32);
    const float b2 = __shfl_sync(~0u, last_of_lane, kb % 32);
    const float b1 = weights.middle_is_first ? b0 : b2;
    const float a0 = shared.a_scales[s][row], a1 = shared.a_scales[s][row + 8];
    const float scales[3][2] = {{a0 * b0, a1 * b0}, {a0 * b1, a1 * b1}, {a0 * b2, a1 * b2}};
    ptx::MultiplyWait<0>();
    if (kb == 0 && warpgroup == 0) ptx::NamedArrive(1 + kConsumers, 2 * 128);
    ptx::PinRegisters(part);
    Release(shared, s);
#pragma unroll
    for (int j = 0; j < Format::kBlockN / 2; ++j)
      sums[j] = __fmaf_rn(scales[j / 32][j / 2 % 2], part[j], sums[j]);
  }
}

// bfloat16: the matrix unit's own sums, over all of K.
template <typename Format>
__device__ __forceinline__ void MultiplyPlain(const Kernel& p, Shared<Format>& shared, Ring& ring,
                                              int warpgroup, float (&sums)[Format::kBlockN / 2]) {
  int previous = -1;
#pragma unroll
  for (float& sum : sums) sum = 0.0f;
  for (int kb = 0; kb < p.k_blocks; ++kb, ring.Next(Format::kStages)) {
    const int s = ring.stage;
    ptx::BarrierWait(&shared.full[s], ring.parity);
    StartMultiply<false>(shared.a[s] + warpgroup * 64 * kGemmRowBytes, shared.b[s], true, sums);
    ptx::MultiplyWait<1>();  // the block before this one is done
    if (previous >= 0) Release(shared, previous);
    previous = s;
  }
  ptx::MultiplyWait<0>();
  ptx::PinRegisters(sums);
  Release(shared, previous);
}

}  // namespace switchyard::cuda::many_rows
