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
  int layer = 0;              // its number in the model, for who observes
};

// Views of the checkpoint; this rank's share.
struct MoeLayerWeights {
  RouterWeights router;  // whole on every rank
  // The physical experts of ExpertsOfRank(...), each the MoE-TP slice of its I.
  std::vector<kernels::ExpertWeights> experts;
  // The shared expert, if any: whole on every rank where ranks have tokens of their own
  // (ScattersTokens), else the rank's TP slice, which joins the same all-reduce.
  bool has_shared = false;
  kernels::ExpertWeights shared;
  WeightView shared_gate;  // [1, H], sigmoid; undefined: no gate
};

// An expert's share and what its biases lie in, where they are no part of a view's owner.
struct OwnedExpert {
  kernels::ExpertWeights weights;
  std::shared_ptr<const void> owner;
};

constexpr int32_t kFaultLayer = 65536;  // of MoeTokens::router_faults

// The rows of one pass, as every rank knows them.
struct MoeTokens {
  // [dp] rows of each attention group, and how many of them, the first ones, are the one new row of
  // their sequence (decode). Groups may have none.
  std::span<const int64_t> group_tokens;
  std::span<const int64_t> group_decode_tokens;
  // [tokens of this group, top_k] gets the logical experts of every token, −1 for none, on every
  // rank of the group; or null.
  int32_t* routed_experts = nullptr;
  // [tokens of this group] gets, where it is -1, layer * kFaultLayer + expert of a token's first
  // router score that is not finite. This rank's tokens alone; or null.
  int32_t* router_faults = nullptr;
};

// Stateless between calls but for its weights and where they sit; the rank's thread calls it.
class MoeLayer {
 public:
  MoeLayer(MoeLayerConfig config, MoeLayerWeights weights, std::shared_ptr<MoeRuntime> runtime);

  // hidden, out [tokens of this rank's attention group, H], the same on every rank of the group
  // before and after (out may not alias hidden). Every rank of the world calls, with empty groups
  // too.
  void Forward(const float* hidden, const MoeTokens& tokens, float* out,
               const MoeHooks& hooks = {}) const;

  // From the next pass on experts sit as `placement` says, which has as many places; `experts` are
  // this rank's. Between two passes, before the same one on every rank. With an all-to-all no bit
  // of an output changes. Returns the experts that it had.
  std::vector<OwnedExpert> SwitchPlacement(ExpertPlacement placement,
                                           std::vector<OwnedExpert> experts);
  const ExpertPlacement& placement() const { return config_.placement; }
  // Error kInvalid names --moe-runner-backend where it does not compute with such experts.
  void CheckFormats(const kernels::ExpertWeights& expert) const;
  // The `local`-th of this rank's routed experts. Other threads may ask too, while nothing
  // switches.
  OwnedExpert Expert(int local) const { return {weights_.experts[local], expert_owners_[local]}; }

  // Where a caller that makes `hidden` may leave the same rows as they travel, so that nobody has
  // to convert and copy them: at most once before each Forward, with the same tokens, on every rank
  // or on none of a group's.
  struct InputPlace {
    std::byte* rows = nullptr;  // row after row; null: the layer converts them itself
    RowFormat format;
    Share tokens;  // of this rank's attention group: whose rows are wanted
  };
  InputPlace InputRows(const MoeTokens& tokens) const;

  // The stages, each leaving in the batch what the next one takes. For whoever interleaves several
  // batches; Forward is these, in this order, for each round of the batch.
  void Route(MoeBatch& batch) const;
  void BeginDispatch(MoeBatch& batch) const;
  void EndDispatch(MoeBatch& batch) const;
  void PrePermute(MoeBatch& batch) const;
  void RunExperts(MoeBatch& batch) const;
  void PostPermute(MoeBatch& batch) const;
  void BeginCombine(MoeBatch& batch) const;
  void EndCombine(MoeBatch& batch) const;
  // Around the rounds: lays out this rank's tokens, and gives every rank of the group all outputs.
  void Gather(MoeBatch& batch) const;
  void Scatter(MoeBatch& batch) const;

 private:
  void RunBatch(MoeBatch& batch, const MoeHooks& hooks) const;
  void RunRound(MoeBatch& batch, const MoeHooks& hooks) const;
  void RunRoundFused(MoeBatch& batch, const MoeHooks& hooks) const;
  ExpertBlock Block() const;
  void TakePlacement();
  void PlaceRows(MoeBatch& batch) const;
  void ChooseExperts(MoeBatch& batch) const;
  void ComputeShared(MoeBatch& batch) const;
  // The tokens of a round that this rank routes for its group: among the round's, and where they
  // begin among the group's.
  struct OwnTokens {
    Share in_round;
    int64_t in_group = 0;
  };
  OwnTokens OwnOf(const MoeBatch& batch) const;
  void KeepRouterFaults(MoeBatch& batch) const;
  void KeepRoutedExperts(MoeBatch& batch) const;
  void TellObserver(const MoeBatch& batch) const;

  MoeLayerConfig config_;
  MoeLayerWeights weights_;
  std::shared_ptr<MoeRuntime> runtime_;
  std::vector<std::shared_ptr<const void>> expert_owners_;  // [routed experts of this rank]
  std::vector<int32_t> replicas_;  // [num_logical] physical experts that this rank sends to
};

}  // namespace switchyard
