#include "server/ranks/membership.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "comm/device/tcp/tcp_ranks.h"
#include "core/duration.h"
#include "core/error.h"
#include "core/log.h"
#include "core/log_queue.h"
#include "engine/kept_gpu_memory.h"
#include "engine/kept_pages.h"
#include "engine/memory_plan.h"

namespace switchyard {
namespace {

std::chrono::milliseconds TimeoutOf(const EngineConfig& config) {
  return Milliseconds(config.dist_timeout_seconds);
}

// Time for which a node waits for node 0 after a restart begins. The ranks of node 0 may take 30 s
// to end.
constexpr std::chrono::seconds kRejoinTime{60};

NodeGroup::Options GroupOptions(const Launch& launch, const EngineConfig& config,
                                const FindSignal& find_signal,
                                std::chrono::milliseconds connect_timeout = {}) {
  Statement statement = EngineStatement(config);
  statement.push_back({"--enable-elastic-ep", launch.rejoins ? "set" : "not set"});
  return {.nodes = launch.nodes,
          .node = launch.node,
          .address = *launch.address,
          .ranks_per_node = launch.ranks_per_node,
          .statement = std::move(statement),
          .secret = launch.secret,
          .timeout = TimeoutOf(config),
          .connect_timeout = connect_timeout,
          .give_up = [&find_signal] { return find_signal() != 0; }};
}

// Ends the process. Called from another thread, because MPI_Init cannot be interrupted.
[[noreturn]] void AbandonStart(const std::string& why, int signal) {
  if (why.empty()) {
    LOG_WARNING("the start was interrupted by signal {} in MPI_Init", signal);
  } else {
    LOG_ERROR("{} (--dist-timeout)", why);
  }
  FlushLog(std::chrono::seconds(1));
  _exit(why.empty() ? 128 + signal : 1);
}

std::optional<Membership> MeetOverMpi(const Launch& launch, const EngineConfig& config,
                                      const std::string& job, const FindSignal& find_signal) {
  Membership membership;
  membership.mpi = MpiSession::Start(
      *launch.launched,
      {.timeout = TimeoutOf(config),
       .give_up = [&find_signal] { return find_signal() != 0; },
       .abandon = [&find_signal](const std::string& why) { AbandonStart(why, find_signal()); }});
  const auto decision = membership.mpi->Agree(
      EncodeStatement(EngineStatement(config)),
      [&](const std::vector<std::string>& statements) { return DecideJob(statements, job); });
  if (!decision) return std::nullopt;
  membership.job = DecodeJob(*decision);
  return membership;
}

// Logs the warning once on each node that was started with --nnodes. With a launcher, only rank 0
// logs it.
void WarnWithoutSecret(const Launch& launch) {
  if (!launch.secret.empty() || (launch.launched && launch.node > 0)) return;
  LOG_WARNING(
      "nodes are not authenticated: any host that reaches {} can join or end the engine; pass "
      "--dist-secret-file on all nodes",
      launch.address->Text());
}

}  // namespace

RestartOptions RestartOptions::Of(const ServerArgs& args, bool restarts) {
  if (!restarts) return {};
  return {.restarts = true,
          .stall_timeout = std::chrono::ceil<std::chrono::milliseconds>(
              std::chrono::duration<double>(args.rank_stall_seconds))};
}

std::optional<Membership> Lead(const Launch& launch, const EngineConfig& config,
                               const EnginePlan& plan, const FindSignal& find_signal, bool restart,
                               const std::string& location) {
  EngineConfig of_epoch = config;
  if (!location.empty()) of_epoch.moe.init_expert_location = location;
  Membership membership{.job = EncodeRankSpec(of_epoch, plan)};
  if (launch.alone()) return membership;
  if (!launch.address) return MeetOverMpi(launch, config, membership.job, find_signal);
  if (!restart) WarnWithoutSecret(launch);
  NodeGroup::Options options = GroupOptions(launch, config, find_signal);
  options.restart = restart;
  membership.nodes = NodeGroup::Lead(options, membership.job);
  if (membership.nodes == nullptr) return std::nullopt;
  membership.network = std::move(membership.nodes->network());
  return membership;
}

namespace {

std::optional<Membership> JoinNodes(const NodeGroup::Options& options) {
  Membership membership;
  membership.nodes = NodeGroup::Join(options);
  if (membership.nodes == nullptr) return std::nullopt;
  membership.network = std::move(membership.nodes->network());
  membership.job = membership.nodes->job();
  return membership;
}

}  // namespace

std::optional<Membership> Join(const Launch& launch, const EngineConfig& config,
                               const FindSignal& find_signal) {
  if (!launch.address) return MeetOverMpi(launch, config, {}, find_signal);
  WarnWithoutSecret(launch);
  return JoinNodes(GroupOptions(launch, config, find_signal));
}

std::optional<Membership> Rejoin(const Launch& launch, const EngineConfig& config,
                                 const FindSignal& find_signal) {
  using Clock = std::chrono::steady_clock;
  const auto until = Clock::now() + kRejoinTime;
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    try {
      return JoinNodes(
          GroupOptions(launch, config, find_signal, std::max(left, std::chrono::milliseconds(1))));
    } catch (const Error& error) {
      // A node left before all nodes had joined. It may join again, so try until the deadline.
      if (error.kind() != ErrorKind::kPeer || Clock::now() >= until) throw;
      LOG_WARNING("{}", error.what());
    }
  }
}

