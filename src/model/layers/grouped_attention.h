// Grouped-query attention of one layer on one rank of an attention group.
#pragma once

#include <cstdint>
#include <vector>

#include "model/layers/context.h"
#include "model/weights.h"

namespace switchyard {

// Owns its activations; one object serves all layers, since they run one after the other.
class GroupedAttention {
 public:
  GroupedAttention(const ModelConfig& config, const Mesh& mesh, int64_t max_tokens,
                   kernels::Device& device);

  // Whether Forward takes its input rounded to bfloat16, which needs fewer ops: if the device
  // supports it for these weights.
  bool TakesBf16Input(const LayerContext& c, const GroupedAttentionWeights& w);
  // x [T, H] (normalised) → out [T, H], this rank's partial sum over its heads; the caller
  // all-reduces. `bf16_rows` [T, H]: x rounded to bfloat16, for weights for which TakesBf16Input is
  // true; x is not read then.
  void Forward(const LayerContext& c, const GroupedAttentionWeights& w, int64_t layer,
               const float* x, const void* bf16_rows, float* out);

 private:
  void ProjectAndStore(const LayerContext& c, const GroupedAttentionWeights& w, int64_t layer,
                       const float* x);
  // The same in two ops; q_ then also holds keys and values.
  void ProjectAndStoreFused(const LayerContext& c, const GroupedAttentionWeights& w, int64_t layer,
                            const void* bf16_rows);
  kernels::LinearParams Joined(const LayerContext& c, const GroupedAttentionWeights& w);
  // Clamps q, k and v to ±clip_qkv, after the norms and before rope (OLMo, OLMoE). NaN stays NaN,
  // as in torch.clamp.
  void Clip(const LayerContext& c, int64_t tokens);
  void NormQueriesAndKeys(const LayerContext& c, const GroupedAttentionWeights& w, int64_t tokens);
  void FillHeadSlots(const LayerContext& c);

  int64_t heads_, kv_heads_, head_dim_;  // of this rank
  Activations q_, k_, v_, attended_;  // [T, heads · D], [T, kv_heads · D] twice, [T, heads · D]
  Activations squares_;               // [2, T], for a norm over all heads of all ranks
  std::vector<int32_t> head_slots_;   // [T, kv_heads], for a cache with a scale per head
};

}  // namespace switchyard
