// Who watches, moves and divides over replicas the experts of a rank's model.
#pragma once

#include <memory>
#include <vector>

#include "engine/config.h"
#include "engine/request.h"
#include "eplb/batch_replicas.h"
#include "eplb/manager.h"
#include "eplb/observers.h"
#include "eplb/recorder.h"

namespace switchyard {

// Hosts that hold as many consecutive EP ranks each; 1 where they hold unequal parts.
int NodesOfExperts(const EngineConfig& config, const EnginePlan& plan);

// What a manager of such experts is made with.
EplbShape EplbShapeOf(const EngineConfig& config, const EnginePlan& plan);

// What the flags ask for; null where they do not. One per rank, outlives its model; borrows `comm`.
struct ExpertWork {
  ExpertWork(const EngineConfig& config, const EnginePlan& plan, RankComm& comm);
  // What a model is built with.
  void AddTo(ModelOptions* options) const;

  std::unique_ptr<ExpertRecorder> recorder;
  std::unique_ptr<EplbManager> manager;
  std::unique_ptr<BatchReplicas> replicas;
  std::unique_ptr<Observers> observers;

  // While it lives, the manager moves the model's experts.
  class Attached {
   public:
    Attached(const ExpertWork& work, Model& model) : manager_(work.manager.get()) {
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

// What `eplb` answers to those of `messages` that are for it, on rank 0; others answer nothing, but
// do as they are told. Null: it refuses.
std::vector<EngineMessage> ApplyToEplb(const std::vector<ControlMessage>& messages,
                                       EplbManager* eplb, bool is_leader);

}  // namespace switchyard