void DismissNodes(const Launch& launch, const EngineConfig& config, const std::string& why) {
  constexpr std::chrono::seconds kTime{3};
  const FindSignal none = [] { return 0; };
  try {
    NodeGroup::Dismiss(GroupOptions(launch, config, none), why, kTime);
  } catch (const Error& error) {
    LOG_WARNING("the other nodes do not learn that the engine has ended: {}", error.what());
  }
}

bool ConnectLaunchedRank(const Launch& launch, Membership& membership, const RankJob& job,
                         const FindSignal& find_signal) {
  if (!launch.launched) return true;
  membership.arena =
      SharedArena::Create(job.config.mesh.world(), job.plan.symmetric_bytes_per_rank);
  if (membership.mpi) {
    membership.mpi->Attach(*membership.arena);
    return true;
  }
  return ConnectTcpRanks(*membership.arena, launch.node,
                         std::move(membership.network->listeners[0]), membership.network->world,
                         TimeoutOf(job.config), [&find_signal] { return find_signal() != 0; });
}

std::unique_ptr<RankHost> StartRanks(const Launch& launch, Membership& membership,
                                     const RankJob& job, const RestartOptions& restart,
                                     const std::string& endpoint, RankHost::OnExit on_exit,
                                     std::function<bool()> give_up, const OnArena& on_arena) {
  if (launch.launched) {
    return std::make_unique<ThreadHost>(job, launch.node, std::move(membership.arena), endpoint,
                                        std::move(on_exit));
  }
  if (membership.ranks) {
    membership.ranks->BeginEpoch(endpoint, std::move(on_exit), restart.runs_with, restart.location);
    return std::make_unique<EpochHost>(membership.ranks);
  }
  // If a rank ends, the other ranks of a single node keep their weights for the next epoch. On
  // GPUs, the next process of the rank maps its weights. Ranks on GPUs that cannot keep their
  // weights are killed immediately and load again. With several nodes, the ranks of all nodes are
  // started again.
  const bool on_gpus = job.plan.cuda;
  const bool keeps_weights =
      restart.restarts && launch.alone() && (!on_gpus || KeepsGpuWeights(job.config, job.plan));
  RankProcesses::Options options{
      .world = job.config.mesh.world(),
      .spec = EncodeRankSpec(job.config, job.plan),
      .control_endpoint = endpoint,
      .network = std::move(membership.network),
      .join_timeout = TimeoutOf(job.config),
      .watchdog_timeout = Milliseconds(job.config.watchdog_timeout_seconds),
      .stall_timeout = restart.stall_timeout,
      .load_timeout = TimeoutOf(job.config),
      .give_up = std::move(give_up),
      .epochs = keeps_weights,
      .keeps_descriptors = keeps_weights && on_gpus,
      .spares = job.config.spare_ranks,
      // Experts that are mapped load in milliseconds. Other experts would make the pause longer.
      .spares_join = !CopiesWeights(job.config, job.plan),
      .spare_counts = restart.spare_counts};
  const bool keeps_pages = keeps_weights || job.config.disaggregated();
  auto arena = SharedArena::Create(job.config.mesh.world(), job.plan.symmetric_bytes_per_rank,
                                   keeps_pages ? KeptPages::BytesPerRank(job.config, job.plan) : 0,
                                   /*messages=*/keeps_weights);
  if (on_arena) on_arena(arena);
  if (!keeps_weights)
    return std::make_unique<ProcessHost>(std::move(arena), std::move(options), std::move(on_exit));
  membership.ranks =
      std::make_shared<ProcessHost>(std::move(arena), std::move(options), std::move(on_exit));
  return std::make_unique<EpochHost>(membership.ranks);
}

}  // namespace switchyard
