#include "engine/kept_weights.h"

#include "comm/device/test_faults.h"
#include "core/error.h"
#include "core/log.h"
#include "engine/memory_plan.h"
#include "engine/speculative/draft_model.h"
#include "kernels/ops.h"
#include "model/weights/expert_loader.h"

namespace switchyard {

LoadedWeights KeptWeights::ForEpoch(const EngineConfig& config, const EnginePlan& plan, int rank,
                                    const std::vector<int>& active, SharedArena& arena) {
  if (!model.has_weights()) return {};
  const int arena_rank = active.empty() ? rank : active[rank];
  const auto check = [&arena, arena_rank] {
    arena.CountLoadStep(arena_rank);
    if (arena.aborted()) throw Error(ErrorKind::kPeer, arena.AbortReason());
  };
  const auto weights = [&](KeptModel& kept, const ModelShard& shard) {
    return active.empty() ? kept.Weights(shard, check) : kept.WeightsOfActive(shard, active, check);
  };
  LoadedWeights loaded{.model = weights(model, TargetShard(config, plan, rank))};
  if (plan.draft && draft.has_weights())
    loaded.draft = weights(draft, DraftShard(config, plan, rank));
  return loaded;
}

void KeptWeights::LoadDraft(const EngineConfig& config, const EnginePlan& plan, int rank,
                            SharedArena& arena) {
  if (!plan.draft) return;
  draft.Load(
      DraftShard(config, plan, rank), [&arena, rank](size_t, size_t) { arena.CountLoadStep(rank); },
      common_draft.get());
}

namespace {

bool ConvertsExperts(const ModelShard& shard) {
  return shard.config.has_moe() &&
         ExpertLoader(shard.dir, shard.config, shard.mesh, shard.load).Converts();
}

}  // namespace

void KeptWeights::LoadCommon(const EngineConfig& config, const EnginePlan& plan,
                             const std::function<void()>& count_step) {
  kernels::SelectIsa(config.cpu_isa);
  const bool copies = CopiesWeights(config, plan);
  const auto load = [&](ModelShard shard) {
    shard.load.progress = [&count_step](size_t, size_t) { count_step(); };
    auto common =
        std::make_unique<const CommonWeights>(shard.dir, shard.config, config.mesh, shard.load);
    // Maps the pages of the experts of all ranks, so that any rank's own weights load faster.
    const bool maps = !copies && !ConvertsExperts(shard);
    for (int rank = 0; maps && rank < config.mesh.world(); ++rank)
      common->Load(Mesh(config.mesh, rank), shard.load);
    return common;
  };
  if (plan.draft) common_draft = load(DraftShard(config, plan, 0));
  common_model = load(TargetShard(config, plan, 0));
}

void KeptWeights::LoadAbsent(const EngineConfig& config, const EnginePlan& plan, int rank,
                             SharedArena& arena) {
  if (model.has_weights()) return;
  kernels::SelectIsa(config.cpu_isa);
  if (const auto faults = TestFaults::FromEnvironment(rank)) faults->At("load");
  // The target comes last, because its weights show that the rank can serve.
  LoadDraft(config, plan, rank, arena);
  model.Load(
      TargetShard(config, plan, rank),
      [&arena, rank](size_t, size_t) { arena.CountLoadStep(rank); }, common_model.get());
  common_model.reset();
  common_draft.reset();
  LOG_INFO("this rank has loaded its weights");
}

}  // namespace switchyard
