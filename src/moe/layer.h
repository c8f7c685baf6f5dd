// One MoE layer on one rank: router → dispatch → pre-permute → grouped GEMM → post-permute →
// combine.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/device/communicator.h"
#include "core/dtype.h"
#include "core/parallel.h"
#include "kernels/ops.h"
#include "moe/router.h"

namespace switchyard {

// `--moe-a2a-backend`, `--deepep-mode` and what goes with them; the same for all layers of a model.
struct MoeOptions {
  std::string a2a_backend = "none";  // none | deepep
  std::string deepep_mode = "auto";  // normal | low_latency | auto
  std::string runner_backend = "auto";
  // Capacity of low_latency (`--num-max-dispatch-tokens-per-rank`).
  int max_dispatch_tokens_per_rank = 128;
  DType row_dtype = DType::kF32;  // of token rows in flight: the model's dtype
};

// What all layers of one rank share: groups, threads, dispatchers with their symmetric buffers and
// scratch. Built once per model on every rank in the same order (it allocates symmetrically);
// layers point to it.
class MoeRuntime;
struct MoeBatch;  // one batch on its way through a layer

struct MoeShape {
  int64_t hidden = 0;
  int64_t intermediate = 0;  // of a routed expert, whole (before MoE-TP)
  int num_experts = 0, top_k = 0;
  int64_t max_tokens = 0;  // most rows of one forward pass
};

std::shared_ptr<MoeRuntime> MakeMoeRuntime(const MoeOptions& options, const MoeShape& shape,
                                           RankComm& comm, ThreadPool& pool);
// Bytes of symmetric memory the runtime will allocate on each rank, to size the arena before ranks
// start.
size_t MoeSymmetricBytes(const MoeOptions& options, const MoeShape& shape, const MeshShape& mesh);

// Logical experts [begin, end) sit on EP rank `ep_rank`: contiguous runs whose lengths differ by at
// most one.
struct ExpertRange {
  int begin = 0, end = 0;
};
ExpertRange ExpertsOfRank(int num_experts, int ep, int ep_rank);

struct MoeLayerConfig {
  int64_t hidden = 0;
  RouterConfig router;
  kernels::Activation activation = kernels::Activation::kSwiGlu;
  float swiglu_alpha = 1.702f, swiglu_limit = 7.0f;
};

// Views of the checkpoint; this rank's share.
struct MoeLayerWeights {
  RouterWeights router;  // whole on every rank
  // ExpertsOfRank(...), each the MoE-TP slice of its I.
  std::vector<kernels::ExpertWeights> experts;
  // The shared expert, if any. With a2a backends it works on the rank's own tokens, so it is whole
  // on every rank; with `none` it is the rank's TP slice and joins the same all-reduce.
  bool has_shared = false;
  kernels::ExpertWeights shared;
  WeightView shared_gate;  // [1, H], sigmoid; undefined: no gate
};

// Stateless between calls but for its weights; the rank's thread calls it.
class MoeLayer {
 public:
  MoeLayer(MoeLayerConfig config, MoeLayerWeights weights, std::shared_ptr<MoeRuntime> runtime);

  // hidden, out [tokens, H], the same on every rank of the TP group before and after (out may not
  // alias hidden). `decode`: every sequence has one row, which `auto` sends by low_latency.
  void Forward(const float* hidden, int64_t tokens, bool decode, float* out) const;

 private:
  // The stages, each leaving in the batch what the next one takes.
  void Route(MoeBatch& batch) const;
  void Dispatch(MoeBatch& batch) const;
  void PrePermute(MoeBatch& batch) const;
  void RunExperts(MoeBatch& batch) const;
  void PostPermute(MoeBatch& batch) const;
  void Combine(MoeBatch& batch) const;
  void AddShared(MoeBatch& batch) const;

  MoeLayerConfig config_;
  MoeLayerWeights weights_;
  std::shared_ptr<MoeRuntime> runtime_;
};

}  // namespace switchyard
