// A rank process that stops during an exchange: the other ranks report the peer and the stage, and
// fail within the timeout.
#include <csignal>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "moe/dispatchers/test_processes.h"
#include "moe/test_layer.h"

namespace switchyard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int kWorld = 3, kStopped = 1;
constexpr std::chrono::milliseconds kTimeout(1000);

// Runs passes with and without decode until an error ends them. The stopped rank stops after
// `stage` of the first pass.
std::string RunUntilError(const TestLayer& layer, const MoeOptions& options, bool decode,
                          MoeStage stage, int rank, std::shared_ptr<SharedArena> arena) {
  const MeshShape mesh{.tp = kWorld, .ep = kWorld};
  const MoeShape shape = layer.Shape(8);
  const auto comm = RankComm::Create(std::move(arena), mesh, rank, {kTimeout});
  ThreadPool pool(1);
  const MoeLayer moe(layer.config, layer.ShareOf(comm->mesh, ScattersTokens(options, mesh)),
                     MakeCpuMoe(options, shape, *comm, pool));
  const std::vector<float> hidden = layer.Hidden(8);
  std::vector<float> out(hidden.size());
  const int64_t tokens = 8;
  const auto state = moe.MakeState();
  comm->tp->Barrier("test start");
  RunStages(moe, *state, hidden.data(), {&tokens, 1}, decode, out.data(), [&](MoeStage done) {
    if (rank == kStopped && done == stage) raise(SIGSTOP);
  });
  return "no error";
}

struct Stage {
  const char* name;
  MoeStage after;
};
const Stage kStages[] = {{"before dispatch", MoeStage::kRoute},
                         {"during dispatch", MoeStage::kBeginDispatch},
                         {"before combine", MoeStage::kPostPermute},
                         {"during combine", MoeStage::kBeginCombine}};

// The exchange that the other ranks name in their timeout message. It is the first one for which
// the stopped rank has sent no data: dispatch, combine (if it has sent its rows), or the all-gather
// of tokens (if it has sent its outputs). With `none` it is the all-reduce. A fused operator
// exchanges outputs last, so it times out there.
std::string WaitsIn(const A2aChoice& choice, size_t stage) {
  if (choice.a2a == "none") return "tp all-reduce";
  if (stage == 0) return choice.a2a + " dispatch";
  return stage == 3 && choice.a2a != "fused" ? "attn-tp all-gather" : choice.a2a + " combine";
}

class StoppedRankTest : public ::testing::TestWithParam<A2aChoice> {};

TEST_P(StoppedRankTest, OthersTimeOutAndNameTheRankAndTheStage) {
  const A2aChoice& choice = GetParam();
  const TestLayer layer({.hidden = 64, .intermediate = 32, .num_experts = 6, .top_k = 2});
  const MoeOptions options{.a2a_backend = choice.a2a, .deepep_mode = choice.mode};
  const MeshShape mesh{.tp = kWorld, .ep = kWorld};
  const size_t bytes =
      RankComm::BytesPerRank(mesh) + MoeSymmetricBytes(options, layer.Shape(8), mesh);
  // Only mode auto depends on decode.
  for (const bool decode : {false, true}) {
    if (decode && choice.Describe() != "deepep") continue;
    std::vector<std::unique_ptr<TestProcesses>> worlds;  // all stages concurrently
    for (const Stage& stage : kStages)
      worlds.push_back(std::make_unique<TestProcesses>(
          kWorld, bytes, [&](int rank, std::shared_ptr<SharedArena> arena) {
            return RunUntilError(layer, options, decode, stage.after, rank, std::move(arena));
          }));
    for (size_t i = 0; i < worlds.size(); ++i) {
      SCOPED_TRACE(fmt::format("{}, decode {}", kStages[i].name, decode));
      for (const int rank : {0, 2})
        EXPECT_THAT(worlds[i]->Wait(rank),
                    AllOf(StartsWith(fmt::format("error: rank {} waited 1 s for rank {} in ", rank,
                                                 kStopped)),
                          HasSubstr(WaitsIn(choice, i))));
    }
  }
}

std::vector<A2aChoice> ChoicesWithTimeout() {
  std::vector<A2aChoice> choices = AllA2aChoices();
  // Mooncake continues without the stopped rank.
  std::erase_if(choices, [](const A2aChoice& c) { return c.a2a == "mooncake"; });
  return choices;
}
INSTANTIATE_TEST_SUITE_P(Backends, StoppedRankTest, ::testing::ValuesIn(ChoicesWithTimeout()),
                         [](const ::testing::TestParamInfo<A2aChoice>& info) {
                           std::string name = info.param.Describe();
                           std::ranges::replace(name, ' ', '_');
                           return name;
                         });

}  // namespace
}  // namespace switchyard
