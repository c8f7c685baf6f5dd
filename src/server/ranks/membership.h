// Membership of this process in the group of nodes of one engine.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "comm/device/mpi/mpi_session.h"
#include "comm/host/node_group.h"
#include "server/args/args.h"
#include "server/ranks/launch.h"
#include "server/ranks/rank_host.h"
#include "server/service_manager.h"

namespace switchyard {

// The connections of a node to the other nodes. `mpi` and `nodes` are null for a single node. The
// MPI session is destroyed last, after the ranks have closed their connections.
struct Membership {
  std::unique_ptr<MpiSession> mpi;
  std::unique_ptr<NodeGroup> nodes;
  // Network of the ranks, from `nodes`; moved to the ranks at their start.
  std::optional<NodeNetwork> network;
  std::string job;                     // input of DecodeRankSpec
  std::shared_ptr<SharedArena> arena;  // arena of a launched rank, until that rank is started
  std::shared_ptr<ProcessHost> ranks;  // kept between epochs, once the ranks are started
};

// Whether and how ranks are restarted after one of them has ended. `stall_timeout`: see
// RankProcesses::Options.
struct RestartOptions {
  bool restarts = false;
  std::chrono::milliseconds stall_timeout{0};
  // Counts the spares of all layouts.
  std::shared_ptr<SpareCounts> spare_counts = std::make_shared<SpareCounts>();
  RankProcesses::RunsWith runs_with;  // of RankProcesses::BeginEpoch
  // The placement of experts with which the next epoch begins, as --init-expert-location; empty:
  // that of the flags.
  std::string location;

  static RestartOptions Of(const ServerArgs& args, bool restarts);
};

// Polled while the process waits for other nodes. Returns the signal that was received, which ends
// the wait, or 0. After the first signal it never returns 0.
using FindSignal = std::function<int()>;

// Call Lead on node 0: it waits for the other nodes, compares their EngineStatement with that of
// node 0, and sends them the job. `restart`: NodeGroup::Options::restart. `location`: as in
// RestartOptions. It is a part of the job only, because the statements have the flags of the nodes.
// Call Join on the other nodes: it receives the job. Both return nullopt if a signal arrives.
// Errors: see NodeGroup and MpiSession. MPI_Init cannot be interrupted: during it, a signal or the
// deadline ends the process with the exit code of RunServe.
std::optional<Membership> Lead(const Launch& launch, const EngineConfig& config,
                               const EnginePlan& plan, const FindSignal& find_signal,
                               bool restart = false, const std::string& location = {});
std::optional<Membership> Join(const Launch& launch, const EngineConfig& config,
                               const FindSignal& find_signal);
// Join after the end of a rank or node, if Launch::rejoins. Waits up to a minute for node 0. The
// connections have new keys, so messages from ranks of the last epoch are rejected.
std::optional<Membership> Rejoin(const Launch& launch, const EngineConfig& config,
                                 const FindSignal& find_signal);
// On node 0, after the engine has ended, if Launch::rejoins: tells the other nodes, which try to
// rejoin. Waits up to three seconds for them. Logs errors.
void DismissNodes(const Launch& launch, const EngineConfig& config, const std::string& why);
// If a launcher started this process as a rank, connects it to all other ranks; otherwise does
// nothing. Returns false if a signal arrives. Error kTimeout names the missing ranks.
bool ConnectLaunchedRank(const Launch& launch, Membership& membership, const RankJob& job,
                         const FindSignal& find_signal);

// Starts the ranks of this node. `endpoint`: control endpoint of the front, used by rank 0. If
// `give_up` returns true, the wait for the ranks to join ends; `give_up` may be empty. Call after
// ConnectLaunchedRank. With restarts, it is called again for each epoch, once every rank of the
// previous epoch has ended or waits for the new epoch. Then it starts the ranks that have ended.
// `on_arena`: called with a new arena before its ranks start, if they are processes of this server;
// may be empty.
using OnArena = std::function<void(const std::shared_ptr<SharedArena>&)>;
std::unique_ptr<RankHost> StartRanks(const Launch& launch, Membership& membership,
                                     const RankJob& job, const RestartOptions& restart,
                                     const std::string& endpoint, RankHost::OnExit on_exit,
                                     std::function<bool()> give_up, const OnArena& on_arena = {});

// `switchyard serve` on nodes other than 0, which run ranks but no HTTP server.

// Runs the node's ranks until node 0 ends the engine, and returns 0. Returns 128 + signal for a
// signal before all nodes have joined. If the engine is lost, logs the reason and returns 1. After
// all nodes have joined, ignores the first SIGTERM or SIGINT, since node 0 still needs these ranks
// for its requests. A second signal ends the node, and with it the engine. Throws Error for
// failures before the ranks run.
int RunFollower(const ServerArgs& args, const Launch& launch, const StopSignals& signals,
                ServiceManager& manager);

}  // namespace switchyard
