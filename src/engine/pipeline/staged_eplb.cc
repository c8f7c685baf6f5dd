#include "engine/pipeline/staged_eplb.h"

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "core/format.h"

namespace switchyard {
namespace {

struct StageReport {
  int32_t layers = 0, moe_layers = 0;
  EplbReport report;  // of the stage's layers; `refused`: why it cannot rebalance
};

// The reports of all stages, on every rank. Collective.
std::vector<StageReport> GatherReports(EplbManager* eplb, int layers, bool slots, RankComm& comm) {
  struct Line {
    int64_t bytes = 0;
    int32_t layers = 0, moe_layers = 0;
  };
  EplbReport own;
  if (eplb) {
    own.status = eplb->Status();
    own.refused = eplb->WhyNotRebalance();
    if (slots) own.slots = eplb->Slots();
  }
  const std::string mine = EncodeMessage(EngineMessage(std::move(own)));
  const Line line{
      .bytes = std::ssize(mine), .layers = layers, .moe_layers = eplb ? eplb->num_moe_layers() : 0};
  Communicator& stages = *comm.pp;
  std::vector<Line> lines(static_cast<size_t>(stages.size()));
  stages.AllGather(&line, lines.data(), sizeof line);
  std::vector<size_t> sizes;
  sizes.reserve(lines.size());
  for (const Line& one : lines) sizes.push_back(static_cast<size_t>(one.bytes));
  std::string all(std::accumulate(sizes.begin(), sizes.end(), size_t{0}), '\0');
  stages.AllGatherV(mine.data(), all.data(), sizes);
  std::vector<StageReport> reports;
  size_t begin = 0;
  for (const Line& one : lines) {
    const auto size = static_cast<size_t>(one.bytes);
    reports.push_back(
        {.layers = one.layers,
         .moe_layers = one.moe_layers,
         .report = std::get<EplbReport>(DecodeMessage(std::string_view(all).substr(begin, size)))});
    begin += size;
  }
  return reports;
}

// The first stage's reason against a rebalance; empty: all stages with experts accept it.
std::string RefusalOf(const std::vector<StageReport>& stages) {
  for (size_t i = 0; i < stages.size(); ++i)
    if (const std::string& why = stages[i].report.refused; !why.empty())
      return fmt::format("stage {}: {}", i, why);
  return {};
}

EplbReport Merged(uint64_t ticket, const std::vector<StageReport>& stages) {
  EplbReport merged{.ticket = ticket};
  std::vector<EplbStageStatus> statuses;
  size_t width = 0;  // slots of a layer; stays 0 if no slots were requested
  for (const StageReport& stage : stages) {
    statuses.push_back({stage.layers, stage.moe_layers, stage.report.status});
    if (!stage.report.slots.empty())
      width = stage.report.slots.size() / static_cast<size_t>(stage.layers);
  }
  merged.status = MergedStatus(statuses);
  for (const StageReport& stage : stages) {
    const std::vector<int32_t>& slots = stage.report.slots;
    if (slots.empty()) {
      merged.slots.resize(merged.slots.size() + static_cast<size_t>(stage.layers) * width, -1);
    } else {
      merged.slots.insert(merged.slots.end(), slots.begin(), slots.end());
    }
  }
  return merged;
}

}  // namespace

std::vector<EngineMessage> ApplyToStagedEplb(const std::vector<ControlMessage>& messages,
                                             EplbManager* eplb, int layers, RankComm& comm) {
  std::vector<EngineMessage> answers;
  for (const ControlMessage& message : messages) {
    const auto* ask = std::get_if<RebalanceExperts>(&message);
    const auto* get = std::get_if<GetEplb>(&message);
    if (!ask && !get) continue;
    const bool slots = get && get->slots;
    std::vector<StageReport> stages = GatherReports(eplb, layers, slots, comm);
    std::string refused;
    if (ask) {
      refused = RefusalOf(stages);
      if (refused.empty()) {
        if (eplb) eplb->Rebalance();
        stages = GatherReports(eplb, layers, slots, comm);
      }
    }
    if (comm.mesh.rank() != 0) continue;
    EplbReport report = Merged(ask ? ask->ticket : get->ticket, stages);
    report.refused = std::move(refused);
    answers.emplace_back(std::move(report));
  }
  return answers;
}

}  // namespace switchyard
