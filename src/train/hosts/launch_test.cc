#include "train/hosts/launch.h"

#include <gmock/gmock.h>

#include "core/testing.h"

namespace switchyard::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string ErrorOfPlan(const LaunchFlags& flags, int ranks,
                        const std::optional<LaunchedRank>& launched = {}) {
  return ErrorOf([&] { PlanLaunch(flags, ranks, launched); });
}

TEST(TrainLaunchTest, OneHostHasThreadsUnlessRanksAreRestarted) {
  EXPECT_EQ(PlanLaunch({}, 4, {}).ranks, Launch::Ranks::kThreads);
  const Launch launch = PlanLaunch({.max_restarts = 3}, 4, {});
  EXPECT_EQ(launch.ranks, Launch::Ranks::kProcesses);
  EXPECT_EQ(launch.ranks_per_node, 4);
  EXPECT_TRUE(launch.leads());
}

TEST(TrainLaunchTest, RanksOnGpusAreProcessesOfOneHost) {
  EXPECT_EQ(PlanLaunch({.gpus = true}, 1, {}).ranks, Launch::Ranks::kThreads);
  const Launch launch = PlanLaunch({.rank_stall_timeout = true, .gpus = true}, 2, {});
  EXPECT_EQ(launch.ranks, Launch::Ranks::kProcesses);
  EXPECT_EQ(launch.ranks_per_node, 2);
  EXPECT_THAT(ErrorOfPlan({.nnodes = 2, .dist_init_addr = "h:1", .gpus = true}, 2),
              HasSubstr("want --nnodes 1, not 2"));
  EXPECT_THAT(ErrorOfPlan({.gpus = true}, 2, LaunchedRank{.world = 2, .launcher = "mpirun"}),
              HasSubstr("mpirun started 2 processes"));
}

TEST(TrainLaunchTest, HostsShareTheRanksEvenly) {
  const LaunchedRank per_host{.rank = 1, .world = 2, .launcher = "srun"};
  const Launch launch =
      PlanLaunch({.nnodes = 2, .node_rank = 1, .dist_init_addr = "10.0.0.1:5000"}, 6, per_host);
  EXPECT_EQ(launch.ranks, Launch::Ranks::kProcesses);
  EXPECT_EQ(launch.ranks_per_node, 3);
  EXPECT_EQ(launch.address->port, 5000);
  EXPECT_FALSE(launch.leads());
}

TEST(TrainLaunchTest, ALaunchersProcessIsOneRank) {
  LaunchedRank place{.rank = 3, .world = 4, .launcher = "mpirun"};
  Launch launch = PlanLaunch({}, 4, place);
  EXPECT_EQ(launch.ranks, Launch::Ranks::kThis);
  EXPECT_EQ(launch.node, 3);
  EXPECT_FALSE(launch.address);
  place.address = "n0:29501";
  EXPECT_EQ(PlanLaunch({}, 4, place).address->Text(), "n0:29501");
  EXPECT_EQ(PlanLaunch({.dist_init_addr = "n1:7"}, 4, place).address->Text(), "n1:7");
  EXPECT_EQ(PlanLaunch({.node_rank = 3}, 4, place).node, 3);
}

TEST(TrainLaunchTest, WhatALaunchCannotHonourIsRefused) {
  const LaunchedRank mpi{.rank = 0, .world = 2, .launcher = "mpirun", .variable = "PMI_RANK"};
  EXPECT_THAT(ErrorOfPlan({}, 4, mpi), AllOf(HasSubstr("mpirun started 2 processes"),
                                             HasSubstr("env -u PMI_RANK switchyard train")));
  EXPECT_THAT(ErrorOfPlan({.node_rank = 1}, 2, mpi),
              HasSubstr("--node-rank 1: this process is rank 0 of 2"));
  EXPECT_THAT(ErrorOfPlan({.max_restarts = 1}, 2, mpi), HasSubstr("--max-restarts: the ranks are"));
  EXPECT_THAT(ErrorOfPlan({.dist_secret_file = "f"}, 2, mpi), HasSubstr("over MPI"));
  EXPECT_THAT(ErrorOfPlan({.early_sums = true}, 2, mpi), HasSubstr("--early-sums: needs"));
  EXPECT_THAT(ErrorOfPlan({.max_restarts = 1, .early_sums = true}, 2), HasSubstr("--early-sums"));
  EXPECT_THAT(ErrorOfPlan({.rank_stall_timeout = true}, 2), HasSubstr("--rank-stall-timeout"));
  EXPECT_THAT(ErrorOfPlan({.nnodes = 3, .dist_init_addr = "h:1"}, 4), HasSubstr("--nnodes 3"));
  EXPECT_THAT(ErrorOfPlan({.nnodes = 2}, 4), HasSubstr("requires --dist-init-addr"));
  EXPECT_THAT(ErrorOfPlan({.nnodes = 2, .node_rank = 2}, 4), HasSubstr("--node-rank 2"));
  EXPECT_THAT(ErrorOfPlan({.dist_init_addr = "h:1"}, 4), HasSubstr("--dist-init-addr h:1"));
  EXPECT_THAT(ErrorOfPlan({.dist_secret_file = "f"}, 4), HasSubstr("--dist-secret-file f"));
}

}  // namespace
}  // namespace switchyard::train
