// Main loop of FP8 products with scales, and a consumer's view of the pipeline stages. For blocks
// with 128 rows of A, in clusters of two that share A, with two consumer warpgroups of 64 rows.
//
// `Shared` is the block's shared memory: kStages tiles a [128 · 128 bytes] and b [kBlockN · 128
// bytes], float scales a_scales [kStages][128 or more], and the barriers full and empty [kStages].
#pragma once

#include <cstdint>

#include "kernels/cuda/gemm/gemm_tiles.cuh"

namespace switchyard::cuda {

constexpr int kStageCluster = 2;  // blocks of a cluster

// A consumer warpgroup's view of the pipeline stages.
template <typename Shared>
struct StageReader {
  OperandDescriptors a, b;
  ptx::SharedAddr full, empty;

  __device__ __forceinline__ StageReader(Shared& shared, int warpgroup)
      : a(shared.a[0] + warpgroup * 64 * kGemmRowBytes),
        b(shared.b[0]),
        full(ptx::Pinned(shared.full)),
        empty(ptx::Pinned(shared.empty)) {}

  __device__ __forceinline__ ptx::SharedAddr Full(const PipelineState& ring) const {
    return full.After(ring.stage * sizeof(uint64_t));
  }
  template <bool kFp8, int kCount>
  __device__ __forceinline__ void Start(int stage, bool add, float (&d)[kCount]) const {
    IssueWgmma<kFp8>(a.After(stage * kManyRowsTokens * kGemmRowBytes),
                     b.After(stage * Shared::kBlockN * kGemmRowBytes), add, d);
  }
  // Releases a stage to the producers of both blocks. Each warp arrives separately: a wgmma wait
  // does not cover other warps' reads of the scales.
  __device__ __forceinline__ void Release(int stage) const {
    ptx::BarrierArriveWarpAt(empty.After(stage * sizeof(uint64_t)), kStageCluster);
  }
};

// Weight scales of a tile of 192 columns that begins at a multiple of 64. Its first and last 64
// columns may be in different blocks of 128; the middle 64 share one of these two blocks.
struct WeightScales {
  const float *first, *last;  // scales of step 0
  bool middle_is_first;

  // p: kernel arguments b_scales [groups, ceil(n / 128), k_blocks], n and k_blocks.
  template <typename Arguments>
  __device__ WeightScales(const Arguments& p, int group, int column) {
    const int rows = static_cast<int>((p.n + 127) / 128);
    const float* scales = p.b_scales + int64_t{group} * rows * p.k_blocks;
    first = scales + int64_t{min(column / 128, rows - 1)} * p.k_blocks;
    last = scales + int64_t{min((column + 128) / 128, rows - 1)} * p.k_blocks;
    middle_is_first = column % 128 == 0;
  }
};

// Main loop of a tile of 192 columns: the thread's fragment of 64 × kBlockN sums. Element 4j + i is
// row lane / 4 + 8 (i / 2) of the warp's 16 rows and column 8j + 2 (lane % 4) + i % 2. first_scale:
// of the tile's first row, in the scales of a stage.
//
// The tensor core accumulates with fewer bits than float32. So it sums 128 elements only, and the
// result is scaled and promoted to float32 registers. Meanwhile the tensor core computes products
// of the other warpgroup, unless this warpgroup is promoting too. The code between two steps is
// therefore kept as short as possible. Alternating the warpgroups by barriers costs more than it
// gains (docs/notes/gpu.md).
template <typename Arguments, typename Shared>
__device__ __forceinline__ void MultiplyScaled(const Arguments& p, Shared& shared,
                                               PipelineState& ring, int group, int column,
                                               int warpgroup, int thread,
                                               float (&sums)[Shared::kBlockN / 2],
                                               int first_scale = 0) {
  const int lane = thread % 32, row = warpgroup * 64 + thread / 32 * 16 + lane / 4;
  const WeightScales weights(p, group, column);
  const StageReader<Shared> reader(shared, warpgroup);
  const ptx::SharedAddr a_scales = ptx::Pinned(&shared.a_scales[0][first_scale + row]);
  float part[Shared::kBlockN / 2];
#pragma unroll
  for (float& sum : sums) sum = 0.0f;
  bool ready = false;  // whether the next stage is known to be full
  for (int first = 0; first < p.k_blocks; first += 32) {
    const int steps = min(p.k_blocks - first, 32);
    const bool there = lane < steps;  // this lane loads the weight scales of step first + lane
    const float first_of_lane = there ? weights.first[first + lane] : 0.0f;
    const float last_of_lane = there ? weights.last[first + lane] : 0.0f;
#pragma unroll 4
    for (int i = 0; i < steps; ++i) {
      const int s = ring.stage;
      const float b0 = __shfl_sync(~0u, first_of_lane, i);
      const float b2 = __shfl_sync(~0u, last_of_lane, i);
      const float b1 = weights.middle_is_first ? b0 : b2;
      if (!ready) ptx::BarrierWait(reader.Full(ring), ring.parity);
      const float a0 = ptx::LoadFloat(a_scales.After(s * sizeof(shared.a_scales[0])));
      const float a1 = ptx::LoadFloat(a_scales.After(s * sizeof(shared.a_scales[0]) + 32));
      reader.template Start<true>(s, false, part);
      ring.Next(Shared::kStages);
      ptx::WgmmaWait<0>();
      reader.Release(s);
      ready = ptx::BarrierTestWait(reader.Full(ring), ring.parity);
      ptx::PinRegisters(part);
      const float scales[3][2] = {{a0 * b0, a1 * b0}, {a0 * b1, a1 * b1}, {a0 * b2, a1 * b2}};
#pragma unroll
      for (int j = 0; j < Shared::kBlockN / 2; ++j)
        sums[j] = __fmaf_rn(scales[j / 32][j / 2 % 2], part[j], sums[j]);
    }
  }
}

}  // namespace switchyard::cuda
