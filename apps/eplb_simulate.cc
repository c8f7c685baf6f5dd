// `switchyard eplb simulate`.
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <string>
#include <vector>

#include "apps/eplb.h"
#include "apps/eplb_picture.h"
#include "eplb/array_file.h"
#include "eplb/planner.h"
#include "eplb/simulate.h"

namespace switchyard {
namespace {

double MeanOf(const std::vector<double>& values, size_t begin, size_t end) {
  return std::accumulate(values.begin() + static_cast<std::ptrdiff_t>(begin),
                         values.begin() + static_cast<std::ptrdiff_t>(end), 0.0) /
         static_cast<double>(end - begin);
}

void PrintWindows(const SimulateResult& result, const EplbArgs& args) {
  fmt::print("      steps  before  after  plans  received       GiB  from other nodes  plan ms\n");
  const auto row = [&](const std::string& name, size_t begin, size_t end) {
    Moves moves;
    int plans = 0;
    double ms = 0;
    for (const SimulateResult::Plan& plan : result.plans) {
      const size_t at = plan.step - result.first_step;
      if (at < begin || at >= end) continue;
      ++plans;
      ms += plan.ms;
      moves.same_node += plan.moves.same_node;
      moves.other_node += plan.moves.other_node;
    }
    fmt::print("{:>11}   {:.3f}  {:.3f}  {:>5}  {:>8}  {:>8.1f}  {:>16.1f}  {:>7}\n", name,
               MeanOf(result.before, begin, end), MeanOf(result.after, begin, end), plans,
               moves.total(), GiB(args, moves.total()), GiB(args, moves.other_node),
               plans > 0 ? fmt::format("{:.1f}", ms / plans) : "-");
  };
  const size_t steps = result.after.size();
  for (size_t begin = 0; begin < steps; begin += args.window) {
    const size_t end = std::min(steps, begin + args.window);
    row(fmt::format("{}-{}", result.first_step + begin, result.first_step + end - 1), begin, end);
  }
  row("all", 0, steps);
}

}  // namespace

int RunEplbSimulate(const EplbArgs& args) {
  const LoadHistory recorded = ReadRecording(args);
  const LoadHistory trace = WithoutEmptyLayers(recorded, args);
  CheckWritable("--svg", args.svg);
  const RankTopology topology = TopologyOf(args);
  SimulateOptions options{.algorithm = ParseEplbAlgorithm(args.algorithm),
                          .dispatch = ParseEpDispatchAlgorithm(args.dispatch),
                          .topology = topology,
                          .physical = PhysicalOf(args, topology, trace.experts),
                          .window = args.window,
                          .every = args.every};
  const std::string title = fmt::format(
      "{} steps, {} of {} layers with tokens, {} experts in {} slots of {} ranks on {} nodes; "
      "algorithm {}, a plan every {} steps from the loads of the last {} steps; dispatch {}",
      trace.steps, trace.layers, recorded.layers, trace.experts, options.physical, args.ranks,
      args.nodes, args.algorithm, args.every, args.window, args.dispatch);
  auto told = std::chrono::steady_clock::now();
  const bool terminal = isatty(STDERR_FILENO) != 0;
  options.progress = [&](int step) {
    if (!terminal || std::chrono::steady_clock::now() - told < std::chrono::seconds(2)) return;
    told = std::chrono::steady_clock::now();
    fmt::print(stderr, "step {} of {}\n", step, trace.steps);
  };
  const SimulateResult result = Simulate(trace, options);
  fmt::print("{}\nmean / max rank load, before (trivial placement) and after\n", title);
  PrintWindows(result, args);
  if (!topology.costs.empty())
    fmt::print("time of the slowest rank in a step, all layers: {:.6g} before, {:.6g} after\n",
               MeanOf(result.time_before, 0, result.time_before.size()),
               MeanOf(result.time_after, 0, result.time_after.size()));
  if (args.svg.empty()) return 0;
  WriteFile(args.svg, DrawSimulation(result, args.ranks, title));
  fmt::print("picture written to {}\n", args.svg);
  return 0;
}

}  // namespace switchyard
