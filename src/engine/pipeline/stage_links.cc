#include "engine/pipeline/stage_links.h"

#include <algorithm>
#include <span>
#include <utility>

namespace switchyard {
namespace {

MessageLaneOptions RowsOptions(const StageLinkSizes& sizes) {
  return {.part_bytes = sizes.rows_bytes, .places = sizes.batches};
}

MessageLaneOptions ResultsOptions(const StageLinkSizes& sizes) {
  return {.part_bytes = size_t{1} << 20, .places = sizes.batches + 1};
}

MessageLaneOptions ControlOptions(const StageLinkSizes& sizes) {
  return {.part_bytes = size_t{256} << 10, .places = sizes.batches + 1};
}

// The world rank in the same place of another stage.
int InStage(const Mesh& mesh, int stage) { return stage * mesh.tp() + mesh.tp_rank(); }

int Previous(const Mesh& mesh) {
  return mesh.first_stage() ? -1 : InStage(mesh, mesh.pp_rank() - 1);
}
int Next(const Mesh& mesh) { return mesh.last_stage() ? -1 : InStage(mesh, mesh.pp_rank() + 1); }

// The ring of results ends at the last stage but one.
int ResultsFrom(const Mesh& mesh) {
  if (mesh.last_stage()) return -1;
  return mesh.first_stage() ? InStage(mesh, mesh.pp() - 1) : Previous(mesh);
}
int ResultsTo(const Mesh& mesh) {
  if (mesh.last_stage()) return InStage(mesh, 0);
  return mesh.pp_rank() + 2 == mesh.pp() ? -1 : Next(mesh);
}

}  // namespace

int PassesInFlight(const EngineConfig& config) {
  return config.mesh.pp == 1 ? 1 : config.mesh.pp + config.pp_async_batch_depth;
}

StageLinkSizes StageLinkSizesOf(const EngineConfig& config, const EnginePlan& plan) {
  const auto floats = static_cast<size_t>(plan.max_batch_tokens * plan.model.hidden);
  return {.stages = config.mesh.pp,
          .rows_bytes = std::max<size_t>(1, floats) * sizeof(float),
          .batches = PassesInFlight(config)};
}

StageLinks::StageLinks(RankComm& comm, const StageLinkSizes& sizes)
    : rows_(*comm.memory, Previous(comm.mesh), Next(comm.mesh), RowsOptions(sizes), "hidden rows"),
      results_(*comm.memory, ResultsFrom(comm.mesh), ResultsTo(comm.mesh), ResultsOptions(sizes),
               "results of the last stage"),
      control_(*comm.memory, Previous(comm.mesh), Next(comm.mesh), ControlOptions(sizes),
               "messages of the front"),
      forwards_results_(!comm.mesh.last_stage() && ResultsTo(comm.mesh) >= 0) {
  if (comm.mesh.last_stage()) return;  // it receives no results
  const auto take_early = [this] {
    while (results_.Arrived()) early_.push_back(TakeResults());
  };
  rows_.WhileFull(take_early);
  control_.WhileFull(take_early);
}

void StageLinks::SendResults(std::string_view bytes) {
  results_.Send(std::as_bytes(std::span(bytes)));
}

std::string StageLinks::TakeResults() {
  std::string bytes = results_.Receive();
  if (forwards_results_) results_.Send(std::as_bytes(std::span(bytes)));
  return bytes;
}

std::string StageLinks::ReceiveResults() {
  if (early_.empty()) return TakeResults();
  std::string bytes = std::move(early_.front());
  early_.pop_front();
  return bytes;
}

size_t StageLinks::BytesPerRank(const StageLinkSizes& sizes) {
  if (sizes.stages == 1) return 0;
  constexpr size_t kAlignment = 64;  // lines between allocations of one rank
  return MessageLane::BytesPerRank(RowsOptions(sizes)) +
         MessageLane::BytesPerRank(ResultsOptions(sizes)) +
         MessageLane::BytesPerRank(ControlOptions(sizes)) + 3 * kAlignment;
}

}  // namespace switchyard
