// The epochs of a rank: its weights outlive the end of another rank.
#include <algorithm>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/log.h"
#include "engine/active_layout.h"
#include "engine/kept_weights.h"
#include "engine/rank_loop.h"

namespace switchyard {
namespace {

// Whether the rank can serve the next epoch: another rank aborted this epoch, and this rank has
// loaded its weights.
bool CanContinue(const std::exception& error, const SharedArena& arena, const KeptWeights& kept) {
  const auto* known = dynamic_cast<const Error*>(&error);
  return known && known->kind() == ErrorKind::kPeer && arena.has_epochs() &&
         arena.AbortReason() == known->what() && kept.can_continue();
}

// Whether the rank has failed because of another rank, whose memory may then be at fault.
bool IsOfPeer(const std::exception& error) {
  const auto* known = dynamic_cast<const Error*>(&error);
  return known && (known->kind() == ErrorKind::kPeer || known->kind() == ErrorKind::kTimeout);
}

// The configuration of the present epoch. The message of the front has the placement of experts at
// the end of the last epoch, as --init-expert-location; empty: that of the flags.
EngineConfig ConfigOfEpoch(EngineConfig config, const SharedArena& arena) {
  if (std::string location = arena.message(); !location.empty())
    config.moe.init_expert_location = std::move(location);
  return config;
}

// Serves during the present epoch, in which the rank is active.
void ServeEpoch(const EngineConfig& config, const EnginePlan& plan, int rank,
                const std::shared_ptr<SharedArena>& arena, const RankLoopIo& io,
                KeptWeights* kept) {
  const int group = Mesh(config.mesh, rank).dp_rank();
  const std::vector<int> active = arena->ActiveRanks();
  if (std::ssize(active) == arena->world()) {
    LoadAndServe(config, plan, rank, group, arena, io,
                 kept->ForEpoch(config, plan, rank, {}, *arena), kept);
    return;
  }
  // The abort of an epoch may have come before the draft model was loaded.
  kept->LoadDraft(config, plan, rank, *arena);
  const ActiveLayout layout = LayoutOfActive(config, plan, active);
  const auto index = static_cast<int>(std::ranges::find(active, rank) - active.begin());
  LoadAndServe(layout.config, layout.plan, rank, group, arena, io,
               kept->ForEpoch(layout.config, layout.plan, index, active, *arena), kept);
}

}  // namespace

void RunRankLoop(const EngineConfig& config, const EnginePlan& plan, int rank,
                 const std::shared_ptr<SharedArena>& arena, const RankLoopIo& io) {
  RunRankLoop(config, plan, rank, arena, io, KeptWeights());
}

void RunRankLoop(const EngineConfig& all_epochs, const EnginePlan& plan, int rank,
                 const std::shared_ptr<SharedArena>& arena, const RankLoopIo& io,
                 KeptWeights kept) {
  RankLoopIo current = io;
  std::function<void()> after_epoch = io.after_first_epoch;
  for (;;) {
    const uint32_t epoch = arena->epoch();
    try {
      const EngineConfig config = ConfigOfEpoch(all_epochs, *arena);
      if (arena->Active(rank)) {
        // Before the rank joins, so that only its other weights are loaded.
        if (kept.has_common()) kept.LoadAbsent(config, plan, rank, *arena);
        ServeEpoch(config, plan, rank, arena, current, &kept);
        return;
      }
      kept.LoadAbsent(config, plan, rank, *arena);
    } catch (const std::exception& error) {
      if (!CanContinue(error, *arena, kept)) {
        const std::string reason = fmt::format("rank {} failed: {}", rank, error.what());
        arena->Abort(reason);  // no effect if the arena is aborted already
        // The weights of the rank that has failed first may be the cause.
        if (kept.gpu && !IsOfPeer(error) && reason.starts_with(arena->AbortReason()))
          kept.gpu->Discard();
        const auto* known = dynamic_cast<const Error*>(&error);
        if (current.send)
          current.send(EngineFailure{error.what(), known ? known->kind() : ErrorKind::kResource});
        throw;
      }
    }
    if (arena->aborted() && kept.can_continue())
      LOG_INFO("{}; this rank keeps its weights and waits", arena->AbortReason());
    std::jthread after;  // its end is awaited before the next epoch begins
    if (after_epoch) after = std::jthread(std::exchange(after_epoch, {}));
    const std::string endpoint = arena->WaitForEpoch(rank, epoch);
    const bool leads = arena->ActiveRanks().front() == rank;
    if (current.reconnect) current = current.reconnect(leads ? endpoint : std::string());
  }
}

}  // namespace switchyard
