#include "engine/kept_model.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "core/check.h"
#include "core/log.h"
#include "model/complete_options.h"
#include "model/weights/expert_loader.h"
#include "moe/placement/movable_experts.h"

namespace switchyard {
namespace {

constexpr int kMaxLoadThreads = 16;

// The logical experts of the rank's physical experts.
std::span<const int32_t> ExpertsOf(const ExpertPlacement& placement, const Mesh& mesh) {
  const Range own = ExpertsOfRank(placement.num_physical(), mesh);
  return placement.physical_to_logical().subspan(own.begin, own.size());
}

std::span<const int32_t> ExpertsOf(const ModelShard& shard, size_t layer) {
  return ExpertsOf(shard.load.placements[layer], shard.mesh);
}

// Loads experts that the rank does not have. Opens the checkpoint when the first one is needed.
class MissingExperts {
 public:
  MissingExperts(const ModelShard& shard, const KeptModel::Check& check)
      : shard_(shard), check_(check) {}
  ~MissingExperts() {
    if (loaded_ > 0) LOG_INFO("{} experts are loaded for the next epoch", loaded_);
  }

  OwnedExpert Load(size_t layer, int32_t expert) {
    check_();
    if (!loader_) loader_.emplace(shard_.dir, shard_.config, shard_.mesh, shard_.load);
    ++loaded_;
    return loader_->Load(static_cast<int64_t>(layer), expert);
  }

 private:
  const ModelShard& shard_;
  const KeptModel::Check& check_;
  std::optional<ExpertLoader> loader_;
  int64_t loaded_ = 0;
};

// Sets the experts of a layer to those of `ids`. Takes them from `held`, and adds missing ones to
// it.
void Fill(size_t layer, std::span<const int32_t> ids, MissingExperts& missing,
          std::map<int32_t, OwnedExpert>* held, MoeLayerWeights* moe) {
  moe->experts.clear();
  moe->owners.clear();
  for (const int32_t id : ids) {
    auto found = held->find(id);
    if (found == held->end()) found = held->emplace(id, missing.Load(layer, id)).first;
    moe->experts.push_back(found->second.weights);
    moe->owners.push_back(found->second.owner);
  }
}

}  // namespace

ModelShard::ModelShard(std::filesystem::path path, ModelConfig model, const ModelOptions& options,
                       const EngineConfig& engine, const EnginePlan& plan, int rank)
    : dir(std::move(path)),
      config(std::move(model)),
      mesh(engine.mesh, rank),
      load(CompleteOptions(config, options, engine.mesh).load),
      movable(options.movable_experts) {
  load.threads = std::clamp(plan.threads_per_rank, 1, kMaxLoadThreads);
}

ModelShard TargetShard(const EngineConfig& config, const EnginePlan& plan, int rank) {
  return {config.model_path,
          plan.ModelOf(config.mesh, rank),
          MakeModelOptions(config, plan, rank),
          config,
          plan,
          rank};
}

void KeptModel::Load(const ModelShard& shard, std::function<void(size_t, size_t)> progress,
                     const CommonWeights* common) {
  if (weights_) return;
  LoadOptions load = shard.load;
  load.progress = std::move(progress);
  ModelWeights weights = common ? common->Load(shard.mesh, load)
                                : LoadWeights(shard.dir, shard.config, shard.mesh, load);
  moves_ = shard.movable;
  held_.assign(moves_ ? weights.layers.size() : 0, {});
  for (size_t layer = 0; layer < held_.size(); ++layer) {
    if (!shard.config.layers[layer].moe) continue;
    std::vector<kernels::ExpertWeights> experts =
        std::exchange(weights.layers[layer].moe.experts, {});
    const auto ids = ExpertsOf(shard, layer);
    CHECK_EQ(experts.size(), ids.size());
    for (size_t i = 0; i < ids.size(); ++i)
      held_[layer].try_emplace(ids[i], OwnedExpert{.weights = std::move(experts[i])});
  }
  weights_ = std::make_shared<const ModelWeights>(std::move(weights));
}

// At most one layer has experts of both placements in memory at the same time.
std::shared_ptr<const ModelWeights> KeptModel::Arrange(const ModelShard& shard,
                                                       const Check& check) {
  auto weights = std::make_shared<ModelWeights>(*weights_);
  MissingExperts missing(shard, check);
  held_.resize(weights->layers.size());
  for (size_t layer = 0; layer < held_.size(); ++layer) {
    if (!shard.config.layers[layer].moe) continue;
    const auto ids = ExpertsOf(shard, layer);
    Fill(layer, ids, missing, &held_[layer], &weights->layers[layer].moe);
    std::erase_if(held_[layer], [&](const auto& expert) {
      return std::ranges::find(ids, expert.first) == ids.end();
    });
  }
  return weights;
}

std::shared_ptr<const ModelWeights> KeptModel::Weights(const ModelShard& shard,
                                                       const Check& check) {
  active_weights_.reset();
  return weights_ && moves_ ? Arrange(shard, check) : weights_;
}

std::shared_ptr<const ModelWeights> KeptModel::WeightsOfActive(const ModelShard& shard,
                                                               const std::vector<int>& active,
                                                               const Check& check) {
  CHECK(weights_ != nullptr);
  if (moves_) return Arrange(shard, check);
  if (active_weights_ && active_ == active) return active_weights_;
  active_weights_.reset();
  auto weights = std::make_shared<ModelWeights>(*weights_);
  MissingExperts missing(shard, check);
  for (size_t layer = 0; layer < weights->layers.size(); ++layer) {
    if (!shard.config.layers[layer].moe) continue;
    MoeLayerWeights& moe = weights->layers[layer].moe;
    const auto ids = ExpertsOf(shard, layer);
    CHECK_LE(moe.experts.size(), ids.size());  // the kept experts come first
    Held held;
    for (size_t i = 0; i < moe.experts.size(); ++i)
      held.try_emplace(ids[i], OwnedExpert{.weights = moe.experts[i]});
    Fill(layer, ids, missing, &held, &moe);
  }
  active_ = active;
  active_weights_ = weights;
  return weights;
}

KvStorage KeptModel::Keep(Model& model, const EnginePlan& plan, int32_t page_size) {
  KvStorage kv = kv_ ? *kv_ : model.MakeCache(plan.num_pages, page_size, plan.kv_dtype);
  if (!weights_) {
    weights_ = model.weights();
    moves_ = model.movable_experts() != nullptr;
  }
  if (weights_) kv_ = kv;
  return kv;
}

void KeptModel::Take(Model& model, const Mesh& mesh) {
  const MovableExperts& experts = *model.movable_experts();
  held_.assign(static_cast<size_t>(model.config().num_layers()), {});
  for (const int layer : experts.layers()) {
    const auto ids = ExpertsOf(experts.PlacementOf(layer), mesh);
    for (size_t i = 0; i < ids.size(); ++i)
      held_[layer].try_emplace(ids[i], experts.Held(layer, static_cast<int>(i)));
  }
}

KeptModel::Lent::Lent(KeptModel& kept, Model& model, const Mesh& mesh)
    : kept_(kept), model_(model), mesh_(mesh) {
  if (model.movable_experts()) kept.held_.clear();
}

KeptModel::Lent::~Lent() {
  if (!kept_.weights_ || !model_.movable_experts()) return;
  try {
    kept_.Take(model_, mesh_);
  } catch (const std::exception& error) {  // too little memory: the rank loads again
    LOG_WARNING("the rank's weights cannot be kept: {}", error.what());
    kept_.held_.clear();
    kept_.weights_.reset();
  }
}

}  // namespace switchyard
