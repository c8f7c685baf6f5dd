// What every layer of one forward pass is given.
#pragma once

#include "comm/device/communicator.h"
#include "core/parallel.h"
#include "core/tensor.h"
#include "model/config.h"
#include "model/model.h"
#include "moe/token_spread.h"

namespace switchyard {

// Borrowed for the length of one call; lives on Model::Forward's stack.
struct LayerContext {
  const ModelConfig& config;
  const ForwardBatch& batch;
  const TokenSpread& spread;  // of the tokens of all groups
  const Tensor& cos_sin;      // [context_length, rotary_dim]
  KvStorage& kv;
  RankComm& comm;
  ThreadPool& pool;
};

// Activations of one kind of layer, sized once for the largest pass and used by one layer after the
// other. A vector of floats with a shape in its comment is all that an activation needs to be.
using Activations = std::vector<float>;

}  // namespace switchyard
