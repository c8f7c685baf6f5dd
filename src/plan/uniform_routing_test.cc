#include "plan/uniform_routing.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <span>
#include <utility>
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

// Sequences whose tokens prefer the same experts: each sequence has random weights of the experts.
struct Prompts {
  int sequences, tokens, top_k, experts, ranks;
  double shape;  // of the weights' gamma distribution: smaller is more correlated
};

struct SampledPrompts {
  ExpertLoad most;
  double correlation = 0;  // of the rows that two tokens of a sequence give to an expert
};

SampledPrompts Sampled(const Prompts& p, int times) {
  std::mt19937 random(11);
  std::gamma_distribution<double> weight(p.shape);
  std::uniform_real_distribution<double> uniform(0, 1);
  const double chosen = static_cast<double>(p.top_k) / p.experts;
  SampledPrompts sampled;
  double squares = 0;  // of the rows of a sequence, around their mean
  for (int time = 0; time < times; ++time) {
    std::vector<int> rows(p.experts, 0);
    for (int s = 0; s < p.sequences; ++s) {
      std::vector<double> weights(p.experts);
      for (double& w : weights) w = weight(random) + 1e-12;
      std::vector<int> own(p.experts, 0);
      for (int token = 0; token < p.tokens; ++token) {
        // The k smallest of independent exponential variables are a draw without replacement.
        std::vector<std::pair<double, int>> race;
        for (int e = 0; e < p.experts; ++e)
          race.emplace_back(-std::log(1 - uniform(random)) / weights[e], e);
        std::ranges::partial_sort(race, race.begin() + p.top_k);
        for (int k = 0; k < p.top_k; ++k) ++own[race[k].second];
      }
      for (int e = 0; e < p.experts; ++e) {
        squares += std::pow(own[e] - p.tokens * chosen, 2);
        rows[e] += own[e];
      }
    }
    double most_rows = 0, most_experts = 0;
    for (int rank = 0; rank < p.ranks; ++rank) {
      const auto begin = rows.begin() + rank * (p.experts / p.ranks);
      const auto end = begin + p.experts / p.ranks;
      most_rows = std::max<double>(most_rows, std::accumulate(begin, end, 0));
      most_experts = std::max<double>(most_experts, static_cast<double>(std::count_if(
                                                        begin, end, [](int n) { return n > 0; })));
    }
    sampled.most.rows += most_rows / times;
    sampled.most.experts += most_experts / times;
  }
  const double variance = squares / (times * p.sequences * p.experts);
  sampled.correlation =
      (variance / (p.tokens * chosen * (1 - chosen)) - 1) / static_cast<double>(p.tokens - 1);
  return sampled;
}

TEST(UniformRouting, IsThatOfSampledSequencesOfSimilarTokens) {
  for (const Prompts& p :
       {Prompts{.sequences = 1, .tokens = 60, .top_k = 1, .experts = 16, .ranks = 2, .shape = 0.5},
        {.sequences = 4, .tokens = 40, .top_k = 1, .experts = 32, .ranks = 4, .shape = 0.2},
        {.sequences = 1, .tokens = 100, .top_k = 8, .experts = 64, .ranks = 2, .shape = 0.5},
        {.sequences = 6, .tokens = 50, .top_k = 4, .experts = 32, .ranks = 4, .shape = 1}}) {
    const SampledPrompts sampled = Sampled(p, 300);
    ASSERT_GT(sampled.correlation, 0.01);
    const RoutedTokens tokens = {.sequences = static_cast<double>(p.sequences),
                                 .of_sequence = static_cast<double>(p.tokens)};
    const ExpertLoad load =
        UniformRouting(p.top_k, p.experts, p.ranks, sampled.correlation).MostLoaded(tokens);
    EXPECT_NEAR(load.rows, sampled.most.rows, 0.08 * sampled.most.rows)
        << p.tokens << " tokens, correlation " << sampled.correlation;
    EXPECT_NEAR(load.experts, sampled.most.experts, 0.08 * sampled.most.experts)
        << p.tokens << " tokens, correlation " << sampled.correlation;
  }
}

