// A rank of `switchyard bench one-batch`.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "apps/one_batch.h"
#include "comm/device/communicator.h"
#include "core/parallel.h"
#include "engine/config.h"
#include "engine/cpu_binding.h"
#include "engine/expert_services.h"
#include "eplb/batch_replicas.h"
#include "model/model.h"
#include "profile/profiler.h"

namespace switchyard::one_batch {

// What a rank's model needs, then the model. Constructed, used and destroyed by the rank's thread,
// with other ranks in other threads of the process. Borrows `config` and `plan`.
class Rank {
 public:
  Rank(const EngineConfig& config, const EnginePlan& plan, int rank,
       std::shared_ptr<SharedArena> arena)
      : config_(config),
        plan_(plan),
        comm_(RankComm::Create(std::move(arena), config.mesh, rank)),
        binding_(BindRank(config, plan, *comm_->tp)),
        pool_(binding_.threads, binding_.cpus),
        experts_(config, plan, plan, *comm_),
        profiler_(rank, comm_->mesh.Title()),
        options_(MakeModelOptions(config, plan, rank)) {
    experts_.AddTo(&options_);
    options_.profiler = &profiler_;
    if (parts() == nullptr) return;
    std::vector<RoutingObserver*> all = {&parts_};
    if (options_.observer) all.push_back(options_.observer);
    observers_.emplace(std::move(all));
    options_.observer = &*observers_;
  }

  RankComm& comm() { return *comm_; }
  ThreadPool& pool() { return pool_; }
  const ExpertServices& experts() const { return experts_; }
  profile::Profiler& profiler() { return profiler_; }
  // The times of MoE layers, on a rank with experts only; null on other ranks.
  LayerParts* parts() { return comm_->mesh.attends() ? nullptr : &parts_; }

  // Of the model, to be changed before Load.
  ModelOptions& options() { return options_; }
  // Loads the model. Called once.
  Model& Load() {
    return model_.emplace(config_.model_path, plan_.ModelOf(config_.mesh, comm_->mesh.rank()),
                          std::move(options_), *comm_, pool_);
  }
  // The cache and the recurrent states of the loaded model.
  KvStorage MakeCache() {
    KvStorage kv = model_->MakeCache(plan_.num_pages, config_.page_size, plan_.kv_dtype);
    kv.SetStates(model_->MakeStates(plan_.num_states));
    return kv;
  }

 private:
  const EngineConfig& config_;
  const EnginePlan& plan_;
  const std::unique_ptr<RankComm> comm_;
  const CpuBinding binding_;
  ThreadPool pool_;
  const ExpertServices experts_;
  profile::Profiler profiler_;
  LayerParts parts_;
  std::optional<Observers> observers_;
  ModelOptions options_;
  std::optional<Model> model_;
};

}  // namespace switchyard::one_batch
