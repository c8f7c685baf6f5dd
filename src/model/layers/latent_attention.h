// Multi-head latent attention (MLA, DeepSeek-V2) of one layer on one rank of an attention group,
// in absorbed form.
#pragma once

#include "model/layers/context.h"
#include "model/weights.h"

namespace switchyard {

// The cache holds one latent row per token, [kv_lora + rope], the same on every rank. Keys and
// values are never decompressed: queries are projected into the latent space (W_uk absorbed into
// q), attend to latents, and W_uv projects the weighted sums back. Prefill takes the same path as
// decode, so a token's result does not depend on which of the two computed it, and prefixes can
// always be shared.
//
// Owns its activations; one object serves all layers.
class LatentAttention {
 public:
  LatentAttention(const ModelConfig& config, const Mesh& mesh, int64_t max_tokens,
                  kernels::Device& device);

  // x [T, H] (normalised) → out [T, H], this rank's partial sum over its heads; the caller
  // all-reduces.
  void Forward(const LayerContext& c, const LatentAttentionWeights& w, int64_t layer,
               const float* x, float* out);

 private:
  void ProjectQueries(const LayerContext& c, const LatentAttentionWeights& w, const float* x);
  void StoreLatents(const LayerContext& c, const LatentAttentionWeights& w, int64_t layer,
                    const float* x);

  int64_t heads_;  // of this rank
  int64_t nope_, rope_, lora_, value_;
  Activations q_a_;         // [T, q_lora]
  Activations q_;           // [T, heads, nope + rope]
  Activations latent_;      // [T, lora + rope]
  Activations q_absorbed_;  // [T, heads, lora + rope]
  Activations attended_;    // [T, heads, lora]
  Activations values_;      // [T, heads, v]
};

}  // namespace switchyard
