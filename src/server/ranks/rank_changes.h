// Planned changes of the ranks of `serve`, and of their weights and memory. Checks a request and
// passes it to the supervisor.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/machine.h"
#include "server/front/elastic_ranks.h"
#include "server/front/rank_weights.h"
#include "server/ranks/new_weights.h"
#include "server/ranks/served_layout.h"
#include "server/ranks/supervisor.h"

namespace switchyard {

// Owned by `serve`, outlives the supervisor. Thread-safe.
class RankChanges : public ElasticRanks, public RankWeights {
 public:
  struct Options {
    std::string refusal;  // reason why the ranks cannot be changed; empty: changes are possible
    EngineConfig config;  // as at the start of the server; a change replaces its mesh or weights
    EnginePlan plan;      // as at the start of the server
    // The state of this machine before the ranks started. Each layout is planned for this memory,
    // because the previous layout frees its memory.
    Machine machine;
    std::vector<FileStamp> weights;  // the weight files, as at the start of the server
  };
  RankChanges(Options options, const ServedRanks& served, Front& front);
  void Control(Supervisor* supervisor) { supervisor_ = supervisor; }  // call before Scale

  LayoutSizes sizes() const override;
  ScaleState state() const override;
  SpareRanks spares() const override { return supervisor_->Spares(); }
  bool Scale(const ScaleRequest& request, std::function<void(const ScaleResult&)> done) override;
  // RankWeights (weight_changes.cc)
  WeightsState weights_state() const override;
  bool Update(const WeightUpdate& update, Done done) override;
  bool Release(MemoryTags tags, Done done) override;
  bool Resume(MemoryTags tags, Done done) override;

 private:
  EngineConfig ConfigOf(const MeshShape& mesh) const;
  // The layout at the time when a request is checked. It cannot change before the supervisor begins
  // the requested change.
  struct Present {
    MeshShape mesh, base;
    size_t bytes = 0;
    std::vector<FileStamp> weights;
  };
  // Error kInvalid if the layout is not valid, or if its cache is too small for open requests.
  EnginePlan PlanOf(const Machine& machine, const MeshShape& mesh) const;
  // No plan if the request is for the present layout. Requires change_mutex_.
  std::optional<EnginePlan> CheckedPlan(const ScaleRequest& request, const Present& present,
                                        MeshShape* next);
  const std::string& ValidWorlds(const Present& present);  // requires change_mutex_
  bool FitsBeside(const EnginePlan& plan, const MeshShape& next, const Present& present) const;
  PlannedChange RestartOf(const ScaleRequest& request, ScaleResult* result) const;
  PlannedChange SwitchTo(const ScaleRequest& request, const EnginePlan& plan,
                         const Present& present, ScaleResult* result) const;
  void End(const ChangeOutcome& outcome, const std::optional<EnginePlan>& plan,
           ScaleResult* result);
  bool StartWeights(const std::function<void()>& start);
  void AskPlacement(std::function<void()> begin, const Done& done);
  PlannedChange UpdateTo(const WeightUpdate& update, const NewWeights& weights);
  void BeginWeights(PlannedChange change, std::optional<NewWeights> weights, const Done& done);
  void EndWeights(const ChangeOutcome& outcome, const std::optional<NewWeights>& weights);

  const Options options_;
  const CheckpointConfig checkpoint_;  // of the weights; an update requires the same
  const ServedRanks& served_;
  Front& front_;
  Supervisor* supervisor_ = nullptr;

  // Held while a request is checked, so that one request is checked at a time. The check reads
  // files and computes many plans, so sizes() and state() do not take this lock. Lock order: before
  // mutex_.
  std::mutex change_mutex_;
  struct Worlds {
    Present of;
    std::string text;
  };
  std::optional<Worlds> worlds_;  // the last result of ValidWorlds; guarded by change_mutex_

  mutable std::mutex mutex_;  // guards the members below
  LayoutSizes sizes_;
  EnginePlan plan_;   // of the present ranks
  size_t bytes_ = 0;  // planned memory of the present ranks, without mapped weights
  MeshShape base_;    // the last layout that had several ranks; input of ScaledShape
  ScaleState state_;
  // The present weights: their checkpoint and format, and their files.
  std::filesystem::path model_path_;
  std::string load_format_;
  std::vector<FileStamp> weights_;
  std::shared_ptr<const OverlayCheckpoint> overlay_;  // of the present weights, or null
  bool changes_weights_ = false;  // a change of weights or memory is in progress
  MemoryTags released_;
  std::string location_;  // the last known placement of experts, as --init-expert-location
};

}  // namespace switchyard
