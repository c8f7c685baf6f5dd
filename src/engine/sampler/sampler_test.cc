#include "engine/sampler/sampler.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/sampler/logprobs.h"
#include "engine/sampler/random.h"
#include "engine/sampler/softmax.h"

namespace switchyard {
namespace {

using ::testing::ElementsAre;
using Ids = std::vector<int32_t>;
constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> Noise(size_t n, uint64_t seed, float scale = 5.0f) {
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i)
    values[i] = static_cast<float>(UniformDraw(seed, i) * 2 - 1) * scale;
  return values;
}

std::vector<double> Softmax(const std::vector<float>& logits, double temperature) {
  std::vector<double> p(logits.size());
  const double max = *std::max_element(logits.begin(), logits.end());
  for (size_t i = 0; i < p.size(); ++i) p[i] = std::exp((logits[i] - max) / temperature);
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= sum;
  return p;
}

// Reference of the filters: follows their definition, with a full sort.
std::vector<double> Filtered(std::vector<double> p, int top_k, double top_p, double min_p) {
  Ids order(p.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return p[a] > p[b]; });
  const double largest = p[order[0]];
  double before = 0;
  for (size_t rank = 0; rank < order.size(); ++rank) {
    double& x = p[order[rank]];
    const double mass = x;
    if ((top_k > 0 && rank >= static_cast<size_t>(top_k)) || before > top_p || x < min_p * largest)
      x = 0;
    before += mass;
  }
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= sum;
  return p;
}

std::vector<int> CountDraws(const std::vector<float>& logits, const SamplingParams& params,
                            int draws) {
  Sampler sampler(logits.size(), {});
  std::vector<int> counts(logits.size(), 0);
  for (int i = 0; i < draws; ++i) ++counts[*sampler.Draw(logits, params, {}, {}, i)];
  return counts;
}

// Expects Pearson's statistic per degree of freedom near 1, and no token of probability 0.
void ExpectDistribution(const std::vector<int>& counts, const std::vector<double>& p, int draws) {
  double statistic = 0;
  int cells = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    if (p[i] == 0) {
      EXPECT_EQ(counts[i], 0) << "token " << i;
    } else {
      const double expected = p[i] * draws;
      statistic += (counts[i] - expected) * (counts[i] - expected) / expected;
      ++cells;
    }
  }
  EXPECT_LT(statistic / std::max(1, cells - 1), 2.0);
}

TEST(Sampler, GreedyTakesTheLargestAndTheLowestIdAmongEquals) {
  Sampler sampler(70, {});
  std::vector<float> logits(70, 1.0f);
  const SamplingParams greedy{.temperature = 0};
  EXPECT_EQ(sampler.Draw(logits, greedy, {}, {}, 0), 0);
  logits[69] = logits[33] = 2.0f;
  EXPECT_EQ(sampler.Draw(logits, greedy, {}, {}, 0), 33);
}

TEST(Sampler, DrawsFollowTheFilteredDistribution) {
  constexpr int kDraws = 40000;
  const std::vector<float> logits = Noise(40, 7, 2.0f);
  struct Case {
    float temperature, top_p, min_p;
    int top_k;
  };
  for (const Case& c : {Case{1, 1, 0, -1}, Case{0.7f, 1, 0, -1}, Case{2, 1, 0, 5},
                        Case{1, 0.8f, 0, -1}, Case{1, 1, 0.2f, -1}, Case{1.3f, 0.9f, 0.1f, 20},
                        Case{1, 1e-6f, 0, -1}, Case{1, 1, 1, -1}}) {
    SCOPED_TRACE(fmt::format("t {} p {} min {} k {}", c.temperature, c.top_p, c.min_p, c.top_k));
    const SamplingParams params{
        .temperature = c.temperature, .top_p = c.top_p, .top_k = c.top_k, .min_p = c.min_p};
    ExpectDistribution(CountDraws(logits, params, kDraws),
                       Filtered(Softmax(logits, c.temperature), c.top_k, c.top_p, c.min_p), kDraws);
  }
}

