// One MoE layer on one rank: router → dispatch → pre-permute → grouped GEMM → post-permute →
// combine.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "comm/device/communicator.h"
#include "core/parallel.h"
#include "kernels/ops.h"
#include "moe/hooks.h"
#include "moe/options.h"
#include "moe/placement.h"
#include "moe/router.h"
#include "moe/router_fault.h"
#include "moe/token_partition.h"

namespace switchyard {

class MoeRuntime;
struct MoeBatch;
struct ExpertBlock;

struct MoeLayerConfig {
  int64_t hidden = 0;
  RouterConfig router;
  kernels::Activation activation = kernels::Activation::kSwiGlu;
  float swiglu_alpha = 1.702f, swiglu_limit = 7.0f;
  ExpertPlacement placement;  // default: trivial
  int layer = 0;              // index in the model, for observers
};

// Views of the checkpoint: this rank's shard.
struct MoeLayerWeights {
  RouterWeights router;  // replicated on every rank
  // The physical experts of ExpertsOfRank(...), each the MoE-TP slice of its I.
  std::vector<kernels::ExpertWeights> experts;
  // The shared expert, if any. Replicated on every rank if ranks have tokens of their own
  // (ScattersTokens); otherwise the rank's TP slice, whose output joins the same all-reduce.
  bool has_shared = false;
  kernels::ExpertWeights shared;
  WeightView shared_gate;  // [1, H], sigmoid; undefined: no gate
};

// An expert's shard, and the owner of its biases if no view owns them.
struct OwnedExpert {
  kernels::ExpertWeights weights;
  std::shared_ptr<const void> owner;
};

// The rows of one forward pass, the same on every rank.
struct MoeTokens {
  // [dp] rows of each attention group, and the number of leading rows that are the single new row
  // of their sequence (decode). A group may have none.
  std::span<const int64_t> group_tokens;
  std::span<const int64_t> group_decode_tokens;
  // [tokens of this group, top_k] receives the logical experts of every token, −1 for none, on
  // every rank of the group; or null.
  int32_t* routed_experts = nullptr;
  // Receives the router faults of the tokens that this rank routes. In the memory of the layer's
  // device.
  RouterFaults router_faults;
};

// Stateless between calls except for weights and placement. Used by the rank's thread only.
class MoeLayer {
 public:
  MoeLayer(MoeLayerConfig config, MoeLayerWeights weights, std::shared_ptr<MoeRuntime> runtime);

  // hidden, out [tokens of this rank's attention group, H], replicated over the ranks of the group
  // (out may not alias hidden). Every rank of the world calls, including those with empty groups.
  void Forward(const float* hidden, const MoeTokens& tokens, float* out,
               const MoeHooks& hooks = {}) const;

  // Switches to `placement`, with the same number of physical experts, from the next pass on;
  // `experts` are this rank's. Call it between the same two passes on every rank. With an
  // all-to-all backend the outputs stay bit-identical. Returns the previous experts.
  std::vector<OwnedExpert> SwitchPlacement(ExpertPlacement placement,
                                           std::vector<OwnedExpert> experts);
  const ExpertPlacement& placement() const { return config_.placement; }
  // Error kInvalid names --moe-runner-backend if it does not support the expert's format.
  void CheckFormats(const kernels::ExpertWeights& expert) const;
  // The `local`-th of this rank's routed experts. Safe from other threads unless SwitchPlacement
  // runs.
  OwnedExpert Expert(int local) const { return {weights_.experts[local], expert_owners_[local]}; }

  // A buffer into which the producer of `hidden` may write the same rows in the dispatch format,
  // which saves a conversion and a copy. At most once before each Forward, with the same tokens, on
  // every rank of a group or on none.
  struct InputBuffer {
    std::byte* rows = nullptr;  // contiguous; null: the layer converts the rows itself
    RowFormat format;
    Share tokens;  // the tokens of this rank's attention group to write
  };
  InputBuffer InputRows(const MoeTokens& tokens) const;

  // The stages; each leaves its outputs in the batch. Public for callers that interleave several
  // batches. Forward runs them in this order for each round of the batch. If one combine covers all
  // rounds, EndCombine does nothing before the last one.
  void Route(MoeBatch& batch) const;
  void BeginDispatch(MoeBatch& batch) const;
  void EndDispatch(MoeBatch& batch) const;
  void PrePermute(MoeBatch& batch) const;
  void RunExperts(MoeBatch& batch) const;
  void PostPermute(MoeBatch& batch) const;
  void BeginCombine(MoeBatch& batch) const;
  void EndCombine(MoeBatch& batch) const;
  // Before and after the rounds: gathers this rank's tokens; replicates all outputs over the group.
  void Gather(MoeBatch& batch) const;
  void Scatter(MoeBatch& batch) const;

 private:
  void RunBatch(MoeBatch& batch, const MoeHooks& hooks) const;
  void RunRound(MoeBatch& batch, const MoeHooks& hooks) const;
  void RunRoundFused(MoeBatch& batch, const MoeHooks& hooks) const;
  ExpertBlock Block() const;
  void ApplyPlacement();
  void StageInputRows(MoeBatch& batch) const;
  void MapToPhysical(MoeBatch& batch) const;
  void ComputeShared(MoeBatch& batch) const;
  OwnTokens OwnOf(const MoeBatch& batch) const;
  void StoreRouterFaults(MoeBatch& batch) const;
  void StoreRoutedExperts(MoeBatch& batch) const;
  void ReportRouting(const MoeBatch& batch) const;

  MoeLayerConfig config_;
  MoeLayerWeights weights_;
  std::shared_ptr<MoeRuntime> runtime_;
  std::vector<std::shared_ptr<const void>> expert_owners_;  // [routed experts of this rank]
  std::vector<int32_t> replicas_;  // [num_logical] physical expert that this rank sends to
};

}  // namespace switchyard
