// What a rank keeps of a model from one epoch to the next.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/config.h"
#include "model/model.h"
#include "model/weights/common_weights.h"

namespace switchyard {

// The part of a model that a rank of a layout loads: of the target, or of the draft model
// (DraftShard). Plain value.
struct ModelShard {
  // `options`: of MakeModelOptions or MakeDraftOptions, on a CPU.
  ModelShard(std::filesystem::path path, ModelConfig model, const ModelOptions& options,
             const EngineConfig& config, const EnginePlan& plan, int rank);

  std::filesystem::path dir;
  ModelConfig config;
  Mesh mesh;
  LoadOptions load;
  bool movable = false;  // ModelOptions::movable_experts
};
ModelShard TargetShard(const EngineConfig& config, const EnginePlan& plan, int rank);

// Empty in the first epoch. Stays empty on GPUs. Owned by the rank's loop; outlives the model. Used
// by the rank's thread.
//
// If experts move (--enable-eplb), the model owns the experts during an epoch, so that memory of
// experts that have left the rank is free. At the end of the epoch, Lent returns the experts that
// the rank has then. The next epoch may begin with another placement: it takes those experts, and
// loads the others.
class KeptModel {
 public:
  // Called before each expert is loaded. May throw.
  using Check = std::function<void()>;

  bool has_weights() const { return weights_ != nullptr; }
  // Loads the weights to keep, without other ranks, unless there are any. `progress`: of
  // LoadOptions. `common`: weights of the same model that are loaded already; null: none are.
  void Load(const ModelShard& shard, std::function<void(size_t done, size_t total)> progress = {},
            const CommonWeights* common = nullptr);
  // The weights of an epoch with all ranks, for ModelOptions::weights; null: none are kept. Frees
  // the experts of other epochs.
  std::shared_ptr<const ModelWeights> Weights(const ModelShard& shard, const Check& check);
  // The weights of an epoch with the ranks `active` only, of which `shard` is a rank: the kept
  // weights, and the experts that the rank has in this layout only. Unless experts move, these are
  // loaded once per set of ranks. Requires kept weights.
  std::shared_ptr<const ModelWeights> WeightsOfActive(const ModelShard& shard,
                                                      const std::vector<int>& active,
                                                      const Check& check);
  // Sets the cache that Keep returns.
  void Use(const KvStorage& kv) { kv_ = kv; }
  // Returns the cache for `model`: the cache set by Use, else the cache kept from the last epoch,
  // else a new one. Keeps this cache and the weights of `model` for the next epoch, unless there
  // are kept weights, or the model has none to keep.
  KvStorage Keep(Model& model, const EnginePlan& plan, int32_t page_size);

  // During the lifetime of this object, `model` owns the experts if they move. It is destroyed on
  // the rank's thread before `model`, when no expert moves any more.
  class Lent {
   public:
    Lent(KeptModel& kept, Model& model, const Mesh& mesh);
    ~Lent();
    Lent(const Lent&) = delete;
    Lent& operator=(const Lent&) = delete;

   private:
    KeptModel& kept_;
    Model& model_;
    const Mesh mesh_;
  };

 private:
  using Held = std::map<int32_t, OwnedExpert>;  // by logical expert; replicas share one

  std::shared_ptr<const ModelWeights> Arrange(const ModelShard& shard, const Check& check);
  void Take(Model& model, const Mesh& mesh);

  std::shared_ptr<const ModelWeights> weights_;  // without experts if they move
  bool moves_ = false;                           // experts move
  std::vector<Held> held_;                       // [layers] the experts, if they move
  // Unless experts move: the weights of the last epoch without some ranks, and its ranks.
  std::shared_ptr<const ModelWeights> active_weights_;
  std::vector<int> active_;
  std::optional<KvStorage> kv_;
};

}  // namespace switchyard
