#include "engine/expert_services.h"

#include <utility>

#include "core/error.h"
#include "eplb/rank_flags.h"

namespace switchyard {
namespace {

bool DispatchesShared(const EngineConfig& config, const MoeModelConfig& moe) {
  return config.moe.waterfill && moe.shared_intermediate > 0;
}

std::unique_ptr<ExpertRecorder> MakeRecorder(const EngineConfig& config, const EnginePlan& plan,
                                             RankComm& comm) {
  if (!config.recorder.any()) return nullptr;
  const ModelConfig& model = plan.model;
  const ExpertRecorderShape shape{.layers = static_cast<int>(model.num_layers()),
                                  .first_layer = plan.stages[comm.mesh.pp_rank()].begin,
                                  .experts = model.moe->router.num_experts,
                                  .top_k = model.moe->router.top_k,
                                  .redundant = config.moe.num_redundant_experts,
                                  .shared_dispatched = DispatchesShared(config, *model.moe)};
  return std::make_unique<ExpertRecorder>(config.recorder, shape, comm);
}

std::unique_ptr<EplbManager> MakeManager(const EngineConfig& config, const EnginePlan& plan,
                                         RankComm& comm) {
  if (!config.eplb.enable || !plan.model.has_moe()) return nullptr;  // a stage without experts
  return std::make_unique<EplbManager>(config.eplb, EplbShapeOf(config, plan), comm);
}

std::unique_ptr<BatchReplicas> MakeReplicas(const EngineConfig& config, const Mesh& mesh) {
  const EpDispatchAlgorithm dispatch = ParseEpDispatchAlgorithm(config.eplb.dispatch);
  if (dispatch == EpDispatchAlgorithm::kStatic) return nullptr;
  return std::make_unique<BatchReplicas>(dispatch, mesh, ScattersTokens(config.moe, config.mesh),
                                         RankCostsOf(config));
}

}  // namespace

std::vector<RankCost> RankCostsOf(const EngineConfig& config) {
  return ParseRankCosts("--eplb-rank-costs", config.eplb.rank_costs);
}

int NumExpertNodes(const EngineConfig& config, const EnginePlan& plan) {
  if (config.mesh.tp % plan.ranks_of_host != 0) return 1;
  const int hosts = config.mesh.tp / plan.ranks_of_host;
  return config.mesh.ep % hosts == 0 ? hosts : 1;
}

EplbShape EplbShapeOf(const EngineConfig& config, const EnginePlan& plan) {
  const MoeModelConfig& moe = *plan.model.moe;
  return {.layers = static_cast<int>(plan.model.num_layers()),
          .experts = moe.router.num_experts,
          .redundant = config.moe.num_redundant_experts,
          .groups = moe.router.num_groups,
          .nodes = NumExpertNodes(config, plan),
          .shared_dispatched = DispatchesShared(config, moe),
          .slots = config.mesh.expert_slots,
          .costs = RankCostsOf(config),
          .sources = config.mesh.expert_ranks > 0 ? config.mesh.attention_groups() : 0};
}

ExpertServices::ExpertServices(const EngineConfig& config, const EnginePlan& plan,
                               const EnginePlan& whole, RankComm& comm)
    : recorder(MakeRecorder(config, whole, comm)),
      manager(MakeManager(config, plan, comm)),
      replicas(MakeReplicas(config, comm.mesh)) {
  std::vector<RoutingObserver*> watching;
  if (recorder) watching.push_back(recorder.get());
  if (manager) watching.push_back(manager.get());
  if (!watching.empty()) observers = std::make_unique<Observers>(std::move(watching));
}

void ExpertServices::AddTo(ModelOptions* options) const {
  options->observer = observers.get();
  options->chooser = replicas.get();
  options->movable_experts = manager != nullptr;
}

namespace {

constexpr char kNoRecorder[] =
    "expert counting is disabled: start with --expert-distribution-recorder-mode or "
    "--enable-expert-distribution-metrics";

// Returns the text of an Error kInvalid in the result, because this error occurs on every rank.
// Rethrows other errors.
RecordResult Record(const RecordExperts& requested, ExpertRecorder* recorder) {
  RecordResult result{.ticket = requested.ticket};
  try {
    if (!recorder) throw Invalid("{}", kNoRecorder);
    if (requested.action == RecordAction::kStart) result.changed = recorder->Start();
    if (requested.action == RecordAction::kStop) result.changed = recorder->Stop();
    if (requested.action == RecordAction::kDump) result.dump = recorder->Dump();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kInvalid) throw;
    result.dump.error = error.what();
  }
  return result;
}

}  // namespace

std::vector<EngineMessage> ApplyToRecorder(const std::vector<ControlMessage>& messages,
                                           ExpertRecorder* recorder, bool is_leader) {
  std::vector<EngineMessage> answers;
  for (const ControlMessage& message : messages) {
    if (const auto* record = std::get_if<RecordExperts>(&message)) {
      RecordResult result = Record(*record, recorder);
      if (is_leader) answers.emplace_back(std::move(result));
    } else if (const auto* get = std::get_if<GetExpertLoad>(&message)) {
      ExpertLoadReport report{.ticket = get->ticket};
      if (recorder) {
        report.load = recorder->Load();
      } else {
        report.error = kNoRecorder;
      }
      if (is_leader) answers.emplace_back(std::move(report));
    }
  }
  return answers;
}

std::vector<EngineMessage> ApplyToEplb(const std::vector<ControlMessage>& messages,
                                       EplbManager* eplb, bool is_leader) {
  constexpr char kNone[] =
      "EPLB is disabled: start with --enable-eplb, or wait until all ranks serve";
  std::vector<EngineMessage> answers;
  const auto answer = [&](uint64_t ticket, std::string refused, bool slots = false) {
    if (!is_leader) return;
    EplbReport report{.ticket = ticket,
                      .status = eplb ? eplb->Status() : EplbStatus(),
                      .refused = std::move(refused)};
    if (eplb && slots) report.slots = eplb->Slots();
    answers.emplace_back(std::move(report));
  };
  for (const ControlMessage& message : messages) {
    if (const auto* ask = std::get_if<RebalanceExperts>(&message)) {
      answer(ask->ticket, eplb ? eplb->Rebalance() : kNone);
    } else if (const auto* get = std::get_if<GetEplb>(&message)) {
      answer(get->ticket, eplb ? "" : kNone, get->slots);
    }
  }
  return answers;
}

}  // namespace switchyard
