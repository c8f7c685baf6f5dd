// The description of one MoE layer: its configuration, its weights, and the rows of a pass.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/ops.h"
#include "moe/placement/placement.h"
#include "moe/router/router.h"
#include "moe/router/router_fault.h"

namespace switchyard {

struct MoeLayerConfig {
  int64_t hidden = 0;        // H: elements of the rows of the experts
  int64_t router_width = 0;  // elements of MoeTokens::router_rows; 0: the router reads H elements
  RouterConfig router;
  kernels::Activation activation = kernels::Activation::kSwiGlu;
  float swiglu_alpha = 1.702f, swiglu_limit = 7.0f;
  ExpertPlacement placement;  // default: trivial
  int layer = 0;              // index in the model, for observers
};

// Views of the checkpoint for one rank: its shard of the layer.
struct MoeLayerWeights {
  RouterWeights router;  // replicated on every rank
  // The physical experts of ExpertsOfRank(...), each with this rank's MoE-TP slice of I.
  std::vector<kernels::ExpertWeights> experts;
  // The owner of each expert's biases, as OwnedExpert::owner; empty: LayerWeights::owned has all.
  std::vector<std::shared_ptr<const void>> owners;
  // The shared expert, if any. If each rank has its own tokens (ScattersTokens), the weights are
  // replicated on every rank. Otherwise they are the rank's TP slice, and the all-reduce of the
  // routed experts also sums its output.
  bool has_shared = false;
  kernels::ExpertWeights shared;
  WeightView shared_gate;  // [1, H], sigmoid; undefined: no gate
};

// The place of an expert in a device's memory. Only the layer's backend makes and reads it.
struct PlacedExpert {
  virtual ~PlacedExpert() = default;
};

// An expert's shard. The matrices of `weights` have owners of their own. `owner` keeps the biases
// alive. It may be null if there are none in host memory, or if LayerWeights::owned has them.
struct OwnedExpert {
  kernels::ExpertWeights weights;  // in host memory; undefined if only `placed` has them
  std::shared_ptr<const void> owner;
  std::shared_ptr<const PlacedExpert> placed;  // in a device's memory; null on CPUs
};

// The rows of one forward pass, the same on every rank.
struct MoeTokens {
  // [dp] rows of each attention group, and how many of them are decode rows. Decode rows come
  // first; each is the single new row of its sequence. A group may have no rows.
  std::span<const int64_t> group_tokens;
  std::span<const int64_t> group_decode_tokens;
  // [tokens of this group, top_k] in the memory of the layer's device. Receives the logical experts
  // of every token, −1 for none, on every rank of the group. Null: not needed.
  int32_t* routed_experts = nullptr;
  // Receives the router faults of the tokens that this rank routes. In the memory of the layer's
  // device.
  RouterFaults router_faults;
  // Index of this group's first token among the tokens of its whole batch, for observers.
  int64_t first_row = 0;
  // With MoeLayerConfig::router_width: the rows that the router reads [tokens of this group,
  // router_width], in place of those of the experts. Without a shared expert, unless the rows of
  // the experts are the first elements of those of the router (RouterConfig::by_token).
  const float* router_rows = nullptr;
};

}  // namespace switchyard
