// `switchyard eplb plan`.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "apps/eplb.h"
#include "core/error.h"
#include "eplb/array_file.h"
#include "eplb/planner.h"
#include "eplb/simulate.h"

namespace switchyard {
namespace {

Placement ReadPlacement(const std::string& path, int layers, int physical, int logical,
                        const RankTopology& topology) {
  const ArrayFile file(path);
  IntArray map = file.Get("physical_to_logical_map");
  if (map.shape != std::vector<int64_t>{layers, physical})
    throw Invalid("--previous {}: want a placement of {} layers and {} slots", path, layers,
                  physical);
  Placement placement(layers, physical, logical);
  placement.physical_to_logical = std::move(map.values);
  try {
    ValidatePlacement(placement, topology);
  } catch (const Error& error) {
    throw Invalid("--previous {}: {}", path, error.what());
  }
  return placement;
}

void PrintPlacement(const Placement& placement, const RankTopology& topology) {
  fmt::print("\nplacement: the experts of each rank\n");
  for (int layer = 0; layer < placement.layers; ++layer) {
    fmt::print("layer {}\n", layer);
    for (const RankSlots& slots : LivingSlots(topology, placement.physical)) {
      fmt::print("  rank {}:", slots.rank);
      for (int p = slots.begin; p < slots.end; ++p) fmt::print(" {}", placement.Layer(layer)[p]);
      fmt::print("\n");
    }
  }
}

std::string JsonOf(const Placement& placement) {
  nlohmann::json rows = nlohmann::json::array();
  for (int layer = 0; layer < placement.layers; ++layer) {
    const auto row = placement.Layer(layer);
    rows.push_back(std::vector<int32_t>(row.begin(), row.end()));
  }
  return nlohmann::json{{"physical_to_logical_map", std::move(rows)}}.dump() + "\n";
}

// Prints one line for each layer, and one line for all layers together. The received experts are
// printed only with --previous.
void PrintLayers(const LoadHistory& loads, const Placement& previous, const Placement& plan,
                 const RankTopology& topology, const EplbArgs& args) {
  const std::vector<double> before =
      LayerBalancedness(loads, previous, EpDispatchAlgorithm::kDynamic, topology);
  const std::vector<double> after =
      LayerBalancedness(loads, plan, ParseEpDispatchAlgorithm(args.dispatch), topology);
  const bool moves = !args.previous.empty();
  fmt::print("layer  before  after{}\n", moves ? "  received" : "");
  double sum_before = 0, sum_after = 0;
  int counted = 0;
  for (int layer = 0; layer < plan.layers; ++layer) {
    const bool empty = IsEmpty(loads, layer);
    fmt::print("{:>5}  {:>6}  {:>5}", layer, empty ? "-" : fmt::format("{:.3f}", before[layer]),
               empty ? "-" : fmt::format("{:.3f}", after[layer]));
    if (moves)
      fmt::print(
          "  {:>8}",
          CountMoves(previous.Layer(layer), plan.Layer(layer), topology, plan.logical).total());
    fmt::print("\n");
    if (empty) continue;
    sum_before += before[layer];
    sum_after += after[layer];
    ++counted;
  }
  fmt::print(" mean   {:.3f}  {:.3f}", sum_before / counted, sum_after / counted);
  if (moves) {
    const Moves all = CountMoves(previous, plan, topology);
    fmt::print("  {:>8} experts, {:.1f} GiB, of them {:.1f} GiB from other nodes", all.total(),
               GiB(args, all.total()), GiB(args, all.other_node));
  }
  fmt::print("\n");
}

// The time of the slowest rank, summed over layers, in the unit of --rank-costs.
void PrintTimes(const LoadHistory& loads, const Placement& previous, const Placement& plan,
                const RankTopology& topology, const EplbArgs& args) {
  const EpDispatchAlgorithm dispatch = ParseEpDispatchAlgorithm(args.dispatch);
  const auto sum = [&](const Placement& placement) {
    const std::vector<double> times = LayerTimes(loads, placement, dispatch, topology);
    return std::accumulate(times.begin(), times.end(), 0.0);
  };
  fmt::print("time of the slowest rank in a step, all layers: {:.6g} before, {:.6g} after\n",
             sum(previous), sum(plan));
}

}  // namespace

int RunEplbPlan(const EplbArgs& args) {
  const LoadHistory loads = ReadRecording(args);
  if (std::ranges::all_of(loads.counts, [](int32_t count) { return count == 0; }))
    throw Invalid("{}: all token counts are zero", args.file);
  const RankTopology topology = TopologyOf(args);
  const int physical = PhysicalOf(args, topology, loads.experts);
  const EplbAlgorithm algorithm = ParseEplbAlgorithm(args.algorithm);
  ParseEpDispatchAlgorithm(args.dispatch);
  ValidateTopology(topology, physical, loads.experts);
  CheckWritable("--output", args.output);
  const bool moves = !args.previous.empty();
  const Placement previous =
      moves ? ReadPlacement(args.previous, loads.layers, physical, loads.experts, topology)
            : Placement::Trivial(loads.layers, physical, loads.experts);
  const auto start = std::chrono::steady_clock::now();
  const Placement plan = PlanPlacement(algorithm, {.history = &loads,
                                                   .topology = topology,
                                                   .physical = physical,
                                                   .previous = moves ? &previous : nullptr});
  const double ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  fmt::print(
      "{} steps, {} layers, {} experts in {} slots of {} ranks on {} nodes: {} took {:.1f} ms\n"
      "mean / max rank load over the recorded steps, before ({}) and after ({} dispatch)\n",
      loads.steps, loads.layers, loads.experts, physical, topology.ranks, topology.nodes,
      args.algorithm, ms, moves ? "as it was" : "trivial", args.dispatch);
  PrintLayers(loads, previous, plan, topology, args);
  if (!topology.costs.empty()) PrintTimes(loads, previous, plan, topology, args);
  if (args.output.empty()) {
    PrintPlacement(plan, topology);
  } else {
    WriteFile(args.output, JsonOf(plan));
    fmt::print("placement written to {}\n", args.output);
  }
  return 0;
}

}  // namespace switchyard
