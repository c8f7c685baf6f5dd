#include <gmock/gmock.h>

#include "core/error.h"
#include "server/args/elastic_args.h"

namespace switchyard {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(DeathLimit, ReadsCountAndSeconds) {
  const DeathLimit limit = DeathLimit::Parse("3/0.5");
  EXPECT_EQ(limit.count, 3);
  EXPECT_EQ(limit.window.count(), 0.5);
  EXPECT_EQ(limit.Text(), "3/0.5");
  for (const char* bad : {"", "3", "3/", "/60", "0/60", "-1/60", "3/0", "3/-1", "3/60s", "3/inf",
                          "3/nan", "x/60", "3 /60", "99999999999/60"})
    EXPECT_THROW(DeathLimit::Parse(bad), Error) << bad;
}

TEST(RecentDeaths, CountsWithinTheWindow) {
  const RecentDeaths::Clock::time_point start{1000s};
  RecentDeaths deaths({.count = 2, .window = 10s});
  EXPECT_TRUE(deaths.Add("a", start));
  EXPECT_TRUE(deaths.Add("b", start + 6s));
  EXPECT_TRUE(deaths.Add("c", start + 11s));  // the end "a" is outside of the window
  EXPECT_FALSE(deaths.Add("d", start + 12s));
  EXPECT_THAT(deaths.Reasons(), AllOf(HasSubstr("3 times"), HasSubstr("b; c; d"),
                                      HasSubstr("--max-rank-deaths 2/10")));
}

TEST(RecentDeaths, EndsWithoutOutputInARowCountBeyondTheWindow) {
  const RecentDeaths::Clock::time_point start{1000s};
  RecentDeaths deaths({.count = 2, .window = 10s});
  EXPECT_TRUE(deaths.Add("a", start));
  EXPECT_TRUE(deaths.Add("b", start + 20s, /*no_output=*/true));
  EXPECT_TRUE(deaths.Add("c", start + 40s));
  EXPECT_TRUE(deaths.Add("d", start + 60s, true));
  EXPECT_FALSE(deaths.Add("e", start + 80s, true));
}

}  // namespace
}  // namespace switchyard