TEST(Sampler, TopKOfOneIsGreedy) {
  const std::vector<float> logits = Noise(1000, 3);
  Sampler sampler(1000, {});
  for (uint64_t seed = 0; seed < 20; ++seed)
    EXPECT_EQ(sampler.Draw(logits, {.top_k = 1}, {}, {}, seed), ArgMax(logits));
}

TEST(Sampler, SameSeedAndLengthDrawTheSame) {
  const std::vector<float> logits = Noise(500, 9);
  Sampler one(500, {}), other(500, {});
  const Ids output = {1, 2, 3};
  Ids drawn;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    drawn.push_back(*one.Draw(logits, {}, {}, output, seed));
    other.Draw(Noise(500, seed), {}, {}, {}, seed);  // an unrelated draw in between
    EXPECT_EQ(other.Draw(logits, {}, {}, output, seed), drawn.back());
  }
  std::sort(drawn.begin(), drawn.end());
  EXPECT_GT(std::unique(drawn.begin(), drawn.end()) - drawn.begin(), 20);  // seeds differ
}

TEST(Sampler, PenaltiesLookAtWhatTheyName) {
  Sampler sampler(8, {});
  const std::vector<float> logits = {1.0f, 0.9f, 0.8f, -1, -1, -1, -1, -1};
  SamplingParams params{.temperature = 0};
  const Ids prompt = {0}, output = {1, 1};
  params.frequency_penalty = 0.12f;
  EXPECT_EQ(sampler.Draw(logits, params, prompt, output, 0), 0);  // the prompt does not count
  EXPECT_EQ(sampler.Draw(logits, params, {}, Ids{0, 0, 1}, 0), 2);
  params.frequency_penalty = 0;
  params.presence_penalty = 0.15f;
  EXPECT_EQ(sampler.Draw(logits, params, {}, Ids{0, 0, 0}, 0), 1);
  params.presence_penalty = 0;
  params.repetition_penalty = 1.2f;
  EXPECT_EQ(sampler.Draw(logits, params, prompt, {}, 0), 1);  // the prompt counts
  EXPECT_EQ(sampler.Draw(logits, params, prompt, output, 0), 0);
  const std::vector<float> negative = {-1.0f, -1.1f, -1.3f, -9, -9, -9, -9, -9};
  EXPECT_EQ(sampler.Draw(negative, params, prompt, {}, 0), 1);  // −1 · 1.2 is below −1.1
}

TEST(Sampler, BiasAndMinNewTokensDecideWhatMayCome) {
  Sampler sampler(4, {3});
  const std::vector<float> logits = {0, 1, 2, 3};
  SamplingParams params{.min_new_tokens = 2, .temperature = 0, .stop_token_ids = {2}};
  EXPECT_EQ(sampler.Draw(logits, params, {}, Ids{0}, 0), 1);
  EXPECT_EQ(sampler.Draw(logits, params, {}, Ids{0, 0}, 0), 3);
  params.logit_bias = {{0, 9.0f}};
  EXPECT_EQ(sampler.Draw(logits, params, {}, Ids{0}, 0), 0);
  params.stop_token_ids = {0, 1, 2};
  for (const float temperature : {0.0f, 1.0f}) {
    params.temperature = temperature;
    EXPECT_EQ(sampler.Draw(logits, params, {}, {}, 0), std::nullopt);
  }
}

