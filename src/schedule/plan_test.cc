// Properties of the schedules: overlap of each all-to-all, equal work, 1F1B structure.
#include "schedule/plan.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "schedule/print.h"

namespace switchyard::schedule {
namespace {

std::vector<Operation> Of(const std::vector<Operation>& list, int micro_batch) {
  std::vector<Operation> found;
  std::ranges::copy_if(list, std::back_inserter(found),
                       [&](const Operation& o) { return o.micro_batch == micro_batch; });
  return found;
}

TEST(Plan, PlainIsOneMicroBatchAfterTheOther) {
  const StepShape shape{.experts = {false, true}, .micro_batches = 3};
  const std::vector<Operation> list = Plan(shape);
  EXPECT_TRUE(std::ranges::is_sorted(list.begin(), list.end() - 4, {}, &Operation::micro_batch));
  EXPECT_EQ(MicroBatchSlots(shape), 1);
}

// Computation of the other micro-batch separates the start and the completion of each all-to-all of
// a pair.
TEST(Plan, OverlappedHidesEachExchangeOfAPair) {
  const StepShape shape{.experts = {true, true}, .micro_batches = 2, .order = Order::kOverlapped};
  EXPECT_EQ(MicroBatchSlots(shape), 2);
  const std::vector<Operation> list = Plan(shape);
  const auto computes = [](const Operation& o) {
    return o.phase == Phase::kAttention || o.phase == Phase::kExperts;
  };
  int hidden = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    const bool paired = (list[i].kind == Kind::kForward && list[i].micro_batch == 1) ||
                        (list[i].kind == Kind::kBackward && list[i].micro_batch == 0);
    if (!paired || !BeginsExchange(list[i])) continue;
    bool covered = false;
    for (size_t j = i + 1; j < list.size(); ++j) {
      const Operation& o = list[j];
      if (o.kind == list[i].kind && EndsExchange(o)) break;
      covered = covered || (o.kind != list[i].kind && computes(o));
    }
    EXPECT_TRUE(covered) << Describe(list[i]);
    ++hidden;
  }
  EXPECT_EQ(hidden, 8);
}

// Plain and overlapped schedules run the same operations for each micro-batch, in the same order
// except for kShared.
TEST(Plan, OrdersDoTheSameToEachMicroBatch) {
  StepShape shape{.experts = {true, false}, .micro_batches = 4};
  std::vector<Operation> plain = Of(Plan(shape), 2);
  shape.order = Order::kOverlapped;
  std::vector<Operation> overlapped = Of(Plan(shape), 2);
  std::ranges::sort(plain);
  std::ranges::sort(overlapped);
  EXPECT_EQ(plain, overlapped);
}

TEST(Plan, APipelineWarmsUpAndCoolsDown) {
  StepShape shape{.experts = {false}, .micro_batches = 6, .stages = 4};
  for (shape.stage = 0; shape.stage < 4; ++shape.stage) {
    const std::vector<Operation> list = Plan(shape);
    int under_way = 0, most = 0;
    for (const Operation& o : list) {
      if (o.kind == Kind::kBegin) most = std::max(most, ++under_way);
      if (o.kind == Kind::kBackward && o.phase == Phase::kAttention) --under_way;
    }
    EXPECT_EQ(most, 4 - shape.stage);
    EXPECT_EQ(most, MicroBatchSlots(shape));
  }
  shape.order = Order::kOverlapped;
  shape.stage = 3;
  EXPECT_EQ(MicroBatchSlots(shape), 2);
  shape.stage = 2;
  EXPECT_EQ(MicroBatchSlots(shape), 4);
}

// The time of a step, if a forward pass, a backward pass without weight gradients, and the weight
// gradients of a micro-batch take one unit of time each, and messages take none.
int TimeOfStep(StepShape shape) {
  const bool separate = shape.order == Order::kZeroBubble;
  std::vector<std::vector<Operation>> lists;
  for (shape.stage = 0; shape.stage < shape.stages; ++shape.stage) lists.push_back(Plan(shape));
  const auto passes = static_cast<size_t>(shape.micro_batches);
  // When the message of a micro-batch was sent by each stage, in both directions; -1: not yet.
  std::vector<std::vector<int>> forth(lists.size(), std::vector<int>(passes, -1)), back = forth;
  std::vector<int> time(lists.size(), 0);
  std::vector<size_t> at(lists.size(), 0);
  const auto run = [&](size_t s, const Operation& o) {  // whether it could run
    const auto m = static_cast<size_t>(o.micro_batch);
    const auto wait = [&](int sent) {
      time[s] = std::max(time[s], sent);
      return sent >= 0;
    };
    if (o.kind == Kind::kReceive) return wait(forth[s - 1][m]);
    if (o.kind == Kind::kReceiveGradient) return wait(back[s + 1][m]);
    if (o.kind == Kind::kSend) forth[s][m] = time[s];
    if (o.kind == Kind::kSendGradient) back[s][m] = time[s];
    if (o.kind == Kind::kForward && o.phase == Phase::kFinish) time[s] += 1;
    if (o.kind == Kind::kBackward && o.phase == Phase::kAttention) time[s] += separate ? 1 : 2;
    if (o.kind == Kind::kWeights) time[s] += 1;
    return true;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t s = 0; s < lists.size(); ++s)
      for (; at[s] < lists[s].size() && run(s, lists[s][at[s]]); ++at[s]) moved = true;
  }
  for (size_t s = 0; s < lists.size(); ++s) EXPECT_EQ(at[s], lists[s].size());
  return *std::ranges::max_element(time);
}

