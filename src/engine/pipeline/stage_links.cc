#include "engine/pipeline/stage_links.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "core/format.h"

namespace switchyard {
namespace {

constexpr size_t kLine = 64;

MessageLaneOptions RowsOptions(const StageLinkSizes& sizes) {
  return {.part_bytes = sizes.rows_bytes, .places = sizes.batches};
}

MessageLaneOptions RoutedOptions(const StageLinkSizes& sizes) {
  return {.part_bytes = sizes.routed_bytes, .places = sizes.batches};
}

MessageLaneOptions ResultsOptions(const StageLinkSizes& sizes) {
  return {.part_bytes = sizes.results_bytes, .places = sizes.batches + 1};
}

// Of messages without a usual size; longer ones are sent in parts.
MessageLaneOptions ControlOptions(const StageLinkSizes& sizes) {
  return {.part_bytes = size_t{256} << 10, .places = sizes.batches + 1};
}

// A stage sends a sum when it ends a pass. A lane of rows holds k messages, for k passes in flight,
// so a stage is ahead of the next one by at most k passes, and by one more that a GPU has not
// ended. Between two reads of the first stage, at most the passes between it and the last stage
// end.
MessageLaneOptions LoadsOptions(const StageLinkSizes& sizes) {
  return {.part_bytes = kLine, .places = (sizes.batches + 1) * sizes.stages + 1};
}

// Upper bound of the size of a result with one token, without log-probabilities and vectors.
constexpr size_t kBytesOfResult = 256;
constexpr size_t kFlagBytes = kLine;

// The world rank in the same place of another stage.
int InStage(const Mesh& mesh, int stage) { return stage * mesh.tp() + mesh.tp_rank(); }

std::vector<int> WithoutRank(std::vector<int> ranks, int rank) {
  std::erase(ranks, rank);
  return ranks;
}

// The other ranks of the stage wait for its first rank, and this one waits for other stages.
ProgressClock::Options ClockOptions(const Mesh& mesh) {
  const bool leads = mesh.tp_rank() == 0;
  return {.peers = WithoutRank(mesh.PpGroup(), mesh.rank()),
          .followers = leads ? WithoutRank(mesh.TpGroup(), mesh.rank()) : std::vector<int>(),
          .describe = [tp = mesh.tp()](int rank) {
            return fmt::format("rank {} (stage {})", rank, rank / tp);
          }};
}

int Previous(const Mesh& mesh) {
  return mesh.first_stage() ? -1 : InStage(mesh, mesh.pp_rank() - 1);
}
int Next(const Mesh& mesh) { return mesh.last_stage() ? -1 : InStage(mesh, mesh.pp_rank() + 1); }

// The first ranks of all stages form a ring.
int LoadsFrom(const Mesh& mesh) {
  if (mesh.tp_rank() != 0) return -1;
  return mesh.first_stage() ? InStage(mesh, mesh.pp() - 1) : Previous(mesh);
}
int LoadsTo(const Mesh& mesh) {
  if (mesh.tp_rank() != 0) return -1;
  return mesh.last_stage() ? InStage(mesh, 0) : Next(mesh);
}

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
  const auto floats = static_cast<size_t>(plan.max_batch_tokens * plan.model.residual_width());
  const int64_t experts = plan.model.routed_width();
  const auto most_drafts = static_cast<size_t>(plan.drafts.most);
  return {.stages = config.mesh.pp,
          .rows_bytes = plan.cuda ? StageLinkSizes::kAnnouncement
                                  : std::max<size_t>(1, floats) * sizeof(float),
          .routed_bytes = std::max<size_t>(
              StageLinkSizes().routed_bytes,
              static_cast<size_t>(plan.max_batch_tokens * experts) * sizeof(int32_t)),
          .batches = PassesInFlight(config),
          .results_bytes = std::max(StageLinkSizes().results_bytes,
                                    static_cast<size_t>(plan.max_running_requests) *
                                        (kBytesOfResult + 2 * sizeof(int32_t) * most_drafts)),
          .moves_experts = config.eplb.enable};
}

StageLinks::StageLinks(RankComm& comm, const StageLinkSizes& sizes)
    : memory_(*comm.memory),
      mesh_(comm.mesh),
      clock_(memory_, ClockOptions(mesh_)),
      moves_experts_(sizes.moves_experts),
      rows_(memory_, Previous(mesh_), Next(mesh_), RowsOptions(sizes), "hidden rows"),
      routed_(memory_, Previous(mesh_), Next(mesh_), RoutedOptions(sizes), "chosen experts"),
      results_(memory_, ResultsFrom(mesh_), ResultsTo(mesh_), ResultsOptions(sizes),
               "results of the last stage"),
      control_(memory_, Previous(mesh_), Next(mesh_), ControlOptions(sizes),
               "messages of the front"),
      loads_(memory_, LoadsFrom(mesh_), LoadsTo(mesh_), LoadsOptions(sizes), "expert loads"),
      broadcast_(memory_.Allocate(kFlagBytes)),
      loaded_(memory_.Allocate(kFlagBytes * static_cast<size_t>(mesh_.pp()))),
      moves_(memory_.Allocate(kFlagBytes * static_cast<size_t>(mesh_.pp()))),
      moves_of_stages_(static_cast<size_t>(mesh_.pp())) {
  for (MessageLane* lane : {&rows_, &routed_, &results_, &control_, &loads_})
    lane->UseClock(clock_);
  if (mesh_.last_stage()) return;  // it receives no results
  for (MessageLane* lane : {&rows_, &routed_, &control_}) lane->WhileFull([this] { TakeEarly(); });
}

void StageLinks::AddTo(ModelOptions* options) {
  options->stage_rows = &rows_;
  WatchWorkOf(options);
}

void StageLinks::WatchWorkOf(ModelOptions* options) {
  options->before_operation = [this, before = options->before_operation](
                                  uint64_t pass, int micro_batches,
                                  const schedule::Operation& operation) {
    Advance();
    if (before) before(pass, micro_batches, operation);
  };
  options->load.progress = [this, report = options->load.progress](size_t done, size_t total) {
    Advance();
    if (report) report(done, total);
  };
}

void StageLinks::SendResults(std::string_view bytes) {
  results_.Send(std::as_bytes(std::span(bytes)));
}

void StageLinks::TakeEarly() {
  while (results_.Arrived()) early_.push_back(results_.Receive());
}

std::string StageLinks::ReceiveResults() {
  if (early_.empty()) return results_.Receive();
  std::string bytes = std::move(early_.front());
  early_.pop_front();
  return bytes;
}

void StageLinks::PassOnResults(std::string_view bytes) {
  if (ResultsTo(mesh_) >= 0) SendResults(bytes);
}

bool StageLinks::LeadsLaterGroup(const Mesh& mesh, int tp_rank) {
  return mesh.first_stage() && tp_rank > 0 && tp_rank % mesh.attn_tp() == 0;
}

void StageLinks::BeginBroadcast() {
  ++broadcasts_;
  for (const int rank : mesh_.TpGroup())
    if (rank != mesh_.rank()) memory_.Raise(rank, broadcast_, broadcasts_);
}

void StageLinks::AwaitBroadcast(bool idle) {
  constexpr std::chrono::milliseconds kPoll{1};
  const bool takes = LeadsLaterGroup(mesh_, mesh_.tp_rank());
  ++broadcasts_;
  if (!idle) {
    const int first = mesh_.TpGroup().front();
    const std::function<void()> take = [this] { TakeEarly(); };
    return clock_.Wait(broadcast_, broadcasts_, first, "pipeline: messages of the front",
                       takes ? take : nullptr);
  }
  while (!memory_.WaitFor(broadcast_, broadcasts_, kPoll))
    if (takes) TakeEarly();
}

void StageLinks::AwaitLoaded() {
  const auto flag = [this](int stage) { return loaded_ + kFlagBytes * static_cast<size_t>(stage); };
  for (const int rank : mesh_.PpGroup())
    if (rank != mesh_.rank()) memory_.Raise(rank, flag(mesh_.pp_rank()), 1);
  for (int stage = 0; stage < mesh_.pp(); ++stage)
    if (stage != mesh_.pp_rank())
      clock_.Wait(flag(stage), 1, InStage(mesh_, stage), "pipeline: model loaded");
}

void StageLinks::TellMoving(bool moving) {
  if (mesh_.tp_rank() != 0 || mesh_.first_stage() || moving == (my_moves_ % 2 != 0)) return;
  memory_.Raise(0, moves_ + kFlagBytes * static_cast<size_t>(mesh_.pp_rank()), ++my_moves_);
}

bool StageLinks::OthersMove() {
  if (mesh_.rank() != 0) return false;
  bool any = false;
  for (size_t stage = 1; stage < moves_of_stages_.size(); ++stage) {
    uint32_t& seen = moves_of_stages_[stage];
    while (memory_.Reached(moves_ + kFlagBytes * stage, seen + 1)) ++seen;
    any |= seen % 2 != 0;
  }
  return any;
}

size_t StageLinks::BytesPerRank(const StageLinkSizes& sizes) {
  if (sizes.stages == 1) return 0;
  constexpr size_t kAlignment = 64;  // lines between allocations of one rank
  return ProgressClock::BytesPerRank() + MessageLane::BytesPerRank(RowsOptions(sizes)) +
         MessageLane::BytesPerRank(ResultsOptions(sizes)) +
         MessageLane::BytesPerRank(RoutedOptions(sizes)) +
         MessageLane::BytesPerRank(ControlOptions(sizes)) +
         MessageLane::BytesPerRank(LoadsOptions(sizes)) +
         kFlagBytes * static_cast<size_t>(1 + 2 * sizes.stages) + 9 * kAlignment;
}

}  // namespace switchyard
