// What the two kernels of attention's gradients on Hopper share. Blocks: attention_hopper.cuh. As
// in attention_gradient.cu, one kernel owns keys and sums dk and dv, the other owns rows and sums
// dq, so that no sum is shared by two blocks.
#pragma once

#include "train/cuda/attention_hopper.cuh"

namespace switchyard::train::gpu {

struct HopperGradientParams {
  AttentionShape shape;
  BlockOrder order;
  const float *log_sums, *along;       // [heads, rows]
  int q_head, k_head, v_head, d_head;  // columns between heads; d: of dout
  MutableHeadArray dq, dk, dv;
};

struct GradientMaps {
  CUtensorMap q, k, v, dout;
};

inline HopperGradientParams HopperParamsOf(const AttentionGradientParams& p,
                                           const BlockOrder& order) {
  return {.shape = p.shape,
          .order = order,
          .log_sums = p.log_sums,
          .along = p.along,
          .q_head = static_cast<int>(p.q.head),
          .k_head = static_cast<int>(p.k.head),
          .v_head = static_cast<int>(p.v.head),
          .d_head = static_cast<int>(p.dout.head),
          .dq = p.dq,
          .dk = p.dk,
          .dv = p.dv};
}
// Maps with boxes of `rows` rows of q and dout, and of `keys` rows of k and v.
template <int kQk, int kV>
GradientMaps MapsOf(const AttentionGradientParams& p, int rows, int keys) {
  const AttentionShape& s = p.shape;
  return {.q = MapOfHeads(p.q, s.rows, s.heads, kQk, rows),
          .k = MapOfHeads(p.k, s.rows, s.kv_heads, kQk, keys),
          .v = MapOfHeads(p.v, s.rows, s.kv_heads, kV, keys),
          .dout = MapOfHeads(p.dout, s.rows, s.heads, kV, rows)};
}

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

// The gradient of an unscaled score, without the factor `scale`. A score that is not visible has
// the probability zero, and its dp may not be finite.
template <bool kMasked>
__device__ __forceinline__ float ScoreGradient(float probability, float dp, float along) {
  if (kMasked && probability == 0.0f) return 0.0f;
  return probability * (dp - along);
}

// Initializes the barriers of a ring, with `writers` arrivals of producers per stage.
template <typename Shared>
__device__ __forceinline__ void InitRing(Shared& shared, uint32_t writers) {
  for (int s = 0; s < Shared::kStages; ++s) {
    ptx::BarrierInit(&shared.full[s], writers);
    ptx::BarrierInit(&shared.empty[s], kReaders);
  }
  ptx::FenceBarrierInit();
}

#endif

}  // namespace switchyard::train::gpu
