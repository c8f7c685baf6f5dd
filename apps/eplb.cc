// `switchyard eplb`: runs placement planners on recorded routing.
#include "apps/eplb.h"

#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "apps/commands.h"
#include "core/error.h"
#include "eplb/array_file.h"
#include "eplb/rank_flags.h"

namespace switchyard {

int RunEplb(const EplbArgs& args) {
  return args.which == "plan" ? RunEplbPlan(args) : RunEplbSimulate(args);
}

void CheckWritable(const char* flag, const std::string& file) {
  if (file.empty()) return;
  const bool existed = std::filesystem::exists(file);
  if (!std::ofstream(file, std::ios::app)) throw Resource("{} {}: cannot be written", flag, file);
  if (!existed) std::filesystem::remove(file);
}

void WriteFile(const std::string& file, const std::string& text) {
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  if (!out) throw Resource("{}: cannot be written", file);
}

RankTopology TopologyOf(const EplbArgs& args) {
  if (!args.rank_costs.empty() && args.dispatch == "lp")
    throw Invalid("--dispatch lp divides rows over equal ranks; want balanced with --rank-costs");
  return {.ranks = args.ranks,
          .nodes = args.nodes,
          .groups = args.groups,
          .slots = ParseExpertSlots("--slots", args.slots),
          .costs = ParseRankCosts("--rank-costs", args.rank_costs),
          .sources = args.sources};
}

int PhysicalOf(const EplbArgs& args, const RankTopology& topology, int experts) {
  if (args.physical > 0) return args.physical;
  if (topology.slots.empty()) return experts;
  return std::accumulate(topology.slots.begin(), topology.slots.end(), 0);
}

LoadHistory ReadRecording(const EplbArgs& args) {
  LoadHistory loads = ReadLoads(ArrayFile(args.file), args.tensor);
  loads.passes = args.passes;
  return loads;
}

double GiB(const EplbArgs& args, int64_t experts) {
  return static_cast<double>(experts) * args.expert_mib / 1024;
}

bool IsEmpty(const LoadHistory& loads, int layer) {
  for (int step = 0; step < loads.steps; ++step)
    for (const int32_t count : loads.At(step, layer))
      if (count != 0) return false;
  return true;
}

LoadHistory WithoutEmptyLayers(const LoadHistory& loads, const EplbArgs& args) {
  std::vector<int> kept;
  for (int layer = 0; layer < loads.layers; ++layer)
    if (!IsEmpty(loads, layer)) kept.push_back(layer);
  if (kept.empty()) throw Invalid("{}: all token counts are zero", args.file);
  LoadHistory rest{loads.steps, static_cast<int>(kept.size()), loads.experts, {}, loads.passes};
  for (int step = 0; step < loads.steps; ++step)
    for (const int layer : kept) {
      const auto counts = loads.At(step, layer);
      rest.counts.insert(rest.counts.end(), counts.begin(), counts.end());
    }
  return rest;
}

}  // namespace switchyard