// Counts of single prompts of random tokens in the layers of OLMoE (64 experts, top-8) with random
// weights: means of six prompts of 32 or 112 tokens, or of four of 256 tokens. The predictions have
// nothing from these counts but the correlation.
TEST(UniformRouting, IsThatOfRecordedPrompts) {
  struct Recorded {
    double tokens, correlation;
    double used, fuller, most;  // experts; those of the fuller half; rows of a half / mean
  };
  double most = 0, predicted = 0;
  for (const Recorded& r : {Recorded{32, 0.171, 48.0, 25.2, 1.129},
                            {32, 0.374, 34.2, 18.8, 1.307},
                            {32, 0.417, 28.7, 15.7, 1.125},
                            {32, 0.548, 24.8, 14.3, 1.169},
                            {112, 0.130, 62.3, 31.7, 1.115},
                            {112, 0.416, 42.5, 22.5, 1.241},
                            {112, 0.541, 31.0, 18.0, 1.233},
                            {112, 0.623, 26.5, 14.3, 1.169},
                            {256, 0.619, 27.5, 15.0, 1.287},
                            {256, 0.710, 22.0, 12.5, 1.147}}) {
    const RoutedTokens tokens = {.sequences = 1, .of_sequence = r.tokens};
    const ExpertLoad all = UniformRouting(8, 64, 1, r.correlation).Mean(tokens);
    const ExpertLoad fuller = UniformRouting(8, 64, 2, r.correlation).MostLoaded(tokens);
    EXPECT_NEAR(all.experts, r.used, 0.15 * r.used) << r.tokens << ", " << r.correlation;
    EXPECT_NEAR(fuller.experts, r.fuller, 0.15 * r.fuller) << r.tokens << ", " << r.correlation;
    most += r.most;
    predicted += fuller.rows / (r.tokens * 8 / 2);
  }
  EXPECT_NEAR(predicted / most, 1, 0.03);  // of few prompts, so the rows of single layers vary
}

TEST(UniformRouting, TokensOfDecodeAreNotCorrelated) {
  const UniformRouting independent(8, 64, 2), correlated(8, 64, 2, 0.3);
  EXPECT_DOUBLE_EQ(correlated.MostLoaded(40).rows, independent.MostLoaded(40).rows);
  EXPECT_DOUBLE_EQ(correlated.MostLoaded(40).experts, independent.MostLoaded(40).experts);
  // A step with a prompt and decode rows.
  const RoutedTokens mixed = {.singles = 10, .sequences = 1, .of_sequence = 30};
  EXPECT_DOUBLE_EQ(mixed.all(), 40);
  EXPECT_GT(correlated.MostLoaded(mixed).rows, independent.MostLoaded(40).rows);
  EXPECT_LT(correlated.Mean(mixed).experts, independent.Mean(40).experts);
  EXPECT_DOUBLE_EQ(correlated.Mean(mixed).rows, independent.Mean(40).rows);
}

TEST(UniformRouting, TheRowsOfExpertsHaveTheirMean) {
  for (const RoutedTokens& tokens :
       {RoutedTokens{.singles = 1}, RoutedTokens{.singles = 40}, RoutedTokens{.singles = 3000},
        RoutedTokens{.sequences = 1, .of_sequence = 100},
        RoutedTokens{.sequences = 8, .of_sequence = 64}})
    for (const double correlation : {0.0, 0.02, 0.5}) {
      const UniformRouting routing(8, 64, 1, correlation);
      const auto parts = routing.RowsOfExperts(tokens);
      EXPECT_TRUE(std::ranges::is_sorted(parts));
      EXPECT_GE(parts[0], 1);
      const ExpertLoad mean = routing.Mean(tokens);
      const double rows = std::accumulate(parts.begin(), parts.end(), 0.0) / parts.size();
      EXPECT_NEAR(rows, mean.rows / mean.experts, 0.03 * rows)
          << tokens.all() << " tokens, correlation " << correlation;
    }
  // Tokens that are nearly equal: experts have nearly all tokens or few of them.
  const auto parts =
      UniformRouting(8, 64, 1, 0.9).RowsOfExperts({.sequences = 1, .of_sequence = 100});
  EXPECT_GT(parts.back(), 98);
  EXPECT_LT(parts.front(), 10);
}

TEST(UniformRouting, TheCorrelationOfTokensIsCounted) {
  std::mt19937 random(5);
  constexpr int kTokens = 200, kLayers = 3, kTopK = 2, kExperts = 16;
  // The first layer is dense. In the second one experts are independent; in the third one half of
  // the tokens take the same two.
  std::vector<int32_t> chosen;
  for (int token = 0; token < kTokens; ++token) {
    const auto pair = [&] {
      const auto first = static_cast<int32_t>(random() % kExperts);
      const auto second = static_cast<int32_t>((first + 1 + random() % (kExperts - 1)) % kExperts);
      chosen.insert(chosen.end(), {first, second});
    };
    chosen.insert(chosen.end(), {-1, -1});
    pair();
    if (token % 2 == 0) {
      chosen.insert(chosen.end(), {3, 7});
    } else {
      pair();
    }
  }
  // A quarter of all pairs of tokens in the third layer are equal.
  EXPECT_NEAR(TokenCorrelation(chosen, kLayers, kTopK, kExperts), (0 + 0.25) / 2, 0.02);
  EXPECT_EQ(TokenCorrelation(std::span(chosen).first(kLayers * kTopK), kLayers, kTopK, kExperts),
            0);
  const std::vector<int32_t> equal(40, 5);
  EXPECT_DOUBLE_EQ(TokenCorrelation(equal, 1, 1, 8), 0.99);
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
