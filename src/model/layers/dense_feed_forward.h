// The feed-forward of dense layers.
#pragma once

#include "model/layers/context.h"
#include "model/pass.h"

namespace switchyard {

// The weights are either replicated on each rank (--moe-dense-tp-size 1) or sharded over the world.
// If they are replicated, a rank processes its own tokens. If they are sharded, every rank
// processes the tokens of all groups:
//
//              tokens of each rank            afterwards
//   replicated its own (TokenPartition)   all-gather in the attention group
//   sharded    dp 1: all, already present     all-reduce
//              dp > 1: all, gathered          reduce-scatter, all-gather in the attention group
//
// One object serves all layers.
class DenseFeedForward {
 public:
  // `middle`: the largest intermediate dimension of a layer's shard on this rank.
  DenseFeedForward(const LayerContext& context, int64_t middle);

  // Floats of the pass's scratch that Forward uses.
  int64_t ScratchFloats(int64_t max_tokens) const;

  // x [T, H] (normalised) → out [T, H], of this rank's attention group, complete on all its ranks.
  void Forward(Pass& pass, const kernels::ExpertWeights& w, const float* x, float* out) const;

 private:
  void Run(Pass& pass, const kernels::ExpertWeights& w, const float* x, int64_t rows,
           float* out) const;

  const LayerContext& c_;
  const int64_t middle_;
  const bool whole_;    // whether weights are replicated
  const bool gathers_;  // whether Forward gathers the tokens of all groups
};

}  // namespace switchyard
