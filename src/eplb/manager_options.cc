#include "eplb/manager_options.h"

#include <algorithm>

#include "core/error.h"
#include "eplb/planner.h"
#include "eplb/rank_flags.h"
#include "eplb/replica_choice.h"

namespace switchyard {

void Validate(const EplbOptions& options) {
  ParseEplbAlgorithm(options.algorithm);
  const EpDispatchAlgorithm dispatch = ParseEpDispatchAlgorithm(options.dispatch);
  if (!ParseRankCosts("--eplb-rank-costs", options.rank_costs).empty() &&
      dispatch == EpDispatchAlgorithm::kLp)
    throw Invalid(
        "--ep-dispatch-algorithm lp divides rows over equal ranks; want balanced with "
        "--eplb-rank-costs");
  if (options.num_iterations < 1)
    throw Invalid("--eplb-rebalance-num-iterations {}: want at least 1", options.num_iterations);
  if (options.layers_per_chunk < -1 || options.layers_per_chunk == 0)
    throw Invalid("--eplb-rebalance-layers-per-chunk {}: want at least 1, or -1 for all layers",
                  options.layers_per_chunk);
  if (!(options.min_utilization >= 0 && options.min_utilization <= 1))
    throw Invalid("--eplb-min-rebalancing-utilization-threshold {}: want 0 to 1",
                  options.min_utilization);
  if (!(options.watchdog_seconds > 0))
    throw Invalid("--eplb-watchdog-timeout {}: want more than 0 seconds", options.watchdog_seconds);
}

std::string PlannerFor(const EplbOptions& options, int places, int ranks, bool equal_ranks) {
  if (ParseEplbAlgorithm(options.algorithm) != EplbAlgorithm::kAuto) return options.algorithm;
  const EpDispatchAlgorithm dispatch = ParseEpDispatchAlgorithm(options.dispatch);
  const bool divides =
      dispatch == EpDispatchAlgorithm::kBalanced || dispatch == EpDispatchAlgorithm::kLp;
  return divides || !equal_ranks || places % ranks != 0 ? "yard" : "deepseek";
}

const char* Name(EplbState state) {
  switch (state) {
    case EplbState::kIdle:
      return "idle";
    case EplbState::kPlanning:
      return "planning";
    case EplbState::kAgreed:
      return "agreed";
    case EplbState::kMoving:
      return "moving";
    case EplbState::kStopping:
      return "stopping";
    case EplbState::kDone:
      return "done";
  }
  return "";
}

namespace {

bool IsBusy(EplbState state) { return state != EplbState::kIdle && state != EplbState::kDone; }

// The mean over MoE layers of the stages that have a value.
template <typename Member>
std::optional<double> MeanOf(const std::vector<EplbStageStatus>& stages, Member member) {
  double sum = 0;
  int64_t layers = 0;
  for (const EplbStageStatus& stage : stages) {
    const std::optional<double>& value = stage.status.*member;
    if (!value || stage.moe_layers == 0) continue;
    sum += *value * stage.moe_layers;
    layers += stage.moe_layers;
  }
  if (layers == 0) return std::nullopt;
  return sum / static_cast<double>(layers);
}

// "stage 0: TEXT; stage 2: TEXT"; empty if no stage has a text.
std::string JoinTexts(const std::vector<EplbStageStatus>& stages, std::string EplbStatus::*text) {
  std::string joined;
  for (size_t i = 0; i < stages.size(); ++i) {
    const std::string& one = stages[i].status.*text;
    if (one.empty()) continue;
    joined += fmt::format("{}stage {}: {}", joined.empty() ? "" : "; ", i, one);
  }
  return joined;
}

void AddCounts(EplbStatus& all, const EplbStatus& s) {
  all.passes = std::max(all.passes, s.passes);
  all.layers_done += s.layers_done;
  all.layers_to_move += s.layers_to_move;
  all.fills.resize(std::max(all.fills.size(), s.fills.size()));
  for (size_t i = 0; i < s.fills.size(); ++i) all.fills[i] += s.fills[i];
  all.transfer_batches = std::max(all.transfer_batches, s.transfer_batches);
  all.plan_seconds = std::max(all.plan_seconds, s.plan_seconds);
  all.move_seconds = std::max(all.move_seconds, s.move_seconds);
  all.longest_switch_seconds = std::max(all.longest_switch_seconds, s.longest_switch_seconds);
  all.move_passes = std::max(all.move_passes, s.move_passes);
  all.plans += s.plans;
  all.rebalances += s.rebalances;
  all.layers_moved += s.layers_moved;
  all.experts_loaded += s.experts_loaded;
  all.experts_received += s.experts_received;
  all.failures += s.failures;
  all.watchdog_resets += s.watchdog_resets;
}

}  // namespace

EplbStatus MergedStatus(const std::vector<EplbStageStatus>& stages) {
  EplbStatus all;
  int32_t first_layer = 0;
  for (const EplbStageStatus& stage : stages) {
    const EplbStatus& s = stage.status;
    if (stage.moe_layers > 0) {
      AddCounts(all, s);
      const bool shows = IsBusy(s.state) ? !IsBusy(all.state) : all.state == EplbState::kIdle;
      if (shows) {
        all.state = s.state;
        all.trigger = s.trigger;
        all.layer = s.layer < 0 ? -1 : first_layer + s.layer;
      }
    }
    first_layer += stage.layers;
  }
  all.balancedness = MeanOf(stages, &EplbStatus::balancedness);
  all.planned_at = MeanOf(stages, &EplbStatus::planned_at);
  all.last_result = JoinTexts(stages, &EplbStatus::last_result);
  all.last_failure = JoinTexts(stages, &EplbStatus::last_failure);
  return all;
}

}  // namespace switchyard
