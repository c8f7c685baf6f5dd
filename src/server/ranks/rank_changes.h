// Planned changes of the ranks of `serve`: checks a request, and gives it to the supervisor.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "engine/machine.h"
#include "server/front/elastic_ranks.h"
#include "server/ranks/served_layout.h"
#include "server/ranks/supervisor.h"

namespace switchyard {

// Owned by `serve`, outlives the supervisor. Thread-safe.
class RankChanges : public ElasticRanks {
 public:
  struct Options {
    std::string refusal;  // why the ranks cannot be changed; empty: they can
    EngineConfig config;  // of the start of the server; a change replaces its mesh only
    EnginePlan plan;      // of the start of the server
    // This machine before the ranks started. Layouts that replace each other have the same memory.
    Machine machine;
  };
  RankChanges(Options options, const ServedRanks& served);
  void Control(Supervisor* supervisor) { supervisor_ = supervisor; }  // call before Scale

  LayoutSizes sizes() const override;
  ScaleState state() const override;
  bool Scale(const ScaleRequest& request, std::function<void(const ScaleResult&)> done) override;

 private:
  EngineConfig ConfigOf(const MeshShape& mesh) const;
  // The layout when a request is checked. It stays until the supervisor begins the change.
  struct Present {
    MeshShape mesh, base;
    size_t bytes = 0;
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

  const Options options_;
  const ServedRanks& served_;
  Supervisor* supervisor_ = nullptr;

  // One request is checked at a time. Taken before mutex_. Held during access to files and for many
  // plans, so sizes() and state() do not take it.
  std::mutex change_mutex_;
  struct Worlds {
    Present of;
    std::string text;
  };
  std::optional<Worlds> worlds_;  // the last result of ValidWorlds; guarded by change_mutex_

  mutable std::mutex mutex_;  // guards the members below
  LayoutSizes sizes_;
  size_t bytes_ = 0;  // memory that the present ranks have by plan, without mapped weights
  MeshShape base_;    // the last layout with several ranks, for ScaledShape
  ScaleState state_;
};

}  // namespace switchyard
