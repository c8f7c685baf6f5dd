#include "server/ranks/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "core/temporary_directory.h"

namespace switchyard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

ServerArgs ArgsOf(int tp, int nnodes = 1, int node_rank = 0, const std::string& address = {}) {
  ServerArgs args;
  args.engine.mesh.tp = tp;
  args.nnodes = nnodes;
  args.node_rank = node_rank;
  args.dist_init_addr = address;
  return args;
}

std::string RefusalOf(const ServerArgs& args, const std::optional<LaunchedRank>& launched = {}) {
  try {
    PlanLaunch(args, launched);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
    return error.what();
  }
  return "accepted";
}

TEST(LaunchTest, AloneItStartsAllRanks) {
  const Launch launch = PlanLaunch(ArgsOf(4), {});
  EXPECT_TRUE(launch.alone());
  EXPECT_EQ(launch.ranks_per_node, 4);
  EXPECT_EQ(launch.ranks_of_host, 4);
  EXPECT_FALSE(launch.launched);
}

TEST(LaunchTest, NodesShareTheRanks) {
  const Launch launch = PlanLaunch(ArgsOf(8, 2, 1, "10.0.0.1:5000"), {});
  EXPECT_EQ(launch.nodes, 2);
  EXPECT_EQ(launch.node, 1);
  EXPECT_EQ(launch.ranks_per_node, 4);
  EXPECT_EQ(launch.ranks_of_host, 4);
  EXPECT_EQ(launch.address->Text(), "10.0.0.1:5000");
}

TEST(LaunchTest, EveryProcessOfALauncherIsARank) {
  const LaunchedRank rank{.rank = 2, .world = 4, .ranks_of_host = 2, .launcher = "mpirun"};
  const Launch mpi = PlanLaunch(ArgsOf(4), rank);
  EXPECT_EQ(mpi.nodes, 4);
  EXPECT_EQ(mpi.node, 2);
  EXPECT_EQ(mpi.ranks_per_node, 1);
  EXPECT_EQ(mpi.ranks_of_host, 2);
  EXPECT_FALSE(mpi.address);
  EXPECT_TRUE(PlanLaunch(ArgsOf(4, 1, 0, "[::1]:80"), rank).address);
  EXPECT_EQ(PlanLaunch(ArgsOf(4, 1, 2), rank).node, 2);
  EXPECT_THAT(RefusalOf(ArgsOf(4, 1, 1), rank),
              HasSubstr("--node-rank 1: this process is rank 2 of 4 in the environment of mpirun"));
}

TEST(LaunchTest, NnodesComesBeforeALauncher) {
  const LaunchedRank task{.rank = 1, .world = 2, .launcher = "srun"};  // one task per node
  const Launch launch = PlanLaunch(ArgsOf(8, 2, 1, "10.0.0.1:5000"), task);
  EXPECT_EQ(launch.ranks_per_node, 4);
  EXPECT_FALSE(launch.launched);
}

TEST(LaunchTest, RefusalsNameTheFlags) {
  EXPECT_THAT(RefusalOf(ArgsOf(4, 3, 0, "h:1")),
              HasSubstr("--nnodes 3 does not divide --tp-size 4"));
  EXPECT_THAT(RefusalOf(ArgsOf(4, 2, 2, "h:1")), HasSubstr("--node-rank 2: want 0 to 1"));
  EXPECT_THAT(RefusalOf(ArgsOf(4, 1, 1)), HasSubstr("--node-rank 1"));
  EXPECT_THAT(RefusalOf(ArgsOf(4, 2, 0)), HasSubstr("--dist-init-addr"));
  EXPECT_THAT(RefusalOf(ArgsOf(4, 2, 0, "host")), HasSubstr("--dist-init-addr 'host'"));
  EXPECT_THAT(RefusalOf(ArgsOf(0)), HasSubstr("--tp-size 0"));
  EXPECT_THAT(
      RefusalOf(ArgsOf(4), LaunchedRank{.world = 2, .launcher = "srun"}),
      AllOf(HasSubstr("srun started 2 processes, but --tp-size is 4"), HasSubstr("--nnodes")));
  EXPECT_THAT(RefusalOf(ArgsOf(4),
                        LaunchedRank{
                            .world = 2, .launcher = "torchrun", .variable = "TORCHELASTIC_RUN_ID"}),
              HasSubstr("env -u TORCHELASTIC_RUN_ID switchyard serve"));
}

// A node may have several stages, one stage, or a part of one.
TEST(LaunchTest, NodesHaveConsecutiveRanksOfStages) {
  ServerArgs args = ArgsOf(2, 2, 1, "h:1");
  args.engine.mesh.pp = 4;
  EXPECT_EQ(PlanLaunch(args, {}).ranks_per_node, 4);
  args.nnodes = 8;
  EXPECT_EQ(PlanLaunch(args, {}).ranks_per_node, 1);
  args.nnodes = 3;
  EXPECT_THAT(RefusalOf(args),
              HasSubstr("--nnodes 3 does not divide the 8 ranks of --pp-size 4 and --tp-size 2"));
  args.nnodes = 1;
  args.node_rank = 0;
  EXPECT_THAT(RefusalOf(args, LaunchedRank{.world = 2, .launcher = "srun"}),
              HasSubstr("srun started 2 processes, but --pp-size times --tp-size is 8"));
}

