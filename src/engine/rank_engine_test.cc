#include "engine/rank_engine.h"

#include <gmock/gmock.h>

#include <cmath>
#include <map>
#include <optional>

#include "engine/fake_forward.h"
#include "engine/sampler/logprobs.h"
#include "engine/sampler/random.h"
#include "engine/sampler/softmax.h"
#include "engine/scheduler/batch.h"
#include "engine/test_rank_engine.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(RankEngine, GreedyFollowsTheModel) {
  Rig rig(Roomy());
  const RequestOutput out = rig.Run(Greedy(1, Count(10), 5));
  Ids tokens = Count(10);
  for (int i = 0; i < 5; ++i) tokens.push_back(ArgMax(rig.model.LogitsAfter(tokens)));
  EXPECT_EQ(out.new_tokens, Ids(tokens.begin() + 10, tokens.end()));
  EXPECT_EQ(out.finish, FinishReason::kLength);
  EXPECT_EQ(out.prompt_tokens, 10);
}

TEST(RankEngine, StopsAtEosAndStopIds) {
  Rig rig(Roomy());
  const Ids free_run = rig.Run(Greedy(1, Count(10), 40)).new_tokens;
  EngineRequest request = Greedy(2, Count(10), 40);
  request.sampling.stop_token_ids = {free_run[3]};
  const RequestOutput stopped = rig.Run(request);
  EXPECT_EQ(stopped.finish, FinishReason::kStop);
  EXPECT_EQ(stopped.matched, free_run[3]);
  EXPECT_EQ(stopped.new_tokens.back(), free_run[3]);

  RankEngine::Options options = Roomy();
  options.eos_token_ids = {free_run[2]};
  Rig other(options);
  request = Greedy(3, Count(10), 40);
  request.sampling.ignore_eos = false;
  EXPECT_THAT(other.Run(request).new_tokens.size(), ::testing::Le(3u));
  request.id = 4;
  request.sampling.ignore_eos = true;
  EXPECT_EQ(other.Run(request).new_tokens, free_run);
}

TEST(RankEngine, LongPromptsDoNotStallDecoding) {
  RankEngine::Options options = Roomy();
  options.chunked_prefill_size = 8;
  Rig rig(options);
  rig.Tell({Greedy(1, Count(4), 40)});
  rig.Step();
  rig.Tell({Greedy(2, Count(80), 4)});
  for (size_t tokens = 2; tokens <= 10; ++tokens) {
    rig.Step();
    EXPECT_THAT(rig.seen[1].new_tokens, SizeIs(tokens));
    EXPECT_EQ(rig.seen.count(2), 0u);
  }
  rig.Step();
  EXPECT_THAT(rig.seen[2].new_tokens, SizeIs(1));
  EXPECT_EQ(rig.model.most_rows, 9);
  rig.RunOut();
}

TEST(RankEngine, WithoutChunkingAPromptIsOnePass) {
  RankEngine::Options options = Roomy();
  options.chunked_prefill_size = -1;
  Rig rig(options);
  rig.Tell({Greedy(1, Count(400), 1), Greedy(2, Count(400, 5), 1)});
  rig.Step();
  EXPECT_EQ(rig.model.most_rows, 400);
  EXPECT_EQ(rig.seen.count(2), 0u);
  rig.Step();
  EXPECT_EQ(rig.seen.count(2), 1u);
  rig.RunOut();
}

TEST(RankEngine, PrefixesAreReusedButNeverTheWholePrompt) {
  Rig rig(Roomy());
  const RequestOutput first = rig.Run(Greedy(1, Count(16), 4));
  EXPECT_EQ(first.cached_tokens, 0);
  const RequestOutput again = rig.Run(Greedy(2, Count(16), 4));
  EXPECT_EQ(again.cached_tokens, 12);  // 15 may be reused, in pages of 4
  EXPECT_EQ(again.new_tokens, first.new_tokens);

  Ids longer = Count(16);
  longer.insert(longer.end(), first.new_tokens.begin(), first.new_tokens.end());
  EXPECT_EQ(rig.Run(Greedy(3, longer, 4)).cached_tokens, 16);  // the last token was not computed
  EXPECT_EQ(rig.engine.Stats().cached_prompt_tokens, 28);

  const auto answers = rig.Tell({FlushCache{.ticket = 9}});
  EXPECT_TRUE(std::get<FlushResult>(answers.at(0)).done);
  EXPECT_EQ(std::get<FlushResult>(answers.at(0)).ticket, 9u);
  EXPECT_EQ(rig.engine.Stats().free_pages, 256);
  EXPECT_EQ(rig.Run(Greedy(4, Count(16), 4)).cached_tokens, 0);
}

