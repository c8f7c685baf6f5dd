// Consumer warpgroups (main loop) of the few-rows GEMM.
#pragma once

#include "kernels/cuda/gemm/gemm_few_rows_tiles.cuh"

namespace switchyard::cuda::few_rows {

// Releases a stage to the producers of all blocks of the cluster. Each warp arrives separately: a
// wgmma wait does not cover other warps' reads of the scales.
__device__ __forceinline__ void Release(const Stages& stages, int stage, int cluster) {
  ptx::BarrierArriveWarpAt(&stages.empty[stage], cluster);
}

// Main loop of a tile: the thread's fragment of 64 × kTokens sums. Element 4j + i is weight row
// lane / 4 + 8 (i / 2) of the warp's 16 rows and token 8j + 2 (lane % 4) + i % 2.
template <int kTokens, int kSteps>
struct Multiplier {
  const Kernel& p;
  const Stages& stages;
  const float* b_scales;  // FP8: [k_blocks], scales of the tile's weights
  int warpgroup, thread, cluster;

  // Operand descriptors of step i of a stage.
  __device__ __forceinline__ uint64_t Weights(int stage, int i) const {
    return ptx::MatrixDescriptor(stages.memory + stage * stages.bytes +
                                 i * p.weight_rows * kGemmRowBytes +
                                 warpgroup * 64 * kGemmRowBytes);
  }
  __device__ __forceinline__ uint64_t Tokens(int stage, int i) const {
    return ptx::MatrixDescriptor(stages.memory + stage * stages.bytes + stages.weight_bytes +
                                 i * kTokens * kGemmRowBytes);
  }

  __device__ __forceinline__ void Plain(PipelineState& ring, float (&sums)[kTokens / 2]) const {
    int previous = -1;
#pragma unroll
    for (float& sum : sums) sum = 0.0f;
    for (int kb = 0; kb < p.k_blocks; kb += kSteps, ring.Next(stages.count)) {
      ptx::BarrierWait(&stages.full[ring.stage], ring.parity);
#pragma unroll
      for (int i = 0; i < kSteps; ++i)
        IssueWgmma<false>(Weights(ring.stage, i), Tokens(ring.stage, i), true, sums);
      ptx::WgmmaWait<kSteps>();  // the previous stage is done
      if (previous >= 0) Release(stages, previous, cluster);
      previous = ring.stage;
    }
    ptx::WgmmaWait<0>();
    ptx::PinRegisters(sums);
    Release(stages, previous, cluster);
  }

  // FP8 partial sums are scaled and accumulated in float32 every 128 elements, with the operations
  // of gemm_many_rows.cu. Within a stage the next step's wgmma overlaps this promotion.
  __device__ __forceinline__ void Scaled(PipelineState& ring, float (&sums)[kTokens / 2]) const {
    const int lane = thread % 32;
    const auto scale_of = [&](int kb) { return kb < p.k_blocks ? b_scales[kb] : 0.0f; };
    float scales = 0.0f, next = scale_of(lane);  // weight scales of 32 steps, one per lane
    float part[kSteps > 1 ? 2 : 1][kTokens / 2];
#pragma unroll
    for (float& sum : sums) sum = 0.0f;
    // Steps of the last stage beyond K are zero-filled.
    for (int kb = 0; kb < p.k_blocks; kb += kSteps, ring.Next(stages.count)) {
      if (kb % 32 == 0) {
        scales = next;
        next = scale_of(kb + 32 + lane);
      }
      const int s = ring.stage;
      ptx::BarrierWait(&stages.full[s], ring.parity);
      IssueWgmma<true>(Weights(s, 0), Tokens(s, 0), false, part[0]);
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        if (i + 1 < kSteps) {
          IssueWgmma<true>(Weights(s, i + 1), Tokens(s, i + 1), false, part[(i + 1) % 2]);
          ptx::WgmmaWait<1>();
        } else {
          ptx::WgmmaWait<0>();
        }
        ptx::PinRegisters(part[i % 2]);
        Promote(s, i, __shfl_sync(~0u, scales, (kb + i) % 32), part[i % 2], sums);
      }
      Release(stages, s, cluster);
    }
  }

 private:
  __device__ __forceinline__ void Promote(int stage, int step, float b_scale,
                                          const float (&part)[kTokens / 2],
                                          float (&sums)[kTokens / 2]) const {
    const uint8_t* scales = stages.memory + (stage + 1) * stages.bytes - kScaleBytes;
    const auto* a_scales =
        reinterpret_cast<const float2*>(scales) + step * (kBoxTokens / 2) + thread % 4;
#pragma unroll
    for (int j = 0; j < kTokens / 2; j += 4) {
      const float2 a_scale = a_scales[j];
      const float s0 = __fmul_rn(a_scale.x, b_scale), s1 = __fmul_rn(a_scale.y, b_scale);
      sums[j] = __fmaf_rn(s0, part[j], sums[j]);
      sums[j + 1] = __fmaf_rn(s1, part[j + 1], sums[j + 1]);
      sums[j + 2] = __fmaf_rn(s0, part[j + 2], sums[j + 2]);
      sums[j + 3] = __fmaf_rn(s1, part[j + 3], sums[j + 3]);
    }
  }
};

}  // namespace switchyard::cuda::few_rows