TEST(Sampler, AllowedIdsAndBadWordsForbid) {
  Sampler sampler(6, {5});
  const std::vector<float> logits = {0, 1, 2, 3, 4, 5};
  SamplingParams params{.temperature = 0, .allowed_token_ids = {1, 3, 1}};
  EXPECT_EQ(sampler.Draw(logits, params, {}, {}, 0), 3);
  params.bad_words = {{3}};
  EXPECT_EQ(sampler.Draw(logits, params, {}, {}, 0), 1);
  params = {.temperature = 0, .bad_words = {{4, 5}, {5, 4, 5}}};
  EXPECT_EQ(sampler.Draw(logits, params, {}, {}, 0), 5);
  EXPECT_EQ(sampler.Draw(logits, params, {}, Ids{4}, 0), 4);
  EXPECT_EQ(sampler.Draw(logits, params, Ids{4}, {}, 0), 5);  // the prompt does not count
  params.bad_words.push_back({4});
  EXPECT_EQ(sampler.Draw(logits, params, {}, Ids{5, 4}, 0), 3);
  params.allowed_token_ids = {4};
  EXPECT_EQ(sampler.Draw(logits, params, {}, {}, 0), std::nullopt);
}

TEST(NucleusFilter, CutsWhereAFullSortCuts) {
  constexpr int kVocab = 5000;
  NucleusFilter filter(kVocab);
  for (uint64_t seed = 0; seed < 60; ++seed) {
    std::vector<float> logits = Noise(kVocab, seed, seed % 3 == 0 ? 0.01f : 8.0f);
    if (seed % 2)  // many equal weights
      for (float& x : logits) x = std::round(x);
    std::vector<float> weights(kVocab);
    const double total = ExpWeights(logits, Max(logits), 1.0f, weights.data());
    const auto top_k = static_cast<int32_t>(UniformDraw(seed, 1) * 300) - 1;
    const auto top_p = static_cast<float>(UniformDraw(seed, 2));
    const NucleusFilter::Params params{.top_k = top_k > 0 ? top_k : -1, .top_p = top_p};
    const Cutoff cutoff = filter.Cut(weights, total, params);

    Ids order(kVocab);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return weights[a] > weights[b]; });
    double before = 0;
    for (int rank = 0; rank < kVocab; ++rank) {
      const int32_t token = order[rank];
      const bool keep = (top_k <= 0 || rank < top_k) && before <= top_p * total;
      // If the mass equals the limit to within rounding, either result is correct.
      if (std::abs(before - top_p * total) > 1e-6 * total) {
        ASSERT_EQ(cutoff.Keeps(weights[token], token), keep) << "seed " << seed << " rank " << rank;
      }
      before += weights[token];
    }
  }
}

TEST(Softmax, ExpIsAccurateAndForbiddenTokensWeighNothing) {
  std::vector<float> values;
  for (int i = 0; i <= 8400; ++i) values.push_back(static_cast<float>(-i) * 0.01f);
  values.push_back(-kInf);
  std::vector<float> weights(values.size());
  ExpWeights(values, 0.0f, 1.0f, weights.data());
  for (size_t i = 0; i + 1 < values.size(); ++i)
    EXPECT_NEAR(weights[i] / std::exp(static_cast<double>(values[i])), 1.0, 2e-7) << values[i];
  EXPECT_EQ(weights.back(), 0.0f);
  EXPECT_EQ(weights[0], 1.0f);
}

// A draw with a mask equals a draw from the allowed logits alone.
TEST(Sampler, MasksLeaveTheAllowedTokensOnly) {
  for (const size_t vocab : {1u, 31u, 64u, 777u}) {
    Sampler sampler(vocab, {});
    for (uint64_t seed = 0; seed < 40; ++seed) {
      const std::vector<float> logits = Noise(vocab, seed);
      std::vector<uint32_t> mask((vocab + 31) / 32, 0);
      std::vector<float> allowed;
      Ids ids;
      for (size_t id = 0; id < vocab; ++id) {
        if (UniformDraw(seed + 1000, id) > 0.3 && !(id + 1 == vocab && ids.empty())) continue;
        mask[id / 32] |= uint32_t{1} << (id % 32);
        allowed.push_back(logits[id]);
        ids.push_back(static_cast<int32_t>(id));
      }
      SamplingParams params;
      params.temperature = seed % 4 == 0 ? 0.0f : 0.8f;
      if (seed % 4 == 1) params.top_k = 3;
      if (seed % 4 == 2) params.top_p = 0.7f;
      if (seed % 4 == 3) params.min_p = 0.1f;
      Sampler small(allowed.size(), {});
      EXPECT_EQ(sampler.Draw(logits, params, {}, {}, seed, mask),
                ids[*small.Draw(allowed, params, {}, {}, seed)]);
    }
  }
}

