#include "engine/load_wait.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <thread>

#include "comm/device/communicator.h"
#include "core/testing.h"

namespace switchyard {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using ::testing::HasSubstr;

constexpr int kLoadingRanks = 3;

EngineConfig StreamingConfig() {
  EngineConfig config;
  config.mesh.tp = kLoadingRanks;
  config.moe.stream_experts = "auto";
  return config;
}

void RunLoads(milliseconds timeout, const std::function<void(int rank, LoadWait& wait)>& load) {
  RunRankThreads(kLoadingRanks, LoadWait::BytesPerRank(StreamingConfig(), {}),
                 [&](int rank, std::shared_ptr<SharedArena> arena) {
                   SymmetricMemory memory(std::move(arena), rank, {.timeout = timeout});
                   LoadWait wait(memory);
                   load(rank, wait);
                   wait.Await();
                 });
}

TEST(LoadWaitTest, StreamsAndKeptWeightsNeedIt) {
  EXPECT_EQ(LoadWait::BytesPerRank({}, {}), 0u);
  EXPECT_GT(LoadWait::BytesPerRank(StreamingConfig(), {}), 0u);
  EnginePlan plan;
  plan.cuda = true;
  EXPECT_GT(LoadWait::BytesPerRank({}, plan), 0u);
  EngineConfig config;
  config.eplb.enable = true;  // all ranks load again
  EXPECT_EQ(LoadWait::BytesPerRank(config, plan), 0u);
}

// Rank 0 loads for longer than the timeout.
TEST(LoadWaitTest, RanksWaitWhileAnotherOneLoads) {
  const milliseconds timeout(600);
  RunLoads(timeout, [&](int rank, LoadWait& wait) {
    const auto end = steady_clock::now() + timeout * 3 / 2;
    while (rank == 0 && steady_clock::now() < end) {
      wait.Advance();
      std::this_thread::sleep_for(milliseconds(5));
    }
  });
}

TEST(LoadWaitTest, ARankWithoutProgressEndsTheWait) {
  const auto run = [] {
    RunLoads(milliseconds(200), [](int rank, LoadWait& wait) {
      wait.Advance();
      if (rank == 0) std::this_thread::sleep_for(milliseconds(1500));
    });
  };
  EXPECT_THAT(ErrorOf(run, ErrorKind::kTimeout), HasSubstr("rank 0 in model loaded"));
}

}  // namespace
}  // namespace switchyard
