#include "engine/kept_model.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/log.h"
#include "model/complete_options.h"
#include "model/weights/expert_loader.h"

namespace switchyard {
namespace {

constexpr int kMaxLoadThreads = 16;

LoadOptions LoadOptionsOf(const EngineConfig& config, const EnginePlan& plan, int rank) {
  LoadOptions load =
      CompleteOptions(plan.model, MakeModelOptions(config, plan, rank), config.mesh).load;
  load.threads = std::clamp(plan.threads_per_rank, 1, kMaxLoadThreads);
  return load;
}

// Weights with experts of their own memory.
struct ExtendedWeights {
  ModelWeights weights;
  std::vector<std::shared_ptr<const void>> owners;  // of biases
};

}  // namespace

void KeptModel::Load(const EngineConfig& config, const EnginePlan& plan, int rank) {
  if (weights_) return;
  weights_ = std::make_shared<const ModelWeights>(LoadWeights(
      config.model_path, plan.model, Mesh(config.mesh, rank), LoadOptionsOf(config, plan, rank)));
}

std::shared_ptr<const ModelWeights> KeptModel::WeightsOfActive(const ActiveLayout& layout, int rank,
                                                               const std::vector<int>& active,
                                                               const std::function<void()>& check) {
  CHECK(weights_ != nullptr);
  if (active_weights_ && active_ == active) return active_weights_;
  active_weights_.reset();
  const auto index = std::ranges::find(active, rank) - active.begin();
  const Mesh mesh(layout.config.mesh, static_cast<int>(index));
  const LoadOptions load = LoadOptionsOf(layout.config, layout.plan, mesh.rank());
  const ExpertLoader loader(layout.config.model_path, layout.plan.model, mesh, load);
  auto extended = std::make_shared<ExtendedWeights>(ExtendedWeights{*weights_, {}});
  int64_t loaded = 0;
  for (size_t layer = 0; layer < extended->weights.layers.size(); ++layer) {
    if (!layout.plan.model.layers[layer].moe) continue;
    std::vector<kernels::ExpertWeights>& experts = extended->weights.layers[layer].moe.experts;
    const ExpertPlacement& placement = load.placements[layer];
    const Range own = ExpertsOfRank(placement.num_physical(), mesh.ep(), mesh.ep_rank());
    const auto ids = placement.physical_to_logical().subspan(own.begin, own.size());
    CHECK_LE(experts.size(), ids.size());  // the kept experts come first
    while (experts.size() < ids.size()) {
      const int32_t id = ids[experts.size()];
      const auto same = std::ranges::find(ids.first(experts.size()), id) - ids.begin();
      if (same < std::ssize(experts)) {
        experts.push_back(kernels::ExpertWeights(experts[same]));
        continue;
      }
      check();
      OwnedExpert expert = loader.Load(static_cast<int64_t>(layer), id);
      experts.push_back(std::move(expert.weights));
      if (expert.owner) extended->owners.push_back(std::move(expert.owner));
      ++loaded;
    }
  }
  LOG_INFO("{} experts of absent ranks are loaded", loaded);
  active_ = active;
  active_weights_ = std::shared_ptr<const ModelWeights>(extended, &extended->weights);
  return active_weights_;
}

KvStorage KeptModel::Keep(Model& model, const EnginePlan& plan, int32_t page_size) {
  KvStorage kv = kv_ ? *kv_ : model.MakeCache(plan.num_pages, page_size, plan.kv_dtype);
  if (!weights_) weights_ = model.weights();
  if (weights_) kv_ = kv;
  return kv;
}

}  // namespace switchyard
