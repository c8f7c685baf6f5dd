// Grouped-query attention of one layer on one rank of an attention group.
#pragma once

#include <cstdint>

#include "model/layers/context.h"
#include "model/pass.h"
#include "model/weights.h"

namespace switchyard {

// One object serves all layers.
class GroupedAttention {
 public:
  explicit GroupedAttention(const LayerContext& context);

  // Floats of the pass's scratch that a layer uses.
  int64_t ScratchFloats(int64_t max_tokens) const;

  // Whether the device supports bfloat16 input of Project for these weights. bfloat16 input needs
  // fewer ops than float32 input.
  bool TakesBf16Input(int64_t tokens, const GroupedAttentionWeights& w) const;
  // x [T, attention_input_width()] (normalised) → queries in the pass's scratch, keys and values in
  // the cache.
  // `bf16_rows` [T, H]: x rounded to bfloat16, if TakesBf16Input is true for the weights; x is not
  // read then.
  void Project(Pass& pass, const GroupedAttentionWeights& w, int64_t layer, const float* x,
               const void* bf16_rows) const;
  // After Project: keeps the queries of the rows whose logits are needed (Pass::KeepLogitRows,
  // which follows). On CPUs.
  void KeepLogitRows(Pass& pass) const;
  // After Project of the same layer: out [T, H], this rank's partial sum over its heads; the caller
  // all-reduces.
  void Attend(Pass& pass, const GroupedAttentionWeights& w, int64_t layer, float* out) const;

 private:
  // Arrays in the pass's scratch.
  struct Arrays {
    float *q, *k, *v;     // q [T, heads · D]; k, v [T, kv_heads · D]; fused: all are in q
    float* attended;      // [T, heads · D]
    float* squares;       // [2, T], for a norm over all heads of all ranks
    int32_t* head_slots;  // [T, kv_heads], for a cache with a scale per head
  };
  Arrays TakeArrays(Pass& pass) const;
  void ProjectAndStore(Pass& pass, const Arrays& a, const GroupedAttentionWeights& w, int64_t layer,
                       const float* x) const;
  // Whether one product gives queries, keys and values, which a fused op norms, rotates and stores.
  bool UsesFusedOps(int64_t tokens, const GroupedAttentionWeights& w) const;
  // ProjectAndStore in these two ops; reads `bf16_rows` instead of x if it is not null.
  void ProjectAndStoreFused(Pass& pass, const Arrays& a, const GroupedAttentionWeights& w,
                            int64_t layer, const float* x, const void* bf16_rows) const;
  // Whether the fused ops pass queries to Attention in bfloat16.
  bool PassesBf16Queries(const KvStorage& kv) const;
  kernels::LinearParams Joined(int64_t tokens, const GroupedAttentionWeights& w, float* qkv) const;
  // Clamps q, k and v to ±clip_qkv, after the norms and before rope (OLMo, OLMoE). NaN stays NaN,
  // as in torch.clamp.
  void Clip(const Arrays& a, int64_t tokens) const;
  void Rotate(const Pass& pass, const Arrays& a) const;
  // Multiplies the heads' output by its gate, which is computed from the layer's normalised rows.
  void Gate(const Pass& pass, const Arrays& a, const LinearWeight& gate) const;
  void NormQueriesAndKeys(const Arrays& a, const GroupedAttentionWeights& w, int64_t tokens) const;
  void FillHeadSlots(const Pass& pass, int32_t* head_slots) const;

  const LayerContext& c_;
  const int64_t heads_, kv_heads_, head_dim_;  // of this rank
  const bool plain_heads_;  // the fused op computes what this model needs between q, k, v and cache
};

}  // namespace switchyard
