#include "server/ranks/rank_host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <utility>
#include <vector>

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

std::vector<int> FailedOf(std::vector<RankExit> exits, bool alone) {
  RankHost::Ending ending{.failed = {9}, .by_signal = true, .exits = std::move(exits)};
  ending.NameFailed(alone);
  return ending.failed;
}

TEST(EndingTest, NamesTheRanksThatCausedTheEnd) {
  const RankExit segv{.rank = 3, .signal = SIGSEGV}, killed{.rank = 1, .signal = SIGKILL};
  const RankExit left{.rank = 0, .code = 1};
  for (const bool alone : {true, false}) {
    EXPECT_THAT(FailedOf({segv, left}, alone), ElementsAre(3));
    EXPECT_THAT(FailedOf({left, killed}, alone), IsEmpty());
    EXPECT_THAT(FailedOf({segv, killed}, alone), IsEmpty());
    EXPECT_THAT(FailedOf({}, alone), IsEmpty());
  }
  // With several nodes, an exit may be the consequence of a failure elsewhere.
  EXPECT_THAT(FailedOf({left}, true), ElementsAre(0));
  EXPECT_THAT(FailedOf({left}, false), IsEmpty());
}

}  // namespace
}  // namespace switchyard
