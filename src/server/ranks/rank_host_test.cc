#include "server/ranks/rank_host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace switchyard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(RanksWatchedFrom, Node0WatchesAllOthersAndTheyWatchRank0) {
  EXPECT_THAT(RanksWatchedFrom(0, 2, 6), ElementsAre(2, 3, 4, 5));
  EXPECT_THAT(RanksWatchedFrom(0, 4, 4), IsEmpty());
  EXPECT_THAT(RanksWatchedFrom(2, 2, 6), ElementsAre(0));
  EXPECT_THAT(RanksWatchedFrom(4, 2, 6), ElementsAre(0));
}

}  // namespace
}  // namespace switchyard
