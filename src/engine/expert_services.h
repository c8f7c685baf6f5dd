// Recording, rebalancing and replica selection of the experts of a rank's model.
#pragma once

#include <memory>
#include <vector>

#include "engine/config.h"
#include "engine/request.h"
#include "eplb/batch_replicas.h"
#include "eplb/manager.h"
#include "eplb/recorder.h"

namespace switchyard {

// The number of hosts if each holds the same number of consecutive EP ranks, else 1.
int NumExpertNodes(const EngineConfig& config, const EnginePlan& plan);

// --eplb-rank-costs.
std::vector<RankCost> RankCostsOf(const EngineConfig& config);

// The shape for the constructor of EplbManager.
EplbShape EplbShapeOf(const EngineConfig& config, const EnginePlan& plan);

// The components that the flags enable; the other members are null. Each rank has one object, which
// outlives the rank's model and borrows `comm`.
struct ExpertServices {
  // `plan`: of this rank's pipeline stage. `whole`: of all stages; the same with one stage.
  ExpertServices(const EngineConfig& config, const EnginePlan& plan, const EnginePlan& whole,
                 RankComm& comm);
  // Adds the components to the model's options.
  void AddTo(ModelOptions* options) const;

  std::unique_ptr<ExpertRecorder> recorder;
  std::unique_ptr<EplbManager> manager;
  std::unique_ptr<BatchReplicas> replicas;
  std::unique_ptr<Observers> observers;

  // During the lifetime of this object, the manager moves the model's experts.
  class Attached {
   public:
    Attached(const ExpertServices& work, Model& model) : manager_(work.manager.get()) {
      if (manager_) manager_->Attach(model.movable_experts());
    }
    ~Attached() {
      if (manager_) manager_->Detach();
    }
    Attached(const Attached&) = delete;

   private:
    EplbManager* const manager_;
  };
};

// Applies the messages for the recorder. Returns the answers on rank 0 and nothing on other ranks.
// Collective.
std::vector<EngineMessage> ApplyToRecorder(const std::vector<ControlMessage>& messages,
                                           ExpertRecorder* recorder, bool is_leader);

// Applies the messages for EPLB, on every rank. Returns the answers on rank 0 and nothing on other
// ranks. If `eplb` is null, the answers are refusals.
std::vector<EngineMessage> ApplyToEplb(const std::vector<ControlMessage>& messages,
                                       EplbManager* eplb, bool is_leader);

}  // namespace switchyard
