// Pipeline stages: contiguous ranges of a model's layers.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "model/config.h"
#include "schedule/serve.h"

namespace switchyard {

// The model's layers in `stages` ranges. The first stage has the embedding, the last one the final
// norm and the head. Error kInvalid names --pp-size if there are more stages than layers.
//
// `sizes`: numbers of layers of the stages. If they do not fit the model, Error kInvalid names
// `name`, the flag that set them. If `sizes` is empty, the ranges minimize the largest cost of a
// stage. The cost of a layer is the sum of two shares. One is its share of the weights that a token
// of a prompt multiplies: of the selected and shared experts, of the router and of attention. The
// other is its share of the weights that a decode pass of 32 tokens reads. The head counts in
// decode only, because one token of a prompt needs it.
std::vector<schedule::LayerRange> SplitLayers(const ModelConfig& model, int stages,
                                              std::span<const int> sizes = {},
                                              const std::string& name = "--pp-layer-partition");

// The number of keys at which the attention of a token takes as many multiplications as its weights
// do: what a token multiplies in addition to weights grows with its position. Attention within a
// sliding window or chunk, to selected keys or entries, or with a recurrent state counts as
// weights, since it does not grow beyond. An indexer scores all keys, so its scores grow, and so
// does attention to all compressed entries. Infinite if nothing grows.
double KeysOfWeights(const ModelConfig& model);

// The model of one stage. Without MoE layers it has no experts (ModelConfig::moe).
ModelConfig StageConfigOf(const ModelConfig& model, const schedule::LayerRange& range);

}  // namespace switchyard