TEST(RankEngine, ARunningRequestSharesItsPrompt) {
  Rig rig(Roomy());
  rig.Tell({Greedy(1, Count(16), 30)});
  rig.Step();
  rig.Tell({Greedy(2, Count(16), 30)});
  rig.Step();
  EXPECT_EQ(rig.seen[2].cached_tokens, 12);
  rig.RunOut();
  EXPECT_EQ(rig.seen[1].new_tokens, rig.seen[2].new_tokens);
}

TEST(RankEngine, QueueTimeEndsAtTheFirstAdmission) {
  RankEngine::Options options = Roomy();
  options.max_running_requests = 1;
  Rig rig(options);
  rig.Tell({Greedy(1, Count(8), 4), Greedy(2, Count(8), 4)});
  rig.Step();
  EXPECT_GE(rig.seen[1].queue_seconds, 0);
  rig.Tell({AbortRequest{2}});  // was never admitted
  rig.RunOut();
  EXPECT_EQ(rig.seen[2].finish, FinishReason::kAbort);
  EXPECT_EQ(rig.seen[2].queue_seconds, -1);
}

TEST(RankEngine, FlushIsRefusedWhileRequestsRun) {
  Rig rig(Roomy());
  rig.Tell({Greedy(1, Count(16), 4)});
  EXPECT_FALSE(std::get<FlushResult>(rig.Tell({FlushCache{}}).at(0)).done);
  rig.RunOut();
  EXPECT_TRUE(std::get<FlushResult>(rig.Tell({FlushCache{}}).at(0)).done);
}

TEST(RankEngine, InputLogprobsComeOnceAndBypassTheCacheWhereTheyMust) {
  RankEngine::Options options = Roomy();
  options.chunked_prefill_size = 5;
  Rig rig(options);
  const Ids prompt = Count(18, 3);
  rig.Run(Greedy(1, prompt, 4));
  for (const int32_t start : {0, 1, 9, 17, 18, 30, -1}) {
    EngineRequest request = Greedy(100 + start, prompt, 3);
    request.logprob = {.enabled = true, .start = start, .top = 2, .token_ids = {5}};
    const RequestOutput out = rig.Run(request);
    const int32_t first = start < 0 ? 18 : std::min(start, 18);
    ASSERT_THAT(out.input_logprobs, SizeIs(18 - first)) << "start " << start;
    EXPECT_EQ(out.cached_tokens, std::min(16, std::max(0, first - 1) / 4 * 4));
    for (int32_t position = first; position < 18; ++position) {
      const PositionLogprobs& got = out.input_logprobs[position - first];
      EXPECT_EQ(got.token, prompt[position]);
      if (position == 0) {
        EXPECT_TRUE(std::isnan(got.logprob));
        EXPECT_THAT(got.top, IsEmpty());
      } else {
        EXPECT_TRUE(SameLogprobs(
            {got}, {LogprobsAt(rig.model.LogitsAfter(std::span(prompt).first(position)),
                               prompt[position], request.logprob)}));
      }
    }
    ASSERT_THAT(out.output_logprobs, SizeIs(3));
    EXPECT_EQ(out.output_logprobs[2].token, out.new_tokens[2]);
    EXPECT_THAT(out.output_logprobs[2].top, SizeIs(2));
    EXPECT_EQ(out.output_logprobs[2].top[0].token, out.new_tokens[2]);
  }
}

