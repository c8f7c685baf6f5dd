// Multi-head latent attention (MLA, DeepSeek-V2) of one layer on one rank of an attention group,
// in absorbed form.
#pragma once

#include "model/layers/context.h"
#include "model/pass.h"
#include "model/weights.h"

namespace switchyard {

// The cache holds one latent row per token, [kv_lora + rope], the same on every rank. Keys and
// values are never decompressed. Queries are projected into the latent space (W_uk absorbed into q)
// and attend to latents. W_uv projects the weighted sums back. Prefill takes the same path as
// decode. A token's result therefore does not depend on whether prefill or decode computed it, so
// requests can share prefixes.
//
// With an indexer (DeepSeek Sparse Attention), a query attends to the keys that the indexer
// selects. Every rank of the group computes the whole indexer, so all ranks select the same keys.
// Later drafts of an MTP layer may take the keys of the first one instead
// (AttentionConfig::drafts_share_index). Their index keys are stored nevertheless.
//
// One object serves all layers.
class LatentAttention {
 public:
  explicit LatentAttention(const LayerContext& context);

  // Floats of the pass's scratch that a layer uses.
  int64_t ScratchFloats(int64_t max_tokens) const;

  // x [T, H] (normalised) → latents and index keys in the cache.
  void StoreLatents(Pass& pass, const LatentAttentionWeights& w, int64_t layer,
                    const float* x) const;
  // x [T, H] (normalised) → queries in the pass's scratch, and selected keys in the pass, after
  // StoreLatents of the same layer. The pass may have fewer rows than in StoreLatents, after
  // KeepLogitRows.
  void ProjectQueries(Pass& pass, const LatentAttentionWeights& w, int64_t layer,
                      const float* x) const;
  // After ProjectQueries of the same layer: out [T, H], this rank's partial sum over its heads; the
  // caller all-reduces.
  void Attend(Pass& pass, const LatentAttentionWeights& w, int64_t layer, float* out) const;

 private:
  // Arrays in the pass's scratch.
  struct Arrays {
    float* q_a;         // [T, q_lora]
    float* q;           // [T, heads, nope + rope]
    float* latent;      // [T, lora + rope]
    float* q_absorbed;  // [T, heads, lora + rope]
    float* attended;    // [T, heads, lora]
    float* values;      // [T, heads, v]
    float* gates;       // [T, heads], with AttentionConfig::gate; else null
    // With an indexer.
    float* index_k;        // [T, index_head_dim]
    float* index_q;        // [T, index_heads, index_head_dim]
    float* index_weights;  // [T, index_heads]
  };
  Arrays TakeArrays(Pass& pass) const;
  void StoreIndexKeys(Pass& pass, const IndexWeights& w, int64_t layer, const float* x,
                      float* keys) const;
  // x [T, H], a.q_a [T, q_lora] → the pass's selected keys.
  void SelectKeys(Pass& pass, const IndexWeights& w, int64_t layer, const float* x,
                  const Arrays& a) const;
  // The previous pass's selected keys → those of the pass (Pass::inherits_keys).
  void InheritKeys(Pass& pass) const;
  // The rotary embedding of the indexer: the first elements of each head are rotated.
  void RotateIndex(Pass& pass, float* x, int64_t heads) const;

  const LayerContext& c_;
  const int64_t heads_;  // heads of this rank
  const int64_t nope_, rope_, lora_, value_;
};

}  // namespace switchyard
