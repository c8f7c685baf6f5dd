// Grouped-query attention of one layer on one rank of an attention group.
#pragma once

#include <cstdint>

#include "kernels/fused_ops.h"
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

  // The form of Project's `rounded` for these weights, or kNone. Rounded input needs fewer ops than
  // float32 input.
  kernels::RoundedForm RoundedInput(int64_t tokens, const GroupedAttentionWeights& w) const;
  // x [T, attention_input_width()] (normalised) → queries in the pass's scratch, keys and values in
  // the cache. `rounded`: x in the form that RoundedInput returns; then `x` is not read. With form
  // kNone, `x` is read.
  void Project(Pass& pass, const GroupedAttentionWeights& w, int64_t layer, const float* x,
               const kernels::RoundedRows& rounded) const;
  // After Project and before Pass::KeepLogitRows: keeps only the queries of rows whose logits are
  // needed. CPUs only.
  void KeepLogitRows(Pass& pass) const;
  // After Project of the same layer: out [T, H], this rank's partial sum over its heads; the caller
  // all-reduces.
  void Attend(Pass& pass, const GroupedAttentionWeights& w, int64_t layer, float* out) const;

 private:
  // Arrays in the pass's scratch.
  struct Arrays {
    float *q, *k, *v;  // q [T, heads · D]; k [T, kv_heads · D]; v [T, kv_heads · Dv]; fused: all
                       // are in q
    float* attended;   // [T, heads · Dv], with room for T rows of q
    float* squares;    // [2, T], for a norm over all heads of all ranks
    int32_t* head_slots;  // [T, kv_heads], for a cache with a scale per head
    float* joint;         // with gate_in_q: the projection of q, [T, heads, 2 · D]
    float* gates;         // with gate_in_q: [T, heads · D]
  };
  int64_t KvHeadsOf(int64_t layer) const;
  Arrays TakeArrays(Pass& pass) const;
  void ProjectAndStore(Pass& pass, const Arrays& a, const GroupedAttentionWeights& w, int64_t layer,
                       const float* x) const;
  // Whether one product gives queries, keys and values, which a fused op norms, rotates and stores.
  bool UsesFusedOps(int64_t tokens, const GroupedAttentionWeights& w) const;
  kernels::RoundedForm InputForm(int64_t tokens, const GroupedAttentionWeights& w) const;
  // ProjectAndStore with that product and that fused op.
  void ProjectAndStoreFused(Pass& pass, const Arrays& a, const GroupedAttentionWeights& w,
                            int64_t layer, const float* x,
                            const kernels::RoundedRows& rounded) const;
  // Whether the fused ops pass queries to Attention in bfloat16.
  bool PassesBf16Queries(const KvStorage& kv) const;
  kernels::LinearParams Joined(int64_t tokens, const GroupedAttentionWeights& w, float* qkv) const;
  // Clamps q, k and v to ±clip_qkv, after the norms and before rope (OLMo, OLMoE). NaN stays NaN,
  // as in torch.clamp.
  void Clip(const Arrays& a, int64_t tokens, int64_t kv_heads) const;
  void Rotate(const Pass& pass, const Arrays& a, int64_t layer) const;
  // Scales queries by their positions (AttentionConfig::query_scale_beta).
  void ScaleQueries(const Pass& pass, const Arrays& a) const;
  int64_t GateFloats(int64_t tokens) const;  // of Arrays::gates
  // With gate_in_q: copies queries and gates from their projection.
  void SplitGates(const Pass& pass, const Arrays& a) const;
  // Multiplies the heads' output by its gate, which is computed from the layer's normalised rows.
  void Gate(const Pass& pass, const Arrays& a, const LinearWeight& gate) const;
  void NormQueriesAndKeys(const Arrays& a, const GroupedAttentionWeights& w, int64_t tokens,
                          int64_t kv_heads) const;
  void FillHeadSlots(const Pass& pass, int64_t kv_heads, int32_t* head_slots) const;

  const LayerContext& c_;
  // Sizes on this rank. kv_heads_: the most of any layer.
  const int64_t heads_, kv_heads_, head_dim_, value_dim_;
  const bool plain_heads_;  // the fused op computes what this model needs between q, k, v and cache
};

}  // namespace switchyard
