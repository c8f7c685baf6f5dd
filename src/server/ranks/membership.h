// This process's place among the nodes of one engine.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "comm/device/mpi/mpi_session.h"
#include "comm/host/node_group.h"
#include "server/ranks/launch.h"
#include "server/ranks/rank_host.h"

namespace switchyard {

// What connects a node with the others; both are absent where it is alone. The MPI session ends
// last, after the ranks have said goodbye.
struct Membership {
  std::unique_ptr<MpiSession> mpi;
  std::unique_ptr<NodeGroup> nodes;
  std::optional<NodeNetwork> network;  // of `nodes`, until the ranks are started
  std::string job;                     // for DecodeRankSpec
};

// Node 0: waits for the others, compares what they were started with, and hands out the job. The
// others: get it. Nothing where `give_up` says so; errors as of NodeGroup and MpiSession.
std::optional<Membership> Lead(const Launch& launch, const EngineConfig& config,
                               const EnginePlan& plan, std::function<bool()> give_up);
std::optional<Membership> Join(const Launch& launch, const EngineConfig& config,
                               std::function<bool()> give_up);

// Starts the ranks of this node. `endpoint`: where rank 0 finds the front. `give_up` ends the wait
// for them to join; it may be empty.
std::unique_ptr<RankHost> StartRanks(const Launch& launch, Membership& membership,
                                     const RankJob& job, const std::string& endpoint,
                                     RankHost::OnExit on_exit, std::function<bool()> give_up);

// The arena of a rank that a launcher has started as a process, with all others attached.
std::shared_ptr<SharedArena> ArenaOfLaunchedRank(const Launch& launch, Membership& membership,
                                                 const RankJob& job);

}  // namespace switchyard
