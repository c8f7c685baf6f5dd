#include "eplb/rank_flags.h"

#include <gmock/gmock.h>

#include "core/format.h"
#include "core/testing.h"
#include "eplb/rank_times.h"

namespace switchyard {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(RankFlagsTest, ListsAreReadAndOthersAreRefusedByName) {
  EXPECT_THAT(ParseExpertSlots("--slots", ""), IsEmpty());
  EXPECT_THAT(ParseExpertSlots("--slots", "96,160"), ElementsAre(96, 160));
  EXPECT_THAT(ParseRankCosts("--costs", ""), IsEmpty());
  EXPECT_THAT(ParseRankCosts("--costs", "1:40,2.5"),
              ElementsAre(RankCost{.row = 1, .expert = 40}, RankCost{.row = 2.5}));
  EXPECT_THAT(ParseRankCosts("--costs", "1:40:400,2"),
              ElementsAre(RankCost{.row = 1, .expert = 40, .move = 400}, RankCost{.row = 2}));
  for (const char* text : {"0", "-1", "1,", ",1", "a", "1;2", "1.5"})
    EXPECT_THAT(ErrorOf([&] { ParseExpertSlots("--slots", text); }),
                HasSubstr(fmt::format("--slots {}: want a number", text)));
  for (const char* text :
       {"0", "1:-1", "1:2:-3", "1:2:3:4", "1:2:", "1:", ":1", "x", "1,,1", "nan", "1:inf"})
    EXPECT_THAT(ErrorOf([&] { ParseRankCosts("--costs", text); }),
                HasSubstr(fmt::format("--costs {}: want for each EP rank", text)));
}

TEST(RankTimesTest, AnExpertIsReadOnceInEachPassWithRows) {
  EXPECT_EQ(PassesWithRows(0, 1), 0);
  EXPECT_EQ(PassesWithRows(5, 1), 1);
  EXPECT_EQ(PassesWithRows(0.25, 1), 0.25);
  EXPECT_THAT(PassesWithRows(1e6, 100), DoubleNear(100, 1e-6));
  EXPECT_THAT(PassesWithRows(1, 1000), DoubleNear(1, 1e-3));
  const RankTopology topology{
      .ranks = 2, .slots = {1, 3}, .costs = {{.row = 1, .expert = 10}, {.row = 2, .expert = 100}}};
  const std::vector<int32_t> shares = {4, 0, 1, 2};
  EXPECT_THAT(RankTimes(shares, 1, LivingSlots(topology, 4), topology), ElementsAre(14, 206));
}

}  // namespace
}  // namespace switchyard
