// A rank's draft model: its configuration, and its passes.
#pragma once

#include <filesystem>
#include <vector>

#include "engine/config.h"
#include "engine/kept_model.h"
#include "engine/speculative/model_drafter.h"
#include "engine/speculative/options.h"
#include "model/model.h"

namespace switchyard {

class StageLinks;

// The draft model's configuration, if the flags request one. `cuda`: the draft model runs on GPUs.
// Error kInvalid if the draft model does not fit the target.
std::optional<ModelConfig> ReadDraftConfig(const EngineConfig& config, const ModelConfig& target,
                                           bool cuda);
// CheckCheckpoint of the draft model, if the flags request one, before it is known whether ranks
// are on GPUs, which load only the first MTP layer.
void CheckDraftCheckpoint(const EngineConfig& config, const ModelConfig& target);
// LimitsOf, and at most one draft for each MTP layer if these draft one after another.
DraftLimits DraftLimitsOf(const EngineConfig& config, const std::optional<ModelConfig>& draft);
// The directory of the draft model's checkpoint.
std::filesystem::path DraftPath(const EngineConfig& config);
// Options of the draft model. `target`: the result of MakeModelOptions. The draft's MoE layers have
// separate backends (--speculative-moe-runner-backend, --speculative-moe-a2a-backend) and no
// replicas unless `experts` has some. Their routing is not recorded.
ModelOptions MakeDraftOptions(ModelOptions target, const DraftExperts& experts = {});
// The draft model's shard of a rank. `plan.draft` is set.
ModelShard DraftShard(const EngineConfig& config, const EnginePlan& plan, int rank);

// Owns the draft model and its cache; borrows the rest. `plan.draft` is set. `weights`: from an
// earlier epoch; null: they are loaded. Keeps them in `kept` for the next epoch. With pipeline
// stages, only the last one has a draft model, and `links` counts its work as progress.
class DraftModel : public DraftForward {
 public:
  DraftModel(const EngineConfig& config, const EnginePlan& plan, Model& target,
             profile::Profiler* profiler, RankComm& comm, ThreadPool& pool,
             std::shared_ptr<const ModelWeights> weights, KeptModel* kept,
             StageLinks* links = nullptr);

  std::span<const float> Forward(const ForwardBatch& batch) override;
  bool draws() const override { return model_.draws(); }
  std::span<const int32_t> drawn() const override { return model_.drawn(); }
  kernels::BestTokenRows best() const override { return model_.best(); }
  bool launches() const override { return model_.draws(); }
  void Launch(const ForwardBatch& batch) override;
  std::span<const int32_t> Collect() override;
  // Those of the last Forward (Model::routed_experts).
  std::span<const int32_t> routed_experts() const { return model_.routed_experts(); }
  int64_t vocab_size() const override { return model_.config().vocab_size; }
  int64_t logit_width() const override { return model_.config().output_width(); }
  int32_t TokenOf(int32_t index) const override {
    return vocabulary_.empty() ? index : vocabulary_[index];
  }
  bool takes_hidden() const override { return model_.config().takes_hidden(); }
  int64_t hidden_width() const override { return model_.config().target_row_width(); }
  int64_t depths() const override { return model_.config().mtp_depths; }
  const float* target_hidden() const override { return target_.hidden(); }
  const float* hidden() const override { return model_.hidden(); }
  void ReadTargetHidden(int64_t first_row, int64_t rows, float* to) override;
  const float* PlaceHidden(std::span<const float> rows) override;
  std::vector<int64_t> GatherCounts(std::span<const int64_t> mine) override;
  KvStorage& cache() { return kv_; }

 private:
  Model& target_;
  RankComm& comm_;
  Model model_;
  const std::vector<int32_t> vocabulary_;  // the token of each row of the head; empty: all tokens
  KvStorage kv_;
  int launched_ = 0;              // passes launched and not collected
  std::shared_ptr<void> placed_;  // hidden rows in device memory
  size_t placed_floats_ = 0;
};

}  // namespace switchyard
