// Membership of this process in the group of nodes of one engine.
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

// The connections of a node to the other nodes. `mpi` and `nodes` are null for a single node. The
// MPI session is destroyed last, after the ranks have closed their connections.
struct Membership {
  std::unique_ptr<MpiSession> mpi;
  std::unique_ptr<NodeGroup> nodes;
  std::optional<NodeNetwork> network;  // taken from `nodes`; moved to the ranks at their start
  std::string job;                     // input of DecodeRankSpec
};

// Lead, on node 0: waits for the other nodes, compares their EngineStatement with its own, and
// sends them the job. Join, on other nodes: receives the job. Both return no value if `give_up`
// returns true. Errors: see NodeGroup and MpiSession.
std::optional<Membership> Lead(const Launch& launch, const EngineConfig& config,
                               const EnginePlan& plan, std::function<bool()> give_up);
std::optional<Membership> Join(const Launch& launch, const EngineConfig& config,
                               std::function<bool()> give_up);

// Starts the ranks of this node. `endpoint`: control endpoint of the front, used by rank 0. If
// `give_up` returns true, the wait for the ranks to join ends; it may be empty.
std::unique_ptr<RankHost> StartRanks(const Launch& launch, Membership& membership,
                                     const RankJob& job, const std::string& endpoint,
                                     RankHost::OnExit on_exit, std::function<bool()> give_up);

// Creates the arena of a rank that a launcher started as a process, with all other ranks attached.
std::shared_ptr<SharedArena> ArenaOfLaunchedRank(const Launch& launch, Membership& membership,
                                                 const RankJob& job);

}  // namespace switchyard
