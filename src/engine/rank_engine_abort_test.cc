// Passes that are aborted by their number, or whose model throws, run again with the same results.
#include <gmock/gmock.h>

#include "core/error.h"
#include "engine/sampler/random.h"
#include "engine/test_rank_engine.h"

namespace switchyard {
namespace {

using ::testing::IsEmpty;

void ExpectOutputsOf(std::map<uint64_t, RequestOutput>& seen) {
  RankEngine::Options options = Roomy();
  options.overlap_schedule = false;
  for (const EngineRequest& request : MixedRequests(6)) {
    SCOPED_TRACE(request.id);
    const RequestOutput want = Rig(options).Run(request);
    const RequestOutput& got = seen[request.id];
    EXPECT_EQ(got.new_tokens, want.new_tokens);
    EXPECT_EQ(got.finish, want.finish);
    EXPECT_EQ(got.routed_experts, want.routed_experts);
    EXPECT_TRUE(SameLogprobs(got.input_logprobs, want.input_logprobs));
    EXPECT_TRUE(SameLogprobs(got.output_logprobs, want.output_logprobs));
  }
}

void TellAll(Rig& rig) {
  for (const EngineRequest& request : MixedRequests(6)) rig.Tell({request});
}

TEST(RankEngineAbort, AbortedPassesRunAgainWithTheSameResults) {
  for (const bool launches : {false, true}) {
    SCOPED_TRACE(launches);
    Rig rig(TightOptions(), 61, launches);
    int aborts = 0;
    rig.model.during = [&](uint64_t pass) {
      EXPECT_FALSE(rig.engine.AbortPass(pass + 1));
      if (UniformDraw(7, static_cast<int64_t>(pass)) < 0.4) {
        EXPECT_TRUE(rig.engine.AbortPass(pass));
        ++aborts;
      }
    };
    TellAll(rig);
    rig.RunOut();
    EXPECT_GT(aborts, 3);
    ExpectOutputsOf(rig.seen);
  }
}

TEST(RankEngineAbort, LaunchedPassesRunAgainWithTheSameResults) {
  Rig rig(TightOptions(), 61, true);
  TellAll(rig);
  int aborts = 0;
  for (int step = 0; rig.engine.HasWork(); ++step) {
    ASSERT_LT(step, 1000);
    rig.Step();
    EXPECT_FALSE(rig.engine.AbortPass(rig.engine.last_pass() + 1));
    if (!rig.engine.launched()) {
      EXPECT_FALSE(rig.engine.AbortPass(rig.engine.last_pass()));
    } else if (UniformDraw(3, step) < 0.4) {
      const EngineStats before = rig.engine.Stats();
      EXPECT_TRUE(rig.engine.AbortPass(rig.engine.last_pass()));
      EXPECT_FALSE(rig.engine.launched());
      EXPECT_EQ(rig.engine.Stats().steps, before.steps - 1);
      ++aborts;
    }
  }
  EXPECT_GT(aborts, 5);
  EXPECT_TRUE(rig.engine.PoolIsWhole());
  ExpectOutputsOf(rig.seen);
}

TEST(RankEngineAbort, RequestsMayEndBeforeTheirLaunchedPassIsAborted) {
  Rig rig(Roomy(), 61, true);
  rig.Tell({Greedy(1, Count(6), 20), Greedy(2, Count(9, 3), 12)});
  rig.Step();
  rig.Step();
  rig.Tell({AbortRequest{1}});
  EXPECT_TRUE(rig.engine.AbortPass(rig.engine.last_pass()));
  rig.RunOut();
  EXPECT_EQ(rig.seen[1].finish, FinishReason::kAbort);
  EXPECT_EQ(rig.seen[2].new_tokens, Rig(Roomy()).Run(Greedy(2, Count(9, 3), 12)).new_tokens);
}

TEST(RankEngineAbort, AfterAnErrorOfTheModelThePassRunsAgain) {
  for (const bool launches : {false, true}) {
    SCOPED_TRACE(launches);
    Rig rig(TightOptions(), 61, launches);
    rig.model.during = rig.FailSometimes();
    TellAll(rig);
    rig.RunThroughErrors();
    ExpectOutputsOf(rig.seen);
  }
}

TEST(RankEngineAbort, CollectReturnsTheOutputsOfALaunchedPass) {
  Rig rig(Roomy(), 61, true);
  EXPECT_THAT(rig.engine.Collect().outputs, IsEmpty());
  const EngineRequest request = Greedy(1, Count(6), 3);
  rig.Tell({request});
  EXPECT_THAT(rig.engine.Step().outputs, IsEmpty());
  const StepOutputs collected = rig.engine.Collect();
  ASSERT_EQ(collected.outputs.size(), 1u);
  EXPECT_FALSE(rig.engine.launched());
  EXPECT_EQ(collected.outputs[0].new_tokens[0], Rig(Roomy()).Run(request).new_tokens[0]);
  rig.RunOut();
  EXPECT_EQ(rig.seen[1].new_tokens.size(), 2u);
}

}  // namespace
}  // namespace switchyard
