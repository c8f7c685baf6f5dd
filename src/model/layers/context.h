// Inputs common to all layers of one forward pass.
#pragma once

#include "comm/device/collectives.h"
#include "comm/mesh.h"
#include "core/tensor.h"
#include "kernels/device.h"
#include "model/config.h"
#include "model/layers/activations.h"
#include "model/model.h"
#include "moe/token_partition.h"

namespace switchyard {

// The rows of this rank's attention group. Arrays are in device memory.
struct PassRows {
  int64_t tokens = 0;
  const int32_t* ids = nullptr;        // [tokens]
  const int32_t* positions = nullptr;  // [tokens]
  const int32_t* slots = nullptr;      // [tokens]
  int64_t logit_rows = 0;
  const int32_t* logit_row = nullptr;  // [logit_rows]
};

// Borrowed for the duration of one call; lives on Model::Forward's stack.
struct LayerContext {
  const ModelConfig& config;
  const Mesh& mesh;
  const PassRows& rows;
  const TokenPartition& partition;  // partition of the tokens of all groups
  const Tensor& cos_sin;            // [context_length, rotary_dim]
  KvStorage& kv;
  const RankGroups& groups;
  kernels::Device& device;
};

}  // namespace switchyard
