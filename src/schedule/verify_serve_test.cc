// Planned schedules of serving are valid, and the verifier finds injected faults.
#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "schedule/test_shapes.h"
#include "schedule/verify.h"

namespace switchyard::schedule {
namespace {

using ::testing::HasSubstr;
using Operations = std::vector<Operation>;

// Calls body(shape) for every mode, number of micro-batches, and setting of single-batch overlap.
void ForEachShape(const std::vector<bool>& experts, const LayerRange& range,
                  const std::function<void(const ServeShape&)>& body) {
  for (const Mode mode : {Mode::kPrefill, Mode::kDecode}) {
    for (const int micro_batches : {1, 2, 3}) {
      for (int option = 0; option < 8; ++option) {
        ServeShape shape{.experts = experts,
                         .range = range,
                         .mode = mode,
                         .micro_batches = micro_batches,
                         .shared_expert = option % 4 != 3,
                         .down_under_combine = option >= 4};
        if (option % 4 == 1) shape.shared_under = Phase::kDispatch;
        if (option % 4 == 2) shape.shared_under = Phase::kCombine;
        body(shape);
      }
    }
  }
}

TEST(ServePlan, OfAnyShapeIsRight) {
  const std::vector<std::optional<int>> offsets = {std::nullopt, 0, 1, 2, 5, 50};
  std::mt19937_64 random(1);
  for (int round = 0; round < 10; ++round) {
    std::vector<bool> experts(3 + testing::Below(random, 4));
    for (size_t i = 0; i < experts.size(); ++i) experts[i] = testing::Below(random, 3) > 0;
    const int layers = static_cast<int>(experts.size());
    const int first = 1 + testing::Below(random, layers - 2);
    ForEachShape(experts, {.end = layers}, [&](ServeShape shape) {
      for (const std::optional<int> offset : offsets) {
        shape.offset = offset;
        const Operations list = Plan(shape);
        ASSERT_EQ(FindScheduleError(shape, list), "") << "round " << round;
        EXPECT_LE(MaxExchangesInFlight(list), shape.micro_batches);
      }
      // Three pipeline stages. A link with space for one message suffices.
      std::vector<Operations> stages;
      for (const LayerRange& range :
           {LayerRange{.end = first, .has_head = false},
            LayerRange{
                .begin = first, .end = layers - 1, .has_embedding = false, .has_head = false},
            LayerRange{.begin = layers - 1, .end = layers, .has_embedding = false}}) {
        shape.offset.reset();
        shape.range = range;
        stages.push_back(Plan(shape));
        ASSERT_EQ(FindScheduleError(shape, stages.back()), "") << "round " << round;
      }
      ASSERT_EQ(FindPipelineError(stages, 1), "") << "round " << round;
    });
  }
}

TEST(FindServeFault, FindsMissingDuplicateAndUnknownOperations) {
  ForEachShape({false, true}, {.end = 2}, [](const ServeShape& shape) {
    const Operations right = Plan(shape);
    for (size_t i = 0; i < right.size(); ++i) {
      Operations list = right;
      list.erase(list.begin() + static_cast<std::ptrdiff_t>(i));
      EXPECT_THAT(FindScheduleError(shape, list), HasSubstr("is missing")) << i;
      list = right;
      list.insert(list.begin(), right[i]);
      EXPECT_THAT(FindScheduleError(shape, list), HasSubstr("are the same")) << i;
      list = right;
      list[i].layer = 7;
      EXPECT_THAT(FindScheduleError(shape, list), HasSubstr("is not part of this step")) << i;
      list = right;
      list[i].micro_batch = shape.micro_batches;
      EXPECT_THAT(FindScheduleError(shape, list), HasSubstr("is not part of this step")) << i;
    }
  });
}

// An independent implementation of the rules. `right` is a valid list for the same shape:
// - each micro-batch runs the operations of `right`, in the same order except for shared experts;
// - while a shared expert runs, the exchange that SharedUnder selects is in flight, and no other
//   exchange of its micro-batch;
// - micro-batches begin and end in order.
bool IsValid(const ServeShape& shape, const Operations& right, const Operations& list) {
  std::vector<int> begun, ended;
  for (int m = 0; m < shape.micro_batches; ++m) {
    const auto of = [m](const Operations& all, bool shared) {
      Operations own;
      std::ranges::copy_if(all, std::back_inserter(own), [&](const Operation& o) {
        return o.micro_batch == m && (shared || o.phase != Phase::kShared);
      });
      return own;
    };
    if (of(list, false) != of(right, false)) return false;
    ExchangesInFlight exchanges;
    for (const Operation& o : of(list, true)) {
      exchanges.Apply(o);
      if (o.phase != Phase::kShared) continue;
      const std::span<const Operation> started = exchanges.started();
      if (started.size() != 1 || started[0].phase != SharedUnder(shape) ||
          started[0].layer != o.layer)
        return false;
    }
  }
  for (const Operation& o : list) {
    if (o.kind == Kind::kEmbed) begun.push_back(o.micro_batch);
    if (o.kind == Kind::kSample) ended.push_back(o.micro_batch);
  }
  return std::ranges::is_sorted(begun) && std::ranges::is_sorted(ended);
}

TEST(FindServeFault, FindsEverySwapThatBreaksARule) {
  ForEachShape({true, false}, {.end = 2}, [](const ServeShape& shape) {
    if (shape.micro_batches > 2) return;
    const Operations right = Plan(shape);
    ASSERT_TRUE(IsValid(shape, right, right));
    for (size_t i = 0; i < right.size(); ++i) {
      for (size_t j = i + 1; j < right.size(); ++j) {
        Operations list = right;
        std::swap(list[i], list[j]);
        EXPECT_EQ(FindScheduleError(shape, list).empty(), IsValid(shape, right, list))
            << Describe(right[i]) << " and " << Describe(right[j]);
      }
    }
  });
}

TEST(FindServeFault, FindsMicroBatchesThatOvertake) {
  const ServeShape shape{// The micro-batches run one after the other.
                         .experts = {true},
                         .range = {.end = 1},
                         .micro_batches = 2,
                         .offset = 50};
  const Operations right = Plan(shape);
  const auto half = right.begin() + std::ssize(right) / 2;
  Operations list = right;
  std::rotate(list.begin(), list.begin() + (half - right.begin()), list.end() - 1);
  EXPECT_THAT(FindScheduleError(shape, list), HasSubstr("embed of micro-batch 1 comes before"));
  list.assign(right.begin(), half - 1);  // without the sample operation of micro-batch 0
  list.insert(list.end(), half, right.end());
  list.push_back(*(half - 1));
  EXPECT_THAT(FindScheduleError(shape, list), HasSubstr("sample of micro-batch 1 comes before"));
}

TEST(FindServeFault, NamesTheLayerOfTheModel) {
  const ServeShape shape{.experts = {true, true, true}, .range = {.begin = 1, .end = 3}};
  Operations list = Plan(shape);
  list.erase(list.begin() + 1);
  EXPECT_EQ(FindScheduleError(shape, list),
            "forward of micro-batch 0, layer 1, attention is missing");
}

TEST(FindExchangeError, FindsExchangesThatOverlap) {
  const auto of = [](int m, Phase phase) { return Operation{Kind::kForward, m, 0, phase}; };
  const Operations one = {of(0, Phase::kDispatch), of(0, Phase::kExperts), of(0, Phase::kCombine),
                          of(0, Phase::kFinish)};
  EXPECT_EQ(FindExchangeError(one, 1), "");
  EXPECT_THAT(FindExchangeError(Operations{of(0, Phase::kDispatch), of(0, Phase::kCombine)}, 2),
              HasSubstr("combine starts while forward of micro-batch 0, layer 0, dispatch is in "));
  const Operations two = {of(0, Phase::kDispatch), of(1, Phase::kDispatch), of(0, Phase::kExperts),
                          of(1, Phase::kExperts)};
  EXPECT_EQ(FindExchangeError(two, 2), "");
  EXPECT_THAT(FindExchangeError(two, 1), HasSubstr("2 exchanges are in flight"));
  EXPECT_EQ(MaxExchangesInFlight(two), 2);
  // kExperts does not complete combine.
  EXPECT_THAT(FindExchangeError(Operations{of(0, Phase::kCombine), of(0, Phase::kExperts)}, 1),
              HasSubstr("combine is never completed"));
}

}  // namespace
}  // namespace switchyard::schedule
