// Pauses, delays and limits of a rank's engine. Outputs do not depend on them.
#include <gmock/gmock.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "engine/sampler/random.h"
#include "engine/speculative/ngram_drafter.h"
#include "engine/test_rank_engine.h"

namespace switchyard {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

std::map<uint64_t, RequestOutput> Undisturbed() {
  std::map<uint64_t, RequestOutput> outputs;
  for (const EngineRequest& request : MixedRequests(7))
    outputs[request.id] = Rig(Roomy()).Run(request);
  return outputs;
}

// Applies the change and returns the answer, which is the last message.
ControlsSet Set(Rig& rig, const EngineControls& controls, PauseAction action = PauseAction::kNone) {
  const std::vector<EngineMessage> answers =
      rig.Tell({SetControls{.ticket = 5, .controls = controls, .action = action}});
  EXPECT_FALSE(answers.empty());
  const auto* set = answers.empty() ? nullptr : std::get_if<ControlsSet>(&answers.back());
  EXPECT_NE(set, nullptr);
  EXPECT_TRUE(!set || set->ticket == 5);
  return set ? *set : ControlsSet{};
}

bool Flush(Rig& rig) {
  const std::vector<EngineMessage> answers = rig.Tell({FlushCache{.ticket = 9}});
  return std::get<FlushResult>(answers.at(0)).done;
}

size_t Tokens(const Rig& rig) {
  size_t count = 0;
  for (const auto& [id, output] : rig.seen) count += output.new_tokens.size();
  return count;
}

void ExpectUndisturbed(std::map<uint64_t, RequestOutput>& seen) {
  for (const auto& [id, want] : Undisturbed()) {
    SCOPED_TRACE(id);
    const RequestOutput& got = seen[id];
    EXPECT_EQ(got.new_tokens, want.new_tokens);
    EXPECT_EQ(got.finish, want.finish);
    EXPECT_EQ(got.routed_experts, want.routed_experts);
    EXPECT_TRUE(SameLogprobs(got.input_logprobs, want.input_logprobs));
    EXPECT_TRUE(SameLogprobs(got.output_logprobs, want.output_logprobs));
  }
}

// Pauses after about a third of the steps. Nothing happens during a pause.
void RunWithPauses(Rig& rig, PauseAction action, bool flush) {
  for (const EngineRequest& request : MixedRequests(7)) rig.Tell({request});
  int pauses = 0;
  for (int step = 0; rig.engine.HasWork(); ++step) {
    ASSERT_LT(step, 1000);
    rig.Step();
    if (UniformDraw(11, step) > 0.35) continue;
    ++pauses;
    Set(rig, {.paused = true}, action);
    EXPECT_TRUE(rig.engine.paused());
    EXPECT_FALSE(rig.engine.HasWork());
    EXPECT_FALSE(rig.engine.launched());
    const size_t tokens = Tokens(rig);
    rig.Step();
    EXPECT_EQ(Tokens(rig), tokens);
    if (flush) {
      EXPECT_TRUE(Flush(rig));
    }
    Set(rig, {});
  }
  EXPECT_GT(pauses, 3);
  EXPECT_TRUE(rig.engine.PoolIsWhole());
}

TEST(RankControls, PausedRequestsHaveTheSameOutputs) {
  for (const bool launches : {false, true}) {
    for (const PauseAction action : {PauseAction::kNone, PauseAction::kRetract}) {
      SCOPED_TRACE(::testing::Message() << launches << ' ' << static_cast<int>(action));
      Rig rig(TightOptions(), 61, launches);
      RunWithPauses(rig, action, false);
      ExpectUndisturbed(rig.seen);
    }
  }
}

TEST(RankControls, RetractedRequestsAreComputedAgainAfterAFlush) {
  for (const bool launches : {false, true}) {
    Rig rig(TightOptions(), 61, launches);
    RunWithPauses(rig, PauseAction::kRetract, true);
    ExpectUndisturbed(rig.seen);
  }
}

TEST(RankControls, DraftsSurviveAPause) {
  NgramDrafter drafter;
  RankEngine::Options options = TightOptions();
  options.max_drafts = 3;
  options.drafter = &drafter;
  Rig rig(options);
  RunWithPauses(rig, PauseAction::kNone, false);
  ExpectUndisturbed(rig.seen);
}

TEST(RankControls, APauseInPlaceKeepsPagesAndRefusesAFlush) {
  Rig rig(Roomy());
  rig.Tell({Greedy(1, Count(20))});
  rig.Step();
  EXPECT_EQ(Set(rig, {.paused = true}).requests, 0);
  EXPECT_EQ(rig.engine.Stats().running, 1);
  EXPECT_FALSE(Flush(rig));
  EXPECT_EQ(Set(rig, {.paused = true}, PauseAction::kRetract).requests, 1);
  EXPECT_EQ(rig.engine.Stats().running, 0);
  EXPECT_EQ(rig.engine.Stats().waiting, 1);
  EXPECT_EQ(rig.engine.Stats().waiting_tokens, 21);
  EXPECT_TRUE(Flush(rig));
  EXPECT_EQ(rig.engine.Stats().cached_pages, 0);
}

TEST(RankControls, AnAbortEndsAllRequestsBeforeItsAnswer) {
  for (const bool launches : {false, true}) {
    Rig rig(TightOptions(), 61, launches);
    for (const EngineRequest& request : MixedRequests(7)) rig.Tell({request});
    for (int step = 0; step < 4; ++step) rig.Step();
    EXPECT_EQ(Set(rig, {.paused = true}, PauseAction::kAbort).requests, 7);
    EXPECT_FALSE(rig.engine.HasWork());
    EXPECT_TRUE(rig.engine.PoolIsWhole());
    ASSERT_THAT(rig.seen, SizeIs(7));
    for (const auto& [id, output] : rig.seen) EXPECT_EQ(output.finish, FinishReason::kAbort);
    // A request that arrives during the pause waits for its end.
    rig.Tell({Greedy(20, Count(9))});
    EXPECT_FALSE(rig.engine.HasWork());
    Set(rig, {});
    rig.RunOut();
    EXPECT_EQ(rig.seen[20].new_tokens, Rig(Roomy()).Run(Greedy(20, Count(9))).new_tokens);
  }
}

TEST(RankControls, APausedRequestCanBeAborted) {
  Rig rig(Roomy());
  rig.Tell({Greedy(1, Count(20))});
  rig.Step();
  Set(rig, {.paused = true});
  rig.Tell({AbortRequest{1}});
  EXPECT_TRUE(rig.engine.HasWork());
  rig.Step();
  EXPECT_EQ(rig.seen[1].finish, FinishReason::kAbort);
  EXPECT_FALSE(rig.engine.HasWork());
}

// The front then sends the requests again, as to new ranks.
TEST(RankControls, AChangeOfTheCacheResetsTheEngine) {
  for (const bool launches : {false, true}) {
    Rig rig(TightOptions(), 61, launches);
    for (const EngineRequest& request : MixedRequests(7)) rig.Tell({request});
    for (int step = 0; step < 9; ++step) rig.Step();
    Set(rig, {.paused = true, .step_delay_seconds = 0.5, .max_running_requests = 2});
    for (const bool release : {true, false}) {
      for (const EngineMessage& message : rig.Tell({ChangeCache{.release = release}}))
        EXPECT_TRUE(std::holds_alternative<StepOutputs>(message));
      EXPECT_FALSE(rig.engine.paused());
      EXPECT_EQ(rig.engine.step_delay().count(), 0);
      EXPECT_FALSE(rig.engine.HasWork());
      EXPECT_TRUE(rig.engine.PoolIsWhole());
      const EngineStats stats = rig.engine.Stats();
      EXPECT_EQ(stats.free_pages, stats.total_pages);
      EXPECT_EQ(stats.running + stats.waiting, 0);
    }
    rig.seen.clear();
    for (const EngineRequest& request : MixedRequests(7)) rig.Tell({request});
    for (int step = 0; rig.engine.HasWork() && step < 1000; ++step) rig.Step();
    ExpectUndisturbed(rig.seen);
  }
}

TEST(RankControls, RunningRequestsAreLimited) {
  Rig rig(Roomy());
  Set(rig, {.max_running_requests = 2});
  for (const EngineRequest& request : MixedRequests(7)) rig.Tell({request});
  int64_t most = 0;
  for (int step = 0; rig.engine.HasWork() && step < 1000; ++step) {
    rig.Step();
    most = std::max(most, rig.engine.running());
    if (step == 5) Set(rig, {.max_running_requests = 3});
    if (step == 30) Set(rig, {});
  }
  EXPECT_GE(most, 3);
  ExpectUndisturbed(rig.seen);

  Rig limited(Roomy());
  Set(limited, {.max_running_requests = 2});
  for (const EngineRequest& request : MixedRequests(7)) limited.Tell({request});
  while (limited.engine.HasWork()) {
    limited.Step();
    EXPECT_LE(limited.engine.running(), 2);
  }
}

TEST(RankControls, ControlsWithoutATicketGetNoAnswer) {
  Rig rig(Roomy());
  EXPECT_THAT(rig.Tell({SetControls{.controls = {.paused = true, .step_delay_seconds = 0.5}}}),
              IsEmpty());
  EXPECT_TRUE(rig.engine.paused());
  EXPECT_EQ(rig.engine.step_delay().count(), 0.5);
}

}  // namespace
}  // namespace switchyard
