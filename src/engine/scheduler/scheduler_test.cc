#include "engine/scheduler/scheduler.h"

#include <gmock/gmock.h>

#include <numeric>
#include <vector>

#include "engine/scheduler/batch.h"

namespace switchyard {
namespace {

constexpr int32_t kPageSize = 4;

EngineRequest Prompt(int32_t first, int64_t length) {
  EngineRequest request;
  request.input_ids.resize(length);
  std::iota(request.input_ids.begin(), request.input_ids.end(), first);
  return request;
}

// A request that was retracted after its first tokens returns while its pages are still cached. It
// has one row to compute, so it decodes, although it was admitted after a prompt.
TEST(Scheduler, ARequestThatComesBackToDecodeIsPlannedBeforePrompts) {
  KvCache cache(128, kPageSize, true);
  Scheduler scheduler({.max_logit_rows = 8}, cache);
  Sequence before(Prompt(0, 2 * kPageSize));
  scheduler.Enqueue(&before);
  ASSERT_EQ(scheduler.Plan().size(), 1u);
  before.computed = before.settled = before.length();
  scheduler.Remove(&before);  // its pages stay in the cache

  Sequence prompt(Prompt(100, 11)), back(Prompt(0, 2 * kPageSize));
  back.tokens.push_back(7);
  scheduler.Enqueue(&prompt);
  scheduler.Enqueue(&back);
  const std::vector<ScheduledRows>& plan = scheduler.Plan();
  ASSERT_EQ(plan.size(), 2u);
  EXPECT_EQ(plan[0].sequence, &back);
  EXPECT_EQ(plan[0].rows, 1);
  EXPECT_EQ(plan[1].sequence, &prompt);

  ForwardBatch batch;
  BuildBatch(plan, kPageSize, batch);
  EXPECT_EQ(batch.decode_tokens, 1);
  EXPECT_THAT(batch.tokens,
              ::testing::ElementsAre(7, 100, 101, 102, 103, 104, 105, 106, 107, 108, 109, 110));
}

// Marks the planned rows as computed; prompts then decode.
void Compute(const std::vector<ScheduledRows>& plan) {
  for (const ScheduledRows& part : plan) {
    Sequence& s = *part.sequence;
    s.computed += part.rows;
    s.settled = s.computed;
    if (s.pending() == 0) s.tokens.push_back(7);
  }
}

EngineRequest Ranked(uint64_t id, int32_t priority, int64_t length) {
  EngineRequest request = Prompt(static_cast<int32_t>(100 * id), length);
  request.id = id;
  request.priority = priority;
  return request;
}

TEST(Scheduler, TheLimitHoldsOnlyWhileRequestsDecode) {
  KvCache cache(128, kPageSize, true);
  Scheduler scheduler({.chunk_rows = 64, .max_logit_rows = 8}, cache);
  scheduler.LimitPrefill(16);
  Sequence first(Ranked(1, 0, 80)), second(Ranked(2, 0, 40));
  scheduler.Enqueue(&first);
  EXPECT_EQ(scheduler.Plan()[0].rows, 64);
  Compute(scheduler.Plan());
  Compute(scheduler.Plan());  // the prompt's end
  scheduler.Enqueue(&second);
  const std::vector<ScheduledRows>& plan = scheduler.Plan();
  ASSERT_EQ(plan.size(), 2u);
  EXPECT_EQ(plan[0].rows, 1);
  EXPECT_EQ(plan[1].rows, 16);

  Scheduler alone({.chunk_rows = 64, .max_logit_rows = 8}, cache);
  alone.LimitPrefill(16);
  alone.SetOthersDecode(true);
  Sequence third(Ranked(3, 0, 40));
  alone.Enqueue(&third);
  EXPECT_EQ(alone.Plan()[0].rows, 16);
}

TEST(Scheduler, HigherPrioritiesAreAdmittedFirstAndEqualOnesInOrder) {
  KvCache cache(128, kPageSize, true);
  Scheduler scheduler({.max_running_requests = 3, .max_logit_rows = 8, .priorities = true}, cache);
  Sequence a(Ranked(1, 0, 4)), b(Ranked(2, 5, 4)), c(Ranked(3, 9, 4)), d(Ranked(4, 5, 4));
  for (Sequence* s : {&a, &b, &c, &d}) scheduler.Enqueue(s);
  std::vector<Sequence*> order;
  for (const ScheduledRows& part : scheduler.Plan()) order.push_back(part.sequence);
  EXPECT_THAT(order, ::testing::ElementsAre(&c, &b, &d));
}

// With pipeline stages, the last token of a retracted request may not be known yet. It cannot be
// admitted, so no request is retracted for it.
TEST(Scheduler, ARequestWithAnUnknownTokenInterruptsNone) {
  KvCache cache(128, kPageSize, true);
  Scheduler scheduler({.max_running_requests = 1,
                       .max_logit_rows = 8,
                       .priorities = true,
                       .preemption_threshold = 0,
                       .passes = 2},
                      cache);
  Sequence low(Ranked(1, 0, 4)), high(Ranked(2, 9, 4));
  scheduler.Enqueue(&low);
  scheduler.Plan();
  high.tokens.push_back(Sequence::kUnknown);
  high.unknown = 1;
  scheduler.Enqueue(&high);
  scheduler.Plan();
  EXPECT_EQ(scheduler.retractions(), 0);
  high.tokens.back() = 7;
  high.unknown = 0;
  scheduler.Plan();
  EXPECT_EQ(scheduler.retractions(), 1);
}

TEST(Scheduler, ARequestFarAboveInterruptsTheLowest) {
  KvCache cache(128, kPageSize, true);
  Scheduler scheduler({.max_running_requests = 2,
                       .max_logit_rows = 8,
                       .priorities = true,
                       .preemption_threshold = 10},
                      cache);
  Sequence low(Ranked(1, 0, 4)), middle(Ranked(2, 5, 4)), near(Ranked(3, 10, 4)),
      high(Ranked(4, 11, 4));
  scheduler.Enqueue(&low);
  scheduler.Enqueue(&middle);
  Compute(scheduler.Plan());
  scheduler.Enqueue(&near);
  Compute(scheduler.Plan());
  EXPECT_EQ(scheduler.retractions(), 0);
  scheduler.Enqueue(&high);
  std::vector<Sequence*> order;
  for (const ScheduledRows& part : scheduler.Plan()) order.push_back(part.sequence);
  EXPECT_THAT(order, ::testing::ElementsAre(&middle, &high));
  EXPECT_EQ(scheduler.retractions(), 1);
  EXPECT_EQ(scheduler.waiting(), 2);
  // `high` does not lose its place again: the difference to `near` is small.
  Compute(scheduler.Plan());
  EXPECT_EQ(scheduler.retractions(), 1);
}

TEST(Scheduler, WithoutPrioritiesTheirValuesDoNotMatter) {
  KvCache cache(128, kPageSize, true);
  Scheduler scheduler({.max_running_requests = 1, .max_logit_rows = 8}, cache);
  Sequence a(Ranked(1, 0, 4)), b(Ranked(2, 50, 4));
  scheduler.Enqueue(&a);
  scheduler.Enqueue(&b);
  EXPECT_EQ(scheduler.Plan()[0].sequence, &a);
  EXPECT_EQ(scheduler.retractions(), 0);
}

}  // namespace
}  // namespace switchyard
