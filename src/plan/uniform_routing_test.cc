#include "plan/uniform_routing.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace switchyard::plan {
namespace {

struct Case {
  int tokens, top_k, experts, ranks;
};

// Averages the largest loads over random routings.
ExpertLoad Sampled(const Case& c, int times) {
  std::mt19937 random(7);
  const int of_rank = c.experts / c.ranks;
  ExpertLoad sum;
  std::vector<int> ids(c.experts);
  for (int time = 0; time < times; ++time) {
    std::vector<int> rows(c.experts, 0);
    std::iota(ids.begin(), ids.end(), 0);
    for (int token = 0; token < c.tokens; ++token)
      for (int k = 0; k < c.top_k; ++k) {
        std::swap(ids[k], ids[k + static_cast<int>(random() % (c.experts - k))]);
        ++rows[ids[k]];
      }
    double most_rows = 0, most_experts = 0;
    for (int rank = 0; rank < c.ranks; ++rank) {
      const auto begin = rows.begin() + rank * of_rank, end = begin + of_rank;
      most_rows = std::max<double>(most_rows, std::accumulate(begin, end, 0));
      most_experts = std::max<double>(most_experts, static_cast<double>(std::count_if(
                                                        begin, end, [](int n) { return n > 0; })));
    }
    sum.rows += most_rows / times;
    sum.experts += most_experts / times;
  }
  return sum;
}

TEST(UniformRouting, IsThatOfSampledRoutings) {
  for (const Case& c : {Case{.tokens = 1, .top_k = 8, .experts = 64, .ranks = 2},
                        {.tokens = 8, .top_k = 8, .experts = 64, .ranks = 2},
                        {.tokens = 128, .top_k = 8, .experts = 64, .ranks = 2},
                        {.tokens = 32, .top_k = 8, .experts = 128, .ranks = 8},
                        {.tokens = 200, .top_k = 4, .experts = 32, .ranks = 16},
                        {.tokens = 5, .top_k = 2, .experts = 8, .ranks = 4}}) {
    const ExpertLoad sampled = Sampled(c, 1000);
    const ExpertLoad load = UniformRouting(c.top_k, c.experts, c.ranks).MostLoaded(c.tokens);
    EXPECT_NEAR(load.rows, sampled.rows, 0.06 * sampled.rows) << c.tokens << " on " << c.ranks;
    EXPECT_NEAR(load.experts, sampled.experts, 0.06 * sampled.experts)
        << c.tokens << " on " << c.ranks;
  }
}

TEST(UniformRouting, OfOneRankOrWithoutTokensIsTheMean) {
  const UniformRouting one(2, 8, 1);
  EXPECT_DOUBLE_EQ(one.MostLoaded(3).rows, 6);
  EXPECT_DOUBLE_EQ(one.MostLoaded(3).experts, one.Mean(3).experts);
  EXPECT_DOUBLE_EQ(UniformRouting(2, 8, 4).MostLoaded(0).rows, 0);
}

TEST(UniformRouting, StaysWithinWhatARankHas) {
  const UniformRouting routing(8, 64, 64);
  for (const double tokens : {0.5, 1.0, 3.0, 1e6}) {
    const ExpertLoad most = routing.MostLoaded(tokens);
    EXPECT_LE(most.experts, 1);
    EXPECT_LE(most.experts, most.rows);
    EXPECT_LE(most.rows, std::max(1.0, tokens));
    EXPECT_GE(most.rows, routing.Mean(tokens).rows);
  }
}

TEST(UniformRouting, MaximaOfNormalVariables) {
  EXPECT_DOUBLE_EQ(ExpectedMaximum(1), 0);
  EXPECT_NEAR(ExpectedMaximum(2), 0.5642, 1e-4);
  EXPECT_NEAR(ExpectedMaximum(10), 1.5388, 1e-4);
  EXPECT_NEAR(ExpectedMaximum(100), 2.5076, 1e-4);
}

}  // namespace
}  // namespace switchyard::plan