TEST(Sampler, MasksApplyAfterPenalties) {
  const std::vector<float> logits = {5, 4, 3, 2};
  Sampler sampler(4, {});
  SamplingParams params{.temperature = 0};
  params.logit_bias = {{1, -100.0f}};
  EXPECT_EQ(sampler.Draw(logits, params, {}, {}, 0, std::vector<uint32_t>{0b1110}), 2);
  params.allowed_token_ids = {0};
  EXPECT_EQ(sampler.Draw(logits, params, {}, {}, 0, std::vector<uint32_t>{0b1110}), std::nullopt);
  EXPECT_EQ(sampler.Draw(logits, {}, {}, {}, 0, std::vector<uint32_t>{0}), std::nullopt);
}

TEST(Softmax, FindsWhatIsNotFiniteAnywhere) {
  for (const size_t n : {1, 63, 64, 65, 200}) {
    std::vector<float> values(n, 1.0f);
    EXPECT_TRUE(AllFinite(values));
    for (const float bad : {kInf, -kInf, std::nanf("")}) {
      values[n - 1] = bad;
      EXPECT_FALSE(AllFinite(values));
      values[n - 1] = 1.0f;
      values[0] = bad;
      EXPECT_FALSE(AllFinite(values));
      values[0] = 1.0f;
    }
  }
}

TEST(Logprobs, AreTheLogSoftmaxOfRawLogits) {
  const std::vector<float> logits = Noise(777, 5);
  const std::vector<double> p = Softmax(logits, 1.0);
  const LogprobParams params{.enabled = true, .top = 5, .token_ids = {776, 0}};
  const PositionLogprobs got = LogprobsAt(logits, 123, params);
  EXPECT_EQ(got.token, 123);
  EXPECT_NEAR(got.logprob, std::log(p[123]), 2e-6);
  ASSERT_EQ(got.asked.size(), 2u);
  EXPECT_EQ(got.asked[0].token, 776);
  EXPECT_NEAR(got.asked[1].logprob, std::log(p[0]), 2e-6);
  ASSERT_EQ(got.top.size(), 5u);
  EXPECT_EQ(got.top[0].token, ArgMax(logits));
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_NEAR(got.top[i].logprob, std::log(p[got.top[i].token]), 2e-6);
    EXPECT_EQ(std::count_if(p.begin(), p.end(), [&](double x) { return x > p[got.top[i].token]; }),
              static_cast<int64_t>(i));
  }
}

TEST(Logprobs, RankCountsBetterTokens) {
  const std::vector<float> logits = {1, 3, 3, 2, 4, 0};
  EXPECT_EQ(LogprobsAt(logits, 4, {.rank = true}).rank, 1);
  EXPECT_EQ(LogprobsAt(logits, 2, {.rank = true}).rank, 2);
  EXPECT_EQ(LogprobsAt(logits, 3, {.rank = true}).rank, 4);
  EXPECT_EQ(LogprobsAt(logits, 3, {}).rank, 0);
}

TEST(Logprobs, EqualAlternativesComeInOrderOfId) {
  const std::vector<float> logits = {1, 3, 3, 2, 3, 0};
  Ids ids;
  for (const TokenLogprob& entry : LogprobsAt(logits, 0, {.top = 4}).top)
    ids.push_back(entry.token);
  EXPECT_THAT(ids, ElementsAre(1, 2, 4, 3));
}

TEST(Random, MatchesThePublishedVector) {
  // Philox4x32-10 of counter 0 and key 0 begins 6627e8d5 e169c58d (Random123's kat_vectors).
  EXPECT_EQ(UniformDraw(0, 0), static_cast<double>(0xe169c58d6627e8d5u >> 11) * 0x1p-53);
}

}  // namespace
}  // namespace switchyard
