// The feed-forward of dense layers.
#pragma once

#include "model/layers/context.h"

namespace switchyard {

// Either replicated on each rank (--moe-dense-tp-size 1), which processes its own tokens, or
// sharded over the world, where every rank processes the tokens of all groups:
//
//              tokens of each rank            afterwards
//   replicated its own (TokenPartition)          all-gather in the attention group
//   sharded    dp 1: all, already present     all-reduce
//              dp > 1: all, gathered          reduce-scatter, all-gather in the attention group
//
// Owns its activations; one object serves all layers.
class DenseFeedForward {
 public:
  // `middle`: the largest intermediate dimension of a layer's shard on this rank.
  DenseFeedForward(const ModelConfig& config, const Mesh& mesh, int64_t middle, int64_t max_tokens,
                   kernels::Device& device);

  // x [T, H] (normalised) → out [T, H], of this rank's attention group, complete on all its ranks.
  void Forward(const LayerContext& c, const kernels::ExpertWeights& w, const float* x, float* out);

 private:
  void Run(const LayerContext& c, const kernels::ExpertWeights& w, const float* x, int64_t rows,
           float* out);

  const bool whole_;
  Activations middle_;          // [rows, I of this rank]
  Activations gathered_, sum_;  // [tokens of all groups, H] if they are gathered
};

}  // namespace switchyard