// Ranks of several nodes or of a launcher do not share memory.
TEST(LaunchTest, FlagsThatNeedSharedMemoryAreRefusedOnEveryNode) {
  const auto refusal = [](auto change, bool launched, bool nodes) {
    ServerArgs args = nodes ? ArgsOf(2, 2, 1, "h:1") : ArgsOf(2);
    change(args.engine);
    const LaunchedRank rank{.rank = 1,
                            .world = args.engine.mesh.world(),
                            .ranks_of_host = args.engine.mesh.world(),
                            .launcher = "mpirun"};
    return RefusalOf(args, launched ? std::optional(rank) : std::nullopt);
  };
  const auto prefill = [](EngineConfig& c) { c.disaggregation_mode = "prefill"; };
  EXPECT_EQ(refusal(prefill, false, false), "accepted");
  EXPECT_THAT(
      refusal(prefill, true, false),
      HasSubstr("--disaggregation-mode prefill: supported on ranks that share memory only"));
  EXPECT_THAT(refusal(prefill, false, true),
              HasSubstr("--disaggregation-mode prefill: supported on one host only"));
  const auto stages = [](EngineConfig& c) { c.mesh.pp = 2; };
  EXPECT_EQ(refusal(stages, false, false), "accepted");
  EXPECT_EQ(refusal(stages, true, false), "accepted");
  EXPECT_EQ(refusal(stages, false, true), "accepted");
  const auto none = [](EngineConfig&) {};
  EXPECT_EQ(refusal(none, true, false), "accepted");
}

TEST(LaunchTest, FlagsOfRestartsNeedRanksThatCanRestart) {
  ServerArgs args = ArgsOf(2);
  args.restart_flags = {"--max-rank-deaths"};
  EXPECT_EQ(RefusalOf(args), "accepted");
  EXPECT_THAT(RefusalOf(args, LaunchedRank{.world = 2, .launcher = "mpirun"}),
              HasSubstr("--max-rank-deaths: ranks started by a launcher"));
  ServerArgs nodes = ArgsOf(2, 2, 0, "h:1");
  nodes.restart_flags = {"--max-rank-deaths"};
  EXPECT_THAT(RefusalOf(nodes), HasSubstr("only --enable-elastic-ep restarts ranks"));
  nodes.enable_elastic_ep = true;
  EXPECT_EQ(RefusalOf(nodes), "accepted");
  EnginePlan plan;
  const Launch launch = PlanLaunch(nodes, {});
  CheckRejoins(launch, plan);
  plan.cuda = true;
  EXPECT_THROW(CheckRejoins(launch, plan), Error);
  args.engine.mesh.pp = 2;
  EXPECT_THAT(RefusalOf(args), HasSubstr("--max-rank-deaths: with --pp-size 2"));
  nodes.restart_flags = {"--spare-ranks"};
  nodes.engine.spare_ranks = 1;
  EXPECT_THAT(RefusalOf(nodes), HasSubstr("--spare-ranks 1: with several nodes"));
  args = ArgsOf(2);
  args.restart_flags = {"--max-rank-deaths"};
  args.disable_elastic_ep = true;
  EXPECT_THAT(RefusalOf(args), HasSubstr("--disable-elastic-ep exclude each other"));
}

class LaunchSecretTest : public ::testing::Test {
 protected:
  void SetUp() override { std::ofstream(path_) << "0123456789abcdef\n"; }
  ServerArgs Nodes() const {
    ServerArgs args = ArgsOf(8, 2, 1, "10.0.0.1:5000");
    args.require_dist_secret = true;
    return args;
  }
  const TemporaryDirectory temporary_;
  const std::string path_ = (temporary_.path() / "secret").string();
  const LaunchedRank rank_{.rank = 2, .world = 4, .launcher = "mpirun"};
};

TEST_F(LaunchSecretTest, IsReadFromItsFile) {
  ServerArgs args = Nodes();
  args.dist_secret_file = path_;
  EXPECT_EQ(PlanLaunch(args, {}).secret, "0123456789abcdef");
  args.require_dist_secret = false;
  EXPECT_EQ(PlanLaunch(args, {}).secret, "0123456789abcdef");
}

TEST_F(LaunchSecretTest, IsRequiredOfSeveralNodesOnly) {
  EXPECT_THAT(RefusalOf(Nodes()), AllOf(HasSubstr("--require-dist-secret: the 2 nodes"),
                                        HasSubstr("--dist-secret-file")));
  ServerArgs args = ArgsOf(4);
  args.require_dist_secret = true;
  EXPECT_EQ(RefusalOf(args), "accepted");
  // Accepted, but logs a warning.
  EXPECT_EQ(RefusalOf(ArgsOf(8, 2, 1, "10.0.0.1:5000")), "accepted");
}

TEST_F(LaunchSecretTest, IsRefusedOverMpi) {
  ServerArgs args = ArgsOf(4);
  args.dist_secret_file = path_;
  EXPECT_THAT(RefusalOf(args, rank_), AllOf(HasSubstr("--dist-secret-file: ranks over MPI"),
                                            HasSubstr("--dist-init-addr")));
  args.dist_init_addr = "10.0.0.1:5000";
  EXPECT_EQ(RefusalOf(args, rank_), "accepted");
  args = ArgsOf(4);
  args.require_dist_secret = true;
  EXPECT_THAT(RefusalOf(args, rank_), HasSubstr("--require-dist-secret: ranks over MPI"));
}

}  // namespace
}  // namespace switchyard