// The bubble of ZB-H1 is a third of that of 1F1B, with no more micro-batches in flight on any
// stage than 1F1B has on the first one.
TEST(Plan, ZeroBubbleFillsWaitsWithWeightGradients) {
  for (const int stages : {1, 2, 4, 7}) {
    for (const int more : {0, 1, 5}) {
      StepShape shape{.experts = {false}, .micro_batches = stages + more, .stages = stages};
      EXPECT_EQ(TimeOfStep(shape), 3 * shape.micro_batches + 3 * (stages - 1));
      const int slots = MicroBatchSlots(shape);
      shape.order = Order::kZeroBubble;
      EXPECT_EQ(TimeOfStep(shape), 3 * shape.micro_batches + stages - 1);
      for (shape.stage = 0; shape.stage < stages; ++shape.stage)
        EXPECT_EQ(MicroBatchSlots(shape), slots);
    }
  }
}

TEST(Plan, EarlySumsFollowTheirLayersLastBackwardPass) {
  const StepShape shape{.experts = {true, false, true}, .micro_batches = 2, .early_sums = true};
  const std::vector<Operation> list = Plan(shape);
  int found = 0;
  for (size_t i = 1; i < list.size(); ++i) {
    if (list[i].kind != Kind::kSumGradients || list[i].layer == Operation::kNone) continue;
    EXPECT_EQ(list[i - 1], (Operation{Kind::kBackward, 1, list[i].layer, Phase::kAttention}));
    ++found;
  }
  EXPECT_EQ(found, 3);
}

TEST(PrintSchedule, HasALineForEachOperation) {
  StepShape shape{.experts = {true}, .micro_batches = 2, .order = Order::kOverlapped};
  const std::string text = PrintSchedule(shape);
  EXPECT_EQ(std::ranges::count(text, '\n'), static_cast<std::ptrdiff_t>(Plan(shape).size()) + 2);
  EXPECT_THAT(text, ::testing::StartsWith(
                        "2 micro-batches through 1 layers (1 with experts), overlapped: "));
  EXPECT_THAT(text,
              ::testing::HasSubstr("   12  1: layer 0 dispatch                           0c' 1d\n"
                                   "   13                         0: layer 0 shared      0c' 1d\n"
                                   "   14                         0: layer 0 experts     1d\n"));
  shape.stages = 2;
  shape.first_layer = 5;
  EXPECT_THAT(PrintSchedule(shape), ::testing::HasSubstr("stage 0 of 2"));
  EXPECT_THAT(PrintSchedule(shape), ::testing::HasSubstr("0: layer 5 attention"));
  EXPECT_THAT(PrintSchedule(shape), ::testing::HasSubstr("1: receive gradient"));
  shape.order = Order::kZeroBubble;
  EXPECT_THAT(PrintSchedule(shape), ::testing::HasSubstr("zero-bubble, stage 0 of 2"));
  EXPECT_THAT(PrintSchedule(shape),
              ::testing::HasSubstr("                        1: layer 5 weights\n"));
}

}  // namespace
}  // namespace switchyard::schedule
