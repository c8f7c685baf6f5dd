#include "eplb/simulate.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "core/check.h"
#include "core/error.h"
#include "eplb/rank_times.h"

namespace switchyard {
namespace {

double Mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// Mean / maximum of the rank loads; 1 for a step without tokens.
double Balancedness(const std::vector<double>& rank_load) {
  const double most = *std::ranges::max_element(rank_load);
  return most > 0 ? Mean(rank_load) / most : 1;
}

// Computes the loads of the ranks with the current placement, step by step.
class Evaluator {
 public:
  Evaluator(EpDispatchAlgorithm dispatch, const RankTopology& topology, int layers)
      : dispatch_(dispatch), topology_(topology), dividers_(layers) {}

  void Use(const Placement& placement) {
    location_ = ExpertLocation(placement);
    shares_.resize(placement.physical);
    for (int layer = 0; layer < placement.layers; ++layer)
      dividers_[layer].Reset(dispatch_, location_, layer, topology_);
    living_ = LivingSlots(topology_, placement.physical);
  }

  // The times of the living ranks in one layer of a step; without costs, their loads.
  std::vector<double> Times(const LoadHistory& trace, int step, int layer) {
    dividers_[layer].Divide(trace.At(step, layer), shares_);
    return RankTimes(shares_, trace.passes, living_, topology_);
  }

  // Evaluates step `step` of the trace and appends the results to the outputs.
  void Step(const LoadHistory& trace, int step, std::vector<double>* balancedness,
            std::vector<double>* times, std::vector<float>* loads) {
    double sum = 0, time = 0;
    std::vector<double> relative(topology_.ranks, 0.0);
    for (int layer = 0; layer < trace.layers; ++layer) {
      const std::vector<double> rank_load = Times(trace, step, layer);
      time += *std::ranges::max_element(rank_load);
      const double mean = Mean(rank_load);
      sum += Balancedness(rank_load);
      for (size_t b = 0; b < living_.size(); ++b)
        relative[living_[b].rank] += mean > 0 ? rank_load[b] / mean : 1;
    }
    balancedness->push_back(sum / trace.layers);
    times->push_back(time);
    for (const double load : relative) loads->push_back(static_cast<float>(load / trace.layers));
  }

 private:
  EpDispatchAlgorithm dispatch_;
  const RankTopology& topology_;
  ExpertLocation location_;
  std::vector<BatchDivider> dividers_;  // [layers]
  std::vector<RankSlots> living_;
  std::vector<int32_t> shares_;
};

// [layers] the mean over the steps of a function of the ranks' times.
template <typename OfTimes>
std::vector<double> LayerMeans(const LoadHistory& history, const Placement& placement,
                               EpDispatchAlgorithm dispatch, const RankTopology& topology,
                               const OfTimes& of_times) {
  CHECK(history.layers == placement.layers && history.experts == placement.logical);
  Evaluator judge(dispatch, topology, history.layers);
  judge.Use(placement);
  std::vector<double> means(history.layers, 0.0);
  for (int layer = 0; layer < history.layers; ++layer)
    for (int step = 0; step < history.steps; ++step)
      means[layer] += of_times(judge.Times(history, step, layer)) / history.steps;
  return means;
}

}  // namespace

double SimulateResult::mean_before() const { return Mean(before); }
double SimulateResult::mean_after() const { return Mean(after); }

Moves SimulateResult::moves() const {
  Moves sum;
  for (const Plan& plan : plans) {
    sum.same_node += plan.moves.same_node;
    sum.other_node += plan.moves.other_node;
  }
  return sum;
}

double SimulateResult::plan_ms() const {
  double sum = 0;
  for (const Plan& plan : plans) sum += plan.ms;
  return sum / static_cast<double>(plans.size());
}

SimulateResult Simulate(const LoadHistory& trace, const SimulateOptions& options) {
  using Clock = std::chrono::steady_clock;
  const RankTopology& topology = options.topology;
  if (options.window < 1 || options.every < 1)
    throw Invalid("a window of {} steps and a plan every {} steps: want at least 1", options.window,
                  options.every);
  if (trace.steps <= options.window)
    throw Invalid("{} recorded steps; a window of {} leaves none to evaluate", trace.steps,
                  options.window);
  ValidateTopology(topology, options.physical, trace.experts);
  Placement placement = Placement::Trivial(trace.layers, options.physical, trace.experts);
  if (topology.NumAlive() < topology.ranks)
    throw Invalid("a simulation requires all ranks alive; {} of {} are", topology.NumAlive(),
                  topology.ranks);

  SimulateResult result{.first_step = options.window};
  Evaluator before(EpDispatchAlgorithm::kDynamic, topology, trace.layers);
  Evaluator after(options.dispatch, topology, trace.layers);
  before.Use(placement);
  for (int step = options.window; step < trace.steps; ++step) {
    if (options.progress) options.progress(step);
    if ((step - options.window) % options.every == 0) {
      const LoadHistory seen = trace.Steps(step - options.window, step);
      const auto start = Clock::now();
      Placement next = PlanPlacement(options.algorithm,
                                     {&seen, topology, options.physical, &placement, options.yard});
      const double ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
      result.plans.push_back({step, CountMoves(placement, next, topology), ms});
      placement = std::move(next);
      after.Use(placement);
    }
    before.Step(trace, step, &result.before, &result.time_before, &result.load_before);
    after.Step(trace, step, &result.after, &result.time_after, &result.load_after);
  }
  return result;
}

std::vector<double> LayerBalancedness(const LoadHistory& history, const Placement& placement,
                                      EpDispatchAlgorithm dispatch, const RankTopology& topology) {
  return LayerMeans(history, placement, dispatch, topology,
                    [](const std::vector<double>& times) { return Balancedness(times); });
}

std::vector<double> LayerTimes(const LoadHistory& history, const Placement& placement,
                               EpDispatchAlgorithm dispatch, const RankTopology& topology) {
  return LayerMeans(history, placement, dispatch, topology,
                    [](const std::vector<double>& times) { return std::ranges::max(times); });
}

}  // namespace switchyard
