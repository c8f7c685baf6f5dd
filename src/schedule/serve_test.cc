// Properties of the schedules of serving: the phases of a step, overlap of each all-to-all, and the
// printed schedules.
#include "schedule/serve.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "schedule/print.h"
#include "schedule/verify.h"

namespace switchyard::schedule {
namespace {

using ::testing::HasSubstr;

ServeShape ShapeOf(std::vector<bool> experts, Mode mode, int micro_batches) {
  const int layers = static_cast<int>(experts.size());
  return {.experts = std::move(experts),
          .range = {.end = layers},
          .mode = mode,
          .micro_batches = micro_batches};
}

// The names of a list's operations: "embed attention experts finish logits sample".
std::string Words(const std::vector<Operation>& list) {
  std::string text;
  for (const Operation& o : list) {
    if (!text.empty()) text += " ";
    text += o.kind == Kind::kForward ? Name(o.phase) : Name(o.kind);
  }
  return text;
}

TEST(ServePlan, PlainRunsOnePhaseAfterTheOther) {
  for (const Mode mode : {Mode::kPrefill, Mode::kDecode}) {
    EXPECT_EQ(Words(Plan(ShapeOf({false, true}, mode, 1))),
              "embed attention experts finish "
              "attention route dispatch shared experts combine finish logits sample");
    ServeShape shape = ShapeOf({true}, mode, 1);
    shape.shared_expert = false;
    EXPECT_EQ(Words(Plan(shape)),
              "embed attention route dispatch experts combine finish logits sample");
  }
}

TEST(ServePlan, OneMicroBatchHidesItsExchangesBehindItsOwnWork) {
  for (const Mode mode : {Mode::kPrefill, Mode::kDecode}) {
    ServeShape shape = ShapeOf({true}, mode, 1);
    shape.down_under_combine = true;
    EXPECT_EQ(Words(Plan(shape)),
              "embed attention route dispatch shared experts combine down finish logits sample");
    shape.shared_under = Phase::kCombine;
    EXPECT_EQ(Words(Plan(shape)),
              "embed attention route dispatch experts combine down shared finish logits sample");
  }
}

TEST(ServePlan, AStageReceivesAndSendsHiddenStates) {
  ServeShape shape = ShapeOf({true, false, true, true}, Mode::kPrefill, 1);
  shape.range = {.begin = 1, .end = 3, .has_embedding = false, .has_head = false};
  EXPECT_EQ(Words(Plan(shape)),
            "receive attention experts finish "
            "attention route dispatch shared experts combine finish send");
  EXPECT_THAT(PrintSchedule(shape), HasSubstr("prefill, 1 micro-batch through 2 layers (1 with "));
  EXPECT_THAT(PrintSchedule(shape), HasSubstr("layer 2 dispatch"));
}

// Another micro-batch computes between the start and the completion of each all-to-all. The
// exception is the end of the step, where only the last micro-batch is left.
TEST(ServePlan, TwoMicroBatchesHideEachOthersExchanges) {
  for (const Mode mode : {Mode::kPrefill, Mode::kDecode}) {
    const std::vector<Operation> list = Plan(ShapeOf({true, true, true}, mode, 2));
    int hidden = 0, exposed = 0;
    for (size_t i = 0; i < list.size(); ++i) {
      if (!BeginsExchange(list[i])) continue;
      bool covered = false;
      for (size_t j = i + 1; j < list.size(); ++j) {
        if (list[j].micro_batch == list[i].micro_batch) {
          if (EndsExchange(list[j])) break;
        } else if (list[j].kind == Kind::kForward) {
          covered = covered || list[j].phase == Phase::kAttention || list[j].phase == Phase::kQkv ||
                    list[j].phase == Phase::kExperts;
        }
      }
      ++(covered ? hidden : exposed);
    }
    EXPECT_EQ(hidden + exposed, 12);
    EXPECT_EQ(exposed, mode == Mode::kPrefill ? 1 : 2);
    EXPECT_EQ(MaxExchangesInFlight(list), mode == Mode::kPrefill ? 2 : 1);
  }
}

// The operations of a micro-batch and their order are the same for any offset.
TEST(ServePlan, TheOffsetOnlyInterleaves) {
  for (const Mode mode : {Mode::kPrefill, Mode::kDecode}) {
    ServeShape shape = ShapeOf({false, true, true}, mode, 2);
    const std::vector<Operation> wanted = Plan(shape);
    for (int offset = 0; offset < 20; ++offset) {
      shape.offset = offset;
      const std::vector<Operation> list = Plan(shape);
      for (const int m : {0, 1}) {
        const auto of = [m](const std::vector<Operation>& all) {
          std::vector<Operation> own;
          std::ranges::copy_if(all, std::back_inserter(own),
                               [m](const Operation& o) { return o.micro_batch == m; });
          return own;
        };
        EXPECT_EQ(of(list), of(wanted));
      }
    }
    // With an offset larger than the number of segments, micro-batches run one after the other.
    shape.offset = 20;
    EXPECT_TRUE(std::ranges::is_sorted(Plan(shape), {}, &Operation::micro_batch));
  }
}

TEST(PrintSchedule, ShowsTwoPrefillsThatAlternate) {
  EXPECT_EQ(PrintSchedule(ShapeOf({true, true}, Mode::kPrefill, 2)),
            R"(prefill, 2 micro-batches through 2 layers (2 with experts), offset 0: 34 operations
       micro-batch 0          micro-batch 1          rows in flight
    0  embed
    1  layer 0 attention
    2  layer 0 route
    3  layer 0 dispatch                              0d
    4                         embed                  0d
    5                         layer 0 attention      0d
    6                         layer 0 route          0d
    7                         layer 0 dispatch       0d 1d
    8  layer 0 experts                               1d
    9  layer 0 combine                               1d 0c
   10                         layer 0 experts        0c
   11                         layer 0 combine        0c 1c
   12  layer 0 shared                                0c 1c
   13  layer 0 finish                                1c
   14  layer 1 attention                             1c
   15  layer 1 route                                 1c
   16  layer 1 dispatch                              1c 0d
   17                         layer 0 shared         1c 0d
   18                         layer 0 finish         0d
   19                         layer 1 attention      0d
   20                         layer 1 route          0d
   21                         layer 1 dispatch       0d 1d
   22  layer 1 experts                               1d
   23  layer 1 combine                               1d 0c
   24                         layer 1 experts        0c
   25                         layer 1 combine        0c 1c
   26  layer 1 shared                                0c 1c
   27  layer 1 finish                                1c
   28  logits                                        1c
   29  sample                                        1c
   30                         layer 1 shared         1c
   31                         layer 1 finish
   32                         logits
   33                         sample
)");
}

TEST(PrintSchedule, ShowsTheDownProjectionDuringCombine) {
  ServeShape shape = ShapeOf({true}, Mode::kPrefill, 1);
  shape.down_under_combine = true;
  EXPECT_EQ(PrintSchedule(shape),
            R"(prefill, 1 micro-batch through 1 layers (1 with experts): 11 operations
       micro-batch 0          rows in flight
    0  embed
    1  layer 0 attention
    2  layer 0 route
    3  layer 0 dispatch       0d
    4  layer 0 shared         0d
    5  layer 0 experts
    6  layer 0 combine        0c
    7  layer 0 down           0c
    8  layer 0 finish
    9  logits
   10  sample
)");
  shape.micro_batches = 2;
  EXPECT_THAT(PrintSchedule(shape), HasSubstr(R"(
    8  layer 0 experts                               1d
    9  layer 0 combine                               1d 0c
   10  layer 0 down                                  1d 0c
   11                         layer 0 experts        0c
   12                         layer 0 combine        0c 1c
   13                         layer 0 down           0c 1c
   14  layer 0 shared                                0c 1c
   15  layer 0 finish                                1c
)"));
}

TEST(PrintSchedule, ShowsADecodeThatTrailsTheOtherByTwoSegments) {
  EXPECT_EQ(PrintSchedule(ShapeOf({true, true}, Mode::kDecode, 2)),
            R"(decode, 2 micro-batches through 2 layers (2 with experts), offset 2: 38 operations
       micro-batch 0          micro-batch 1          rows in flight
    0  embed
    1  layer 0 qkv
    2  layer 0 attention
    3  layer 0 route
    4  layer 0 dispatch                              0d
    5  layer 0 shared                                0d
    6                         embed                  0d
    7                         layer 0 qkv            0d
    8  layer 0 experts
    9  layer 0 combine                               0c
   10                         layer 0 attention      0c
   11                         layer 0 route          0c
   12  layer 0 finish
   13                         layer 0 dispatch       1d
   14                         layer 0 shared         1d
   15  layer 1 qkv                                   1d
   16                         layer 0 experts
   17                         layer 0 combine        1c
   18  layer 1 attention                             1c
   19  layer 1 route                                 1c
   20                         layer 0 finish
   21  layer 1 dispatch                              0d
   22  layer 1 shared                                0d
   23                         layer 1 qkv            0d
   24  layer 1 experts
   25  layer 1 combine                               0c
   26                         layer 1 attention      0c
   27                         layer 1 route          0c
   28  layer 1 finish
   29                         layer 1 dispatch       1d
   30                         layer 1 shared         1d
   31  logits                                        1d
   32  sample                                        1d
   33                         layer 1 experts
   34                         layer 1 combine        1c
   35                         layer 1 finish
   36                         logits
   37                         sample
)");
}

}  // namespace
}  // namespace switchyard::schedule