TEST(RankEngine, ARankThatSendsNoOutputsComputesNoLogprobs) {
  RankEngine::Options options = Roomy();
  options.chunked_prefill_size = 5;
  EngineRequest request = Greedy(1, Count(18, 3), 4);
  request.logprob = {.enabled = true, .start = 2, .top = 2};
  Rig sends(options);
  const RequestOutput want = sends.Run(request);
  options.log_probabilities = false;
  Rig follows(options);
  const RequestOutput got = follows.Run(request);
  EXPECT_THAT(want.output_logprobs, SizeIs(4));
  EXPECT_THAT(got.input_logprobs, IsEmpty());
  EXPECT_THAT(got.output_logprobs, IsEmpty());
  EXPECT_EQ(got.new_tokens, want.new_tokens);
  EXPECT_EQ(follows.model.passes, sends.model.passes);  // all ranks run the same passes
}

TEST(RankEngine, MaxNewTokensOfZeroProcessesThePromptOnly) {
  Rig rig(Roomy());
  EngineRequest request = Greedy(1, Count(10), 0);
  request.logprob = {.enabled = true, .start = 0};
  const RequestOutput out = rig.Run(request);
  EXPECT_THAT(out.new_tokens, IsEmpty());
  EXPECT_THAT(out.input_logprobs, SizeIs(10));
  EXPECT_EQ(out.finish, FinishReason::kLength);
}

TEST(RankEngine, RequestsThatCannotRunGetAnError) {
  RankEngine::Options options = Roomy();
  options.num_pages = 20;  // 80 tokens
  options.context_length = 100;
  Rig rig(options);
  EXPECT_THAT(rig.Run(Greedy(1, Count(81))).error, HasSubstr("the cache holds 80"));
  EXPECT_THAT(rig.Run(Greedy(2, Count(100))).error, HasSubstr("the context holds 99"));
  EXPECT_THAT(rig.Run(Greedy(3, {})).error, HasSubstr("empty"));
  EXPECT_THAT(rig.Run(Greedy(4, {1, 61})).error, HasSubstr("token id 61"));
  EXPECT_THAT(rig.Run(Greedy(5, {-1})).error, HasSubstr("token id -1"));
  EngineRequest request = Greedy(6, {1});
  request.sampling.logit_bias = {{99, 1.0f}};
  EXPECT_THAT(rig.Run(request).error, HasSubstr("logit_bias"));
  for (const auto& [id, out] : rig.seen) EXPECT_EQ(out.finish, FinishReason::kError);
  EXPECT_EQ(rig.model.passes, 0);
}

TEST(RankEngine, OutputBeyondTheLimitsIsRefused) {
  Rig rig(Roomy());
  EngineRequest request = Greedy(1, Count(10), 3);
  request.output_ids = {1, 2, 3};
  EXPECT_THAT(rig.Run(request).error, HasSubstr("3 tokens of output already"));
  request.id = 2;
  request.output_ids = {1, 61};
  EXPECT_THAT(rig.Run(request).error, HasSubstr("token id 61"));
  request.id = 3;
  request.output_ids = {1, 2};
  EXPECT_THAT(rig.Run(request).new_tokens, SizeIs(1));
}

TEST(RankEngine, ARequestAloneMayFillCacheOrContext) {
  RankEngine::Options options = Roomy();
  options.num_pages = 20;
  Rig pool(options);
  const RequestOutput full = pool.Run(Greedy(1, Count(30), 1000));
  EXPECT_EQ(full.finish, FinishReason::kLength);
  EXPECT_THAT(full.new_tokens, SizeIs(50));
  EXPECT_THAT(pool.Run(Greedy(2, Count(80), 1000)).new_tokens, SizeIs(1));

  options = Roomy();
  options.context_length = 40;
  Rig context(options);
  EXPECT_THAT(context.Run(Greedy(1, Count(30), 1000)).new_tokens, SizeIs(10));
  EXPECT_THAT(context.Run(Greedy(2, Count(39), 1000)).new_tokens, SizeIs(1));
}

