// Planned schedules of random shapes are valid, and the verifier finds injected faults.
#include "schedule/verify.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "schedule/test_shapes.h"

namespace switchyard::schedule {
namespace {

using ::testing::HasSubstr;

TEST(Plan, OfAnyShapeIsRight) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 300; ++round) {
    const std::vector<StepShape> stages = testing::RandomPipeline(random, 6);
    std::vector<std::vector<Operation>> lists;
    for (const StepShape& shape : stages) {
      lists.push_back(Plan(shape));
      ASSERT_EQ(FindScheduleError(shape, lists.back()), "") << "round " << round;
      EXPECT_LE(MaxExchangesInFlight(lists.back()), shape.order == Order::kOverlapped ? 2 : 1);
    }
    // Links with space for one message suffice to avoid deadlock.
    ASSERT_EQ(FindPipelineError(lists, 1), "") << "round " << round;
  }
}

// A schedule with an operation removed, duplicated or changed is invalid.
TEST(FindFault, FindsMissingDuplicateAndUnknownOperations) {
  const StepShape shape{
      .experts = {false, true, true}, .micro_batches = 3, .order = Order::kOverlapped};
  const std::vector<Operation> right = Plan(shape);
  for (size_t i = 0; i < right.size(); ++i) {
    std::vector<Operation> list = right;
    list.erase(list.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_THAT(FindScheduleError(shape, list), HasSubstr("is missing")) << i;
    list = right;
    list.push_back(right[i]);
    EXPECT_THAT(FindScheduleError(shape, list), HasSubstr("are the same")) << i;
    list = right;
    list[i].layer = 7;
    EXPECT_THAT(FindScheduleError(shape, list), HasSubstr("is not part of this step")) << i;
  }
}

TEST(FindFault, FindsOperationsThatComeTooEarly) {
  const StepShape shape{.experts = {true, true}, .micro_batches = 2, .order = Order::kOverlapped};
  const std::vector<Operation> right = Plan(shape);
  // Swaps two adjacent operations of one micro-batch, unless one of them is the shared expert.
  for (size_t i = 0; i + 1 < right.size(); ++i) {
    const Operation &a = right[i], &b = right[i + 1];
    if (a.micro_batch != b.micro_batch || a.phase == Phase::kShared || b.phase == Phase::kShared ||
        a.kind == Kind::kSumGradients) {
      continue;
    }
    std::vector<Operation> list = right;
    std::swap(list[i], list[i + 1]);
    EXPECT_THAT(FindScheduleError(shape, list), HasSubstr("comes before")) << Describe(a);
  }
  std::vector<Operation> list = right;
  std::rotate(list.begin(), list.end() - 1, list.end());
  EXPECT_THAT(FindScheduleError(shape, list), HasSubstr("await sums comes before"));
}

// If the backward passes of two micro-batches change places, gradients are accumulated in another
// order.
TEST(FindFault, FindsBackwardPassesThatChangeTheOrderOfSums) {
  const StepShape shape{.experts = {true}, .micro_batches = 2, .order = Order::kPlain};
  std::vector<Operation> list = Plan(shape);
  for (Operation& o : list) {
    if (o.micro_batch != Operation::kNone) o.micro_batch = 1 - o.micro_batch;
  }
  EXPECT_THAT(FindScheduleError(shape, list), HasSubstr("comes before"));
}

// The same for weight gradients that are operations of their own.
TEST(FindFault, FindsWeightGradientsAtTheWrongPlace) {
  const StepShape shape{.experts = {true, false},
                        .micro_batches = 4,
                        .order = Order::kZeroBubble,
                        .stages = 3,
                        .stage = 1};
  const std::vector<Operation> right = Plan(shape);
  const auto moved = [&](int m, const Operation& to) {  // to the place of another operation
    std::vector<Operation> list = right;
    const Operation weights{.kind = Kind::kWeights, .micro_batch = m, .layer = 0};
    std::erase(list, weights);
    list.insert(std::ranges::find(list, to), weights);
    return FindScheduleError(shape, list);
  };
  EXPECT_THAT(
      moved(1, {Kind::kBackward, 1, 0, Phase::kAttention}),
      HasSubstr("weights of micro-batch 1, layer 0 comes before backward of micro-batch 1"));
  EXPECT_THAT(moved(1, {.kind = Kind::kAwaitSums}),
              HasSubstr("weights of micro-batch 2, layer 0 comes before weights of micro-batch 1"));
  EXPECT_THAT(moved(3, {.kind = Kind::kAwaitSums}),
              HasSubstr("sum gradients, layer 0 comes before weights of micro-batch 3"));
  std::vector<Operation> list = right;
  std::erase_if(list, [](const Operation& o) { return o.kind == Kind::kWeights; });
  EXPECT_THAT(FindScheduleError(shape, list), HasSubstr("is missing"));
}

TEST(FindFault, FindsMoreMicroBatchesThanPlaces) {
  StepShape shape{.experts = {true}, .micro_batches = 3, .order = Order::kOverlapped};
  const std::vector<Operation> list = Plan(shape);
  shape.order = Order::kPlain;
  EXPECT_THAT(FindScheduleError(shape, list), HasSubstr("2 micro-batches are in flight"));
}

TEST(FindPipelineFault, FindsDeadlockedStages) {
  StepShape shape{.experts = {true}, .micro_batches = 2, .stages = 2};
  std::vector<std::vector<Operation>> lists = {Plan(shape), {}};
  EXPECT_THAT(FindPipelineError(lists, 1), HasSubstr("stage 0 deadlocks"));
  shape.stage = 1;
  lists[1] = Plan(shape);
  EXPECT_EQ(FindPipelineError(lists, 1), "");
  for (Operation& o : lists[1]) {
    if (o.kind == Kind::kReceive) o.micro_batch = 1 - o.micro_batch;
  }
  EXPECT_THAT(FindPipelineError(lists, 1), HasSubstr("got micro-batch 0"));
  std::erase_if(lists[1],
                [](const Operation& o) { return o.kind == Kind::kReceive && o.micro_batch == 0; });
  EXPECT_NE(FindPipelineError(lists, 2), "");
}

}  // namespace
}  // namespace switchyard::schedule
