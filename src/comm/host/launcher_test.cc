#include "comm/host/launcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "core/error.h"

namespace switchyard {
namespace {

std::optional<LaunchedRank> In(const std::map<std::string, std::string>& environment) {
  return FindLauncher([&](const char* name) -> const char* {
    const auto entry = environment.find(name);
    return entry == environment.end() ? nullptr : entry->second.c_str();
  });
}

TEST(LauncherTest, FindsItsPlace) {
  const auto mpi = In({{"OMPI_COMM_WORLD_RANK", "2"},
                       {"OMPI_COMM_WORLD_SIZE", "4"},
                       {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                       // the variables of the daemon that Slurm started for mpirun
                       {"SLURM_PROCID", "0"},
                       {"SLURM_STEP_NUM_TASKS", "2"}});
  ASSERT_TRUE(mpi);
  EXPECT_EQ(mpi->rank, 2);
  EXPECT_EQ(mpi->world, 4);
  EXPECT_EQ(mpi->ranks_of_host, 2);
  EXPECT_EQ(mpi->launcher, "mpirun");

  const auto pmi = In({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}});
  ASSERT_TRUE(pmi);
  EXPECT_EQ(pmi->rank, 1);

  const auto slurm = In({{"SLURM_PROCID", "3"}, {"SLURM_STEP_NUM_TASKS", "8"}});
  ASSERT_TRUE(slurm);
  EXPECT_EQ(slurm->rank, 3);
  EXPECT_EQ(slurm->world, 8);
  EXPECT_EQ(slurm->launcher, "srun");
  EXPECT_EQ(slurm->variable, "SLURM_PROCID");
}

TEST(LauncherTest, TorchrunNamesTheAddressOfRank0) {
  std::map<std::string, std::string> environment = {{"RANK", "3"},
                                                    {"WORLD_SIZE", "4"},
                                                    {"LOCAL_WORLD_SIZE", "2"},
                                                    {"MASTER_ADDR", "n0"},
                                                    {"MASTER_PORT", "29500"},
                                                    {"SLURM_PROCID", "1"},
                                                    {"SLURM_STEP_NUM_TASKS", "2"}};
  EXPECT_EQ(In(environment)->launcher, "srun");  // another program's variables
  environment["TORCHELASTIC_RUN_ID"] = "none";
  const auto place = In(environment);
  ASSERT_TRUE(place);
  EXPECT_EQ(place->launcher, "torchrun");
  EXPECT_EQ(place->rank, 3);
  EXPECT_EQ(place->world, 4);
  EXPECT_EQ(place->ranks_of_host, 2);
  EXPECT_EQ(place->address, "n0:29500");
  EXPECT_EQ(place->variable, "TORCHELASTIC_RUN_ID");
  environment["TORCHELASTIC_USE_AGENT_STORE"] = "True";  // its store listens at the port
  EXPECT_EQ(In(environment)->address, "n0:29501");
}

TEST(LauncherTest, AloneIsNotLaunched) {
  EXPECT_FALSE(In({}));
  EXPECT_FALSE(In({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}}));
  // A Slurm batch script: its allocation has four tasks, but the script itself is not a task.
  EXPECT_FALSE(In({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}}));
}

TEST(LauncherTest, MalformedVariablesAreNamed) {
  const auto refusal = [](const std::map<std::string, std::string>& environment) -> std::string {
    try {
      In(environment);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(refusal({{"PMI_RANK", "one"}, {"PMI_SIZE", "2"}}),
              ::testing::HasSubstr("PMI_RANK=one"));
  EXPECT_THAT(refusal({{"PMI_RANK", "2"}, {"PMI_SIZE", "2"}}),
              ::testing::HasSubstr("PMI_RANK=2 in the environment: there are 2 ranks"));
}

}  // namespace
}  // namespace switchyard