TEST(RankEngine, LogitsThatAreNotFiniteEndTheirRequestOnly) {
  Rig rig(Roomy());
  rig.model.poison = 60;
  rig.Tell({Greedy(1, Count(8), 6), Greedy(2, Ids{1, 60, 2, 3, 4, 5}, 6)});
  rig.RunOut();
  EXPECT_EQ(rig.seen[2].finish, FinishReason::kError);
  EXPECT_THAT(rig.seen[2].error, HasSubstr("not finite"));
  EXPECT_NE(rig.seen[1].finish, FinishReason::kNone);
  // The pages of request 2 are not shared with others.
  EXPECT_EQ(rig.Run(Greedy(3, Ids{1, 60, 2, 3, 4, 5}, 1)).cached_tokens, 0);
}

TEST(RankEngine, ARoutersFaultIsTheErrorOfItsRequest) {
  Rig rig(Roomy());
  rig.model.poison = 60;
  rig.model.router_fault = "the router of layer 3 gave expert 7 a score that is not finite";
  rig.Tell({Greedy(1, Count(8), 6), Greedy(2, Ids{1, 60, 2, 3, 4, 5}, 6)});
  rig.RunOut();
  EXPECT_EQ(rig.seen[2].error, rig.model.router_fault);
  EXPECT_EQ(rig.seen[1].error, "");
}

// The expert ids that FakeForward returns for tokens[start, end).
Ids Routed(const Ids& tokens, int32_t start) {
  Ids ids;
  for (int32_t i = start; i < std::ssize(tokens); ++i) ids.insert(ids.end(), {tokens[i], i});
  return ids;
}

TEST(RankEngine, RoutedExpertsCoverAllButTheLastToken) {
  RankEngine::Options options = Roomy();
  options.chunked_prefill_size = 7;
  Rig rig(options);
  rig.Run(Greedy(1, Count(30), 3));  // leaves a prefix to reuse
  for (const int32_t start : {0, 9, 20, 30}) {
    EngineRequest request = Greedy(100 + start, Count(30), 5);
    request.routed_experts = {.enabled = true, .start = start};
    const RequestOutput out = rig.Run(request);
    Ids tokens = Count(30);
    tokens.insert(tokens.end(), out.new_tokens.begin(), out.new_tokens.end() - 1);
    EXPECT_EQ(out.routed_experts, Routed(tokens, start)) << start;
    EXPECT_EQ(out.cached_tokens, std::min(start, 29) / 4 * 4);  // requested positions are computed
  }
  EXPECT_THAT(rig.Run(Greedy(2, Count(30), 3)).routed_experts, IsEmpty());
}

TEST(RankEngine, RoutedExpertsFromBeyondThePromptAreRefused) {
  Rig rig(Roomy());
  EngineRequest request = Greedy(1, Count(10), 5);
  request.routed_experts = {.enabled = true, .start = 11};
  EXPECT_THAT(rig.Run(request).error, HasSubstr("routed_experts_start_len is 11"));
}

TEST(RankEngine, RequestsOfOtherGroupsAreNotItsOwn) {
  RankEngine::Options options = Roomy();
  options.group = 1;
  Rig rig(options);
  EngineRequest other = Greedy(1, Count(10)), mine = Greedy(2, Count(10));
  other.group = 0;
  mine.group = 1;
  rig.Tell({other, mine, AbortRequest{1}});
  EXPECT_EQ(rig.engine.Stats().waiting, 1);
  rig.RunOut();
  EXPECT_EQ(rig.seen.count(1), 0u);
  EXPECT_EQ(rig.seen[2].finish, FinishReason::kLength);
}

TEST(RankEngine, PlanReturnsTheCountsThatOtherGroupsNeed) {
  RankEngine::Options options = Roomy();
  options.chunked_prefill_size = 8;
  Rig rig(options);
  rig.Tell({Greedy(1, Count(7), 40), Greedy(2, Count(1, 9), 40)});
  rig.Step();
  rig.Tell({Greedy(3, Count(40, 5), 4)});
  const StepCounts counts = rig.engine.Plan();
  EXPECT_EQ(counts.decode_tokens, 2);
  EXPECT_EQ(counts.tokens, 2 + 8);
  EXPECT_EQ(counts.logit_rows, 2);
  rig.engine.Run();
}

