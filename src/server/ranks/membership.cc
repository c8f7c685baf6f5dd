#include "server/ranks/membership.h"

#include <utility>

#include "comm/device/tcp/tcp_ranks.h"
#include "core/error.h"

namespace switchyard {
namespace {

std::chrono::milliseconds Milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

std::chrono::milliseconds TimeoutOf(const EngineConfig& config) {
  return Milliseconds(config.dist_timeout_seconds);
}

NodeGroup::Options GroupOptions(const Launch& launch, const EngineConfig& config,
                                std::function<bool()> give_up) {
  return {.nodes = launch.nodes,
          .node = launch.node,
          .address = *launch.address,
          .ranks_per_node = launch.ranks_per_node,
          .statement = EngineStatement(config),
          .timeout = TimeoutOf(config),
          .give_up = std::move(give_up)};
}

// Rank 0's reply to the statements of all ranks: the job, or a refusal with its reason.
std::string DecideJob(const std::vector<std::string>& statements, const std::string& job) {
  const Statement node0 = DecodeStatement(statements[0]);
  try {
    for (size_t rank = 1; rank < statements.size(); ++rank) {
      CheckSame(node0, DecodeStatement(statements[rank]), fmt::format("rank {}", rank));
    }
  } catch (const Error& error) {
    return EncodeRefusal(error.what());
  }
  return EncodeJob(job);
}

Membership MeetOverMpi(const Launch& launch, const EngineConfig& config, const std::string& job) {
  Membership membership;
  membership.mpi = MpiSession::Start(launch.nodes, launch.launched->launcher);
  const std::string decision = membership.mpi->Agree(
      EncodeStatement(EngineStatement(config)),
      [&](const std::vector<std::string>& statements) { return DecideJob(statements, job); },
      TimeoutOf(config));
  membership.job = DecodeJob(decision);
  return membership;
}

}  // namespace

std::optional<Membership> Lead(const Launch& launch, const EngineConfig& config,
                               const EnginePlan& plan, std::function<bool()> give_up) {
  Membership membership{.job = EncodeRankSpec(config, plan)};
  if (launch.alone()) return membership;
  if (!launch.address) return MeetOverMpi(launch, config, membership.job);
  membership.nodes =
      NodeGroup::Lead(GroupOptions(launch, config, std::move(give_up)), membership.job);
  if (membership.nodes == nullptr) return std::nullopt;
  membership.network = std::move(membership.nodes->network());
  return membership;
}

std::optional<Membership> Join(const Launch& launch, const EngineConfig& config,
                               std::function<bool()> give_up) {
  if (!launch.address) return MeetOverMpi(launch, config, {});
  Membership membership;
  membership.nodes = NodeGroup::Join(GroupOptions(launch, config, std::move(give_up)));
  if (membership.nodes == nullptr) return std::nullopt;
  membership.network = std::move(membership.nodes->network());
  membership.job = membership.nodes->job();
  return membership;
}

std::shared_ptr<SharedArena> ArenaOfLaunchedRank(const Launch& launch, Membership& membership,
                                                 const RankJob& job) {
  auto arena = SharedArena::Create(job.config.mesh.tp, job.plan.symmetric_bytes_per_rank);
  if (membership.mpi) {
    membership.mpi->Attach(*arena);
  } else {
    ConnectTcpRanks(*arena, launch.node, std::move(membership.network->listeners[0]),
                    membership.network->world, TimeoutOf(job.config));
  }
  return arena;
}

std::unique_ptr<RankHost> StartRanks(const Launch& launch, Membership& membership,
                                     const RankJob& job, const std::string& endpoint,
                                     RankHost::OnExit on_exit, std::function<bool()> give_up) {
  if (launch.launched) {
    return std::make_unique<ThreadHost>(job, launch.node,
                                        ArenaOfLaunchedRank(launch, membership, job), endpoint,
                                        std::move(on_exit));
  }
  RankProcesses::Options options{
      .world = job.config.mesh.tp,
      .spec = EncodeRankSpec(job.config, job.plan),
      .control_endpoint = endpoint,
      .network = std::move(membership.network),
      .join_timeout = TimeoutOf(job.config),
      .watchdog_timeout = Milliseconds(job.config.watchdog_timeout_seconds),
      .give_up = std::move(give_up)};
  return std::make_unique<ProcessHost>(
      SharedArena::Create(job.config.mesh.tp, job.plan.symmetric_bytes_per_rank),
      std::move(options), std::move(on_exit));
}

}  // namespace switchyard
