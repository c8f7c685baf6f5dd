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

// A request retracted after its first tokens returns while its pages are still cached. It has one
// row to compute and decodes, though it was admitted after a prompt.
TEST(Scheduler, ARequestThatComesBackToDecodeIsPlannedBeforePrompts) {
  KvCache cache(128, kPageSize, true);
  Scheduler scheduler({.max_logit_rows = 8}, cache);
  Sequence before(Prompt(0, 2 * kPageSize));
  scheduler.Enqueue(&before);
  ASSERT_EQ(scheduler.Plan().size(), 1u);
  before.computed = before.length();
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
              testing::ElementsAre(7, 100, 101, 102, 103, 104, 105, 106, 107, 108, 109, 110));
}

}  // namespace
}  // namespace switchyard
