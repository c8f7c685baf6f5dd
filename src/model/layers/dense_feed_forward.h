// The feed-forward of layers without experts.
#pragma once

#include "model/layers/context.h"

namespace switchyard {

// Whole on each rank (--moe-dense-tp-size 1), which then puts its own tokens through it; or split
// over the world, and then every rank works on the tokens of all groups:
//
//              tokens each rank works on      afterwards
//   whole      its own (TokenSpread)          all-gather in the attention group
//   split      dp 1: all, which it has        all-reduce
//              dp > 1: all, gathered          reduce-scatter, all-gather in the attention group
//
// Owns its activations; one object serves all layers.
class DenseFeedForward {
 public:
  // `middle`: the most elements of a layer's intermediate dimension that this rank holds.
  DenseFeedForward(const ModelConfig& config, const Mesh& mesh, int64_t middle, int64_t max_tokens,
                   kernels::Device& device);

  // x [T, H] (normalised) → out [T, H], of this rank's attention group, whole on every rank of it.
  void Forward(const LayerContext& c, const kernels::ExpertWeights& w, const float* x, float* out);

 private:
  void Run(const LayerContext& c, const kernels::ExpertWeights& w, const float* x, int64_t rows,
           float* out);

  const bool whole_;
  Activations middle_;          // [rows, I of this rank]
  Activations gathered_, sum_;  // [tokens of all groups, H] where they are gathered
};

}  // namespace switchyard
