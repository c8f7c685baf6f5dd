// Passes that are launched before the tokens of the previous one are known.
#include <gmock/gmock.h>

#include "engine/test_rank_engine.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

Rig Launching(RankEngine::Options options = Roomy()) { return Rig(std::move(options), 61, true); }

RequestOutput Alone(const EngineRequest& request) {
  RankEngine::Options options = Roomy();
  options.overlap_schedule = false;
  return Launching(options).Run(request);
}

TEST(RankEngineLaunch, OutputsFollowTheNextLaunch) {
  Rig rig = Launching();
  const EngineRequest request = Greedy(1, Count(6), 3);
  rig.Tell({request});
  EXPECT_THAT(rig.engine.Step().outputs, IsEmpty());
  EXPECT_TRUE(rig.engine.launched());
  EXPECT_EQ(rig.model.launched, 1);
  const auto outputs = rig.engine.Step().outputs;
  ASSERT_EQ(outputs.size(), 1u);
  EXPECT_EQ(rig.model.launched, 2);
  EXPECT_EQ(outputs[0].new_tokens[0], Alone(request).new_tokens[0]);
  rig.RunOut();
  // The limit of three tokens is known in advance: no superfluous pass runs.
  EXPECT_EQ(rig.model.passes, 3);
  EXPECT_EQ(rig.seen[1].finish, FinishReason::kLength);
}

TEST(RankEngineLaunch, AStopTokenEndsARequestOnePassLater) {
  EngineRequest request = Greedy(1, Count(6), 20);
  const std::vector<int32_t> tokens = Alone(request).new_tokens;
  const size_t index = 4;
  request.sampling.stop_token_ids = {tokens[index]};
  const RequestOutput want = Alone(request);
  Rig rig = Launching();
  rig.Tell({request, Greedy(2, Count(9, 3), 30)});
  rig.RunOut();
  EXPECT_EQ(rig.seen[1].new_tokens, want.new_tokens);
  EXPECT_EQ(rig.seen[1].finish, FinishReason::kStop);
  EXPECT_EQ(rig.seen[1].matched, tokens[index]);
  EXPECT_EQ(rig.seen[2].new_tokens, Alone(Greedy(2, Count(9, 3), 30)).new_tokens);
}

TEST(RankEngineLaunch, ARequestMayBeAbortedWhileItsPassRuns) {
  Rig rig = Launching();
  rig.Tell({Greedy(1, Count(6), 20), Greedy(2, Count(9, 3), 12)});
  rig.Step();
  rig.Step();
  rig.Tell({AbortRequest{1}});
  rig.RunOut();
  EXPECT_EQ(rig.seen[1].finish, FinishReason::kAbort);
  EXPECT_EQ(rig.seen[2].new_tokens, Alone(Greedy(2, Count(9, 3), 12)).new_tokens);
  EXPECT_TRUE(std::get<FlushResult>(rig.Tell({FlushCache{}}).at(0)).done);
}

// Log-probabilities need the logits on the host: their pass ends before the next one is planned.
TEST(RankEngineLaunch, PassesThatNeedLogitsFollowLaunchedOnes) {
  EngineRequest with = Greedy(2, Count(9, 3), 5);
  with.logprob = {.enabled = true, .start = 0, .top = 1};
  Rig rig = Launching();
  rig.Tell({Greedy(1, Count(6), 20)});
  rig.Step();
  rig.Step();
  const int64_t launched = rig.model.launched;
  rig.Tell({with});
  rig.Step();
  EXPECT_EQ(rig.model.launched, launched);
  EXPECT_FALSE(rig.engine.launched());
  rig.RunOut();
  EXPECT_GT(rig.model.launched, launched);  // after the request has ended
  EXPECT_EQ(rig.seen[1].new_tokens, Alone(Greedy(1, Count(6), 20)).new_tokens);
  EXPECT_EQ(rig.seen[2].new_tokens, Alone(with).new_tokens);
  EXPECT_TRUE(SameLogprobs(rig.seen[2].output_logprobs, Alone(with).output_logprobs));
}

// `together`: either all groups launch a pass or none does. A recorder requires this, because the
// ranks exchange its counts when a pass ends.
TEST(RankEngineLaunch, AGroupMayHaveToWaitForTheLogitsOfAnother) {
  for (const bool together : {false, true}) {
    for (const int64_t others_need : {0, 1}) {
      Rig rig = Launching();
      rig.model.together = together;
      rig.Tell({Greedy(1, Count(6), 3)});
      const StepCounts mine = rig.engine.Plan();
      EXPECT_EQ(mine.host_logits, 0);
      const StepCounts other{.tokens = 1, .decode_tokens = 1, .host_logits = others_need};
      rig.engine.Run(std::vector{mine, other});
      EXPECT_EQ(rig.engine.launched(), !together || others_need == 0);
    }
  }
  Rig rig = Launching();
  EngineRequest with = Greedy(2, Count(9, 3), 5);
  with.logprob = {.enabled = true};
  rig.Tell({with});
  EXPECT_EQ(rig.engine.Plan().host_logits, 1);
}

TEST(RankEngineLaunch, LogitsThatAreNotFiniteEndTheirRequestOnly) {
  for (const char* fault : {"", "the router of layer 3 gave expert 7 a score that is not finite"}) {
    Rig rig = Launching();
    rig.model.poison = 60;
    rig.model.router_fault = fault;
    rig.Tell({Greedy(1, Count(8), 6), Greedy(2, Ids{1, 60, 2, 3, 4, 5}, 6)});
    rig.RunOut();
    EXPECT_EQ(rig.seen[2].finish, FinishReason::kError);
    EXPECT_THAT(rig.seen[2].error, HasSubstr(*fault ? fault : "not finite"));
    EXPECT_THAT(rig.seen[2].new_tokens, IsEmpty());
    EXPECT_EQ(rig.seen[1].error, "");
    // The pages of request 2 are not shared with others.
    EXPECT_EQ(rig.Run(Greedy(3, Ids{1, 60, 2, 3, 4, 5}, 1)).cached_tokens, 0);
  }
}

TEST(RankEngineLaunch, RetractedRequestsResume) {
  RankEngine::Options options = Roomy();
  options.num_pages = 12;  // 48 tokens
  Rig tight = Launching(options);
  std::vector<ControlMessage> requests;
  for (uint64_t id = 1; id <= 4; ++id)
    requests.push_back(Greedy(id, Count(4, static_cast<int32_t>(id) * 10), 24));
  tight.Tell(requests);
  tight.RunOut();
  EXPECT_GT(tight.engine.Stats().retractions, 0);
  for (uint64_t id = 1; id <= 4; ++id) {
    EXPECT_EQ(tight.seen[id].new_tokens,
              Alone(std::get<EngineRequest>(requests[id - 1])).new_tokens);
  }
}

}  // namespace
}  // namespace switchyard