// A group without requests takes part in the others' passes.
TEST(RankEngine, RunsEmptyBatchesWhereAnotherGroupHasTokens) {
  Rig rig(Roomy());
  EXPECT_EQ(rig.engine.Plan().tokens, 0);
  const StepCounts nothing, something{.tokens = 5, .logit_rows = 1};
  EXPECT_THAT(rig.engine.Run(std::vector{nothing, something}).outputs, IsEmpty());
  EXPECT_EQ(rig.model.passes, 1);
  rig.engine.Plan();
  rig.engine.Run(std::vector{nothing, nothing});
  EXPECT_EQ(rig.model.passes, 1);
  EXPECT_EQ(rig.engine.Stats().steps, 0);
}

TEST(RankEngine, AbortsFreeEverythingAtOnce) {
  RankEngine::Options options = Roomy();
  options.chunked_prefill_size = 8;
  options.max_running_requests = 2;
  options.enable_radix_cache = false;
  Rig rig(options);
  rig.Tell({Greedy(1, Count(4), 50), Greedy(2, Count(100), 50), Greedy(3, Count(9), 50)});
  rig.Step();
  rig.Step();
  EXPECT_EQ(rig.engine.Stats().running, 2);
  EXPECT_EQ(rig.engine.Stats().waiting, 1);
  rig.Tell({AbortRequest{1}, AbortRequest{2}, AbortRequest{3}, AbortRequest{99}});
  EXPECT_EQ(rig.engine.Stats().free_pages, 256);
  EXPECT_TRUE(rig.engine.HasWork());  // it still has to return the output with kAbort
  rig.Step();
  EXPECT_FALSE(rig.engine.HasWork());
  for (const uint64_t id : {1, 2, 3}) EXPECT_EQ(rig.seen[id].finish, FinishReason::kAbort);
  EXPECT_EQ(rig.seen.size(), 3u);
}

TEST(RankEngine, RetractedRequestsResumeWithTheSameOutputs) {
  RankEngine::Options options = Roomy();
  options.num_pages = 12;  // 48 tokens
  Rig tight(options), roomy(Roomy());
  std::vector<ControlMessage> requests;
  for (uint64_t id = 1; id <= 4; ++id) {
    EngineRequest request = Greedy(id, Count(4, static_cast<int32_t>(id) * 10), 24);
    request.sampling.temperature = 1;
    request.logprob = {.enabled = true, .start = 0, .top = 1};
    request.routed_experts.enabled = true;
    requests.push_back(request);
    roomy.Run(request);
  }
  tight.Tell(requests);
  tight.RunOut();
  EXPECT_GT(tight.engine.Stats().retractions, 0);
  for (uint64_t id = 1; id <= 4; ++id) {
    EXPECT_EQ(tight.seen[id].new_tokens, roomy.seen[id].new_tokens);
    EXPECT_TRUE(SameLogprobs(tight.seen[id].input_logprobs, roomy.seen[id].input_logprobs));
    EXPECT_TRUE(SameLogprobs(tight.seen[id].output_logprobs, roomy.seen[id].output_logprobs));
    EXPECT_THAT(tight.seen[id].routed_experts, SizeIs(2 * (4 + 24 - 1)));
    EXPECT_EQ(tight.seen[id].routed_experts, roomy.seen[id].routed_experts);
  }
}

TEST(RankEngine, PromptLogprobsGoInChunksThatBoundTheirMemory) {
  EXPECT_EQ(MaxLogitRows(150000), 447);
  RankEngine::Options options = Roomy();
  options.max_logit_rows = 7;
  Rig rig(options);
  EngineRequest request = Greedy(1, Count(12), 1);
  request.logprob = {.enabled = true, .start = 3};
  EXPECT_THAT(rig.Run(request).input_logprobs, SizeIs(9));
  EXPECT_EQ(rig.model.passes, 2);  // rows 0 to 8, of which 2 need no logits, then 9 to 11
}

}  // namespace
}  // namespace switchyard
