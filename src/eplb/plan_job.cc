#include "eplb/plan_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/log.h"
#include "eplb/rank_times.h"

namespace switchyard {
namespace {

constexpr double kNodePrice = 4;   // as YardOptions::node_price
constexpr double kMinGain = 0.01;  // as YardOptions::least_gain

// The highest cost of a row.
double SlowestRow(const RankTopology& topology, int physical) {
  double row = 0;
  for (const RankSlots& slots : LivingSlots(topology, physical))
    row = std::max(row, topology.CostOf(slots.rank).row);
  return row;
}

// Rows of the most loaded rank in each step, summed over the steps. For ranks with costs: the time
// of the slowest rank, in rows of the rank with the highest cost of a row.
double MaxRankRows(const LoadHistory& history, int layer, EpDispatchAlgorithm dispatch,
                   const RankTopology& topology, const Placement& placement) {
  const ExpertLocation location(placement);
  BatchDivider divider;
  divider.Reset(dispatch, location, layer, topology);
  std::vector<int32_t> shares(placement.physical);
  const std::vector<RankSlots> living = LivingSlots(topology, placement.physical);
  const double row = SlowestRow(topology, placement.physical);
  double sum = 0;
  for (int step = 0; step < history.steps; ++step) {
    divider.Divide(history.At(step, layer), shares);
    sum += std::ranges::max(RankTimes(shares, history.passes, living, topology)) / row;
  }
  return sum;
}

}  // namespace

int ResetLayersNotWorthMoving(const LoadHistory& history, int64_t passes,
                              EpDispatchAlgorithm dispatch, const RankTopology& topology,
                              const Placement& previous, Placement* plan) {
  CHECK(history.layers == plan->layers && history.experts == plan->logical);
  if (dispatch == EpDispatchAlgorithm::kFake) return 0;
  // Evaluates kLp as kBalanced, which is faster and has nearly equal results.
  if (dispatch == EpDispatchAlgorithm::kLp) dispatch = EpDispatchAlgorithm::kBalanced;
  int reset = 0;
  for (int layer = 0; layer < plan->layers; ++layer) {
    if (std::ranges::equal(previous.Layer(layer), plan->Layer(layer))) continue;
    const double before = MaxRankRows(history, layer, dispatch, topology, previous);
    const double gain = before - MaxRankRows(history, layer, dispatch, topology, *plan);
    const Moves moves =
        CountMoves(previous.Layer(layer), plan->Layer(layer), topology, plan->logical);
    const double received =
        static_cast<double>(moves.same_node) + kNodePrice * static_cast<double>(moves.other_node);
    const double moving = topology.HasMoveCosts()
                              ? moves.time / SlowestRow(topology, plan->physical)
                              : kRowsPerExpert * received / topology.NumAlive();
    const double cost = moving + 2 * std::sqrt(before);
    const double least = kMinGain * (before + kRowsPerExpert * static_cast<double>(passes));
    if (gain > std::max(cost, least)) continue;
    std::ranges::copy(previous.Layer(layer), plan->Layer(layer).begin());
    ++reset;
  }
  return reset;
}

namespace {

// First byte of the broadcast of rank 0's plan. An empty broadcast means that the plan is not
// ready.
constexpr char kPlanned = 'P', kFailed = 'F', kTimedOut = 'T';

bool IsReady(const std::future<std::string>& plan) {
  return plan.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

std::string EncodeMessage(char what, const void* data, size_t bytes) {
  std::string words(1, what);
  words.append(static_cast<const char*>(data), bytes);
  return words;
}
std::string EncodeMessage(char what, const std::string& why) {
  return EncodeMessage(what, why.data(), why.size());
}

std::string RunPlanner(const PlanJob::Planner& planner) {
  try {
    const std::vector<int32_t> plan = planner();
    return EncodeMessage(kPlanned, plan.data(), plan.size() * sizeof(int32_t));
  } catch (const std::exception& error) {
    return EncodeMessage(kFailed, error.what());
  }
}

}  // namespace

void PlanJob::Start(Planner planner) {
  began_ = std::chrono::steady_clock::now();
  if (world_.rank() != 0 || (timed_out_plan_.valid() && !IsReady(timed_out_plan_))) return;
  timed_out_plan_ = {};
  // Does not use std::async, because its futures block in their destructors.
  std::packaged_task<std::string()> task([planner = std::move(planner)] {
    LowerThreadPriority();
    return RunPlanner(planner);
  });
  plan_ = task.get_future();
  std::thread(std::move(task)).detach();
}

PlanJob::~PlanJob() {
  constexpr std::chrono::seconds kSoon{3};
  for (const auto* plan : {&plan_, &timed_out_plan_})
    if (plan->valid() && plan->wait_for(kSoon) != std::future_status::ready)
      LOG_WARNING("[EPLB] a planner is still running and was detached");
}

std::string PlanJob::PollPlanner(std::chrono::duration<double> timeout) {
  if (!plan_.valid()) return EncodeMessage(kFailed, "the planner that timed out is still running");
  if (IsReady(plan_)) return plan_.get();
  if (std::chrono::steady_clock::now() - began_ < timeout) return {};
  timed_out_plan_ = std::move(plan_);
  return EncodeMessage(kTimedOut, fmt::format("the planner timed out after {} s", timeout.count()));
}

std::optional<PlanJob::Outcome> PlanJob::Poll(std::chrono::duration<double> timeout) {
  const std::string words =
      world_.Broadcast(world_.rank() == 0 ? PollPlanner(timeout) : std::string());
  if (words.empty()) return std::nullopt;
  Outcome outcome;
  const size_t size = words.size() - 1;
  if (words[0] == kPlanned) {
    outcome.plan.resize(size / sizeof(int32_t));
    std::memcpy(outcome.plan.data(), words.data() + 1, outcome.plan.size() * sizeof(int32_t));
  } else {
    outcome.error = words.substr(1);
    outcome.timed_out = words[0] == kTimedOut;
  }
  return outcome;
}

}  // namespace switchyard
