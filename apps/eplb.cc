// `switchyard eplb`: runs placement planners on recorded routing.
#include "apps/eplb.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "apps/commands.h"
#include "core/error.h"

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
  return {.ranks = args.ranks, .nodes = args.nodes, .groups = args.groups};
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
  LoadHistory rest{loads.steps, static_cast<int>(kept.size()), loads.experts, {}};
  for (int step = 0; step < loads.steps; ++step)
    for (const int layer : kept) {
      const auto counts = loads.At(step, layer);
      rest.counts.insert(rest.counts.end(), counts.begin(), counts.end());
    }
  return rest;
}

}  // namespace switchyard
