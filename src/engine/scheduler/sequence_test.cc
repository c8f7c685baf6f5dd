#include "engine/scheduler/sequence.h"

#include <gtest/gtest.h>

namespace switchyard {
namespace {

EngineRequest Request() {
  EngineRequest request{.id = 3, .input_ids = {5, 6, 7, 8}};
  request.logprob = {.enabled = true, .start = 0, .top = 2};
  request.routed_experts = {.enabled = true, .start = 1};
  return request;
}

TEST(Sequence, WithOutputIsAsAfterItsRetraction) {
  // A sequence that computed its prompt, gave two tokens and was retracted.
  Sequence retracted(Request());
  retracted.tokens.insert(retracted.tokens.end(), {9, 10});
  retracted.next_logprob = retracted.prompt_length;  // its logprobs were sent with the first output
  retracted.input_logprobs.clear();
  retracted.next_routed = 5;  // the row of the last token has not been computed
  retracted.admitted_before = true;
  retracted.cached_tokens = 2;

  EngineRequest request = Request();
  request.output_ids = {9, 10};
  request.cached_tokens = 2;
  const Sequence resumed(std::move(request));
  EXPECT_EQ(resumed.tokens, retracted.tokens);
  EXPECT_EQ(resumed.prompt_length, retracted.prompt_length);
  EXPECT_EQ(resumed.computed, retracted.computed);
  EXPECT_EQ(resumed.settled, retracted.settled);
  EXPECT_EQ(resumed.next_logprob, retracted.next_logprob);
  EXPECT_EQ(resumed.input_logprobs.size(), 0u);
  EXPECT_EQ(resumed.next_routed, retracted.next_routed);
  EXPECT_EQ(resumed.max_reusable(), retracted.max_reusable());
  EXPECT_EQ(resumed.admitted_before, retracted.admitted_before);
  EXPECT_EQ(resumed.cached_tokens, retracted.cached_tokens);
  EXPECT_EQ(resumed.output().size(), 2u);
  EXPECT_EQ(resumed.complete, retracted.complete);
  EXPECT_EQ(resumed.known_length(), retracted.known_length());
}

TEST(Sequence, WithoutOutputOwesThePromptsResults) {
  const Sequence fresh(Request());
  EXPECT_EQ(fresh.next_logprob, 1);
  EXPECT_EQ(fresh.input_logprobs.size(), 1u);  // the logprobs of the first position
  EXPECT_EQ(fresh.next_routed, 1);
  EXPECT_FALSE(fresh.admitted_before);
}

TEST(Sequence, RoutedExpertsBeginWhereTheyWereRequested) {
  EngineRequest request = Request();
  request.routed_experts.start = 4;
  request.output_ids = {9};
  EXPECT_EQ(Sequence(request).next_routed, 4);
  request.routed_experts.enabled = false;
  EXPECT_FALSE(Sequence(request).routed_experts_pending());
}

}  // namespace
}  // namespace switchyard
