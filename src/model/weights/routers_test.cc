#include "model/weights/routers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "core/error.h"

namespace switchyard {
namespace {

ModelConfig ConfigOf(int experts, int top_k) {
  ModelConfig config;
  config.architecture = "Tested";
  config.hidden = 4;
  config.vocab_size = 1 << 16;
  config.moe.emplace();
  config.moe->router = {.num_experts = experts, .top_k = top_k, .num_groups = 2, .topk_groups = 1};
  config.layers = {LayerConfig{}, LayerConfig{.moe = true}, LayerConfig{.moe = true}};
  return config;
}

// The routers of SkewRouting in a model whose routers have random weights.
ModelWeights Drawn(const ModelConfig& config) {
  ModelWeights weights;
  weights.layers.resize(config.layers.size());
  static const std::vector<float> kWeights(1024, 0.5f);
  static const std::vector<float> kCorrection(256, 0.25f);
  for (size_t i = 0; i < config.layers.size(); ++i) {
    if (!config.layers[i].moe) continue;
    RouterWeights& router = weights.layers[i].moe.router;
    router.w = {.format = WeightFormat::kF32,
                .data = kWeights.data(),
                .stored_k = config.hidden,
                .n = config.moe->router.num_experts,
                .k = config.hidden};
    router.correction_bias = kCorrection.data();
  }
  FinishRouters(config, &weights);
  return weights;
}

// The fraction of tokens that choose each expert.
std::vector<double> Shares(const RouterWeights& router, int experts, int top_k) {
  std::vector<double> shares(experts);
  for (int64_t token = 0; token < router.token_rows; ++token) {
    const int32_t* row = router.token_experts + token * top_k;
    EXPECT_EQ(std::set<int32_t>(row, row + top_k).size(), static_cast<size_t>(top_k));
    for (int i = 0; i < top_k; ++i) shares.at(row[i]) += 1 / static_cast<double>(router.token_rows);
  }
  return shares;
}

TEST(SkewRoutingTest, DrawsExpertsByPopularityForEachLayer) {
  constexpr int kExperts = 8;
  for (const double exponent : {0.0, 1.0, 2.0}) {
    // One expert for each token: exactly the Zipf distribution.
    ModelConfig config = ConfigOf(kExperts, 1);
    SkewRouting(exponent, &config);
    EXPECT_FALSE(config.layers[0].by_token);
    const ModelWeights weights = Drawn(config);
    double all = 0;
    for (int e = 0; e < kExperts; ++e) all += std::pow(e + 1, -exponent);
    for (const size_t layer : {1, 2}) {
      EXPECT_TRUE(config.layers[layer].by_token);
      const RouterWeights& router = weights.layers[layer].moe.router;
      EXPECT_EQ(router.token_rows, kSkewedTokens);
      EXPECT_EQ(router.correction_bias, nullptr);
      const std::vector<double> shares = Shares(router, kExperts, 1);
      for (int e = 0; e < kExperts; ++e) {
        const double want = std::pow(e + 1, -exponent) / all;
        // Five deviations of a binomial variable.
        EXPECT_NEAR(shares[e], want, 5 * std::sqrt(want * (1 - want) / kSkewedTokens))
            << "exponent " << exponent << " expert " << e;
      }
    }
    const auto* a = weights.layers[1].moe.router.token_experts;
    const auto* b = weights.layers[2].moe.router.token_experts;
    EXPECT_FALSE(std::equal(a, a + kSkewedTokens, b));  // layers are independent
  }
  ModelConfig several = ConfigOf(kExperts, 3);
  SkewRouting(1, &several);
  const std::vector<double> shares = Shares(Drawn(several).layers[1].moe.router, kExperts, 3);
  EXPECT_TRUE(std::ranges::is_sorted(shares, std::ranges::greater()));
  EXPECT_GT(shares[0], 2 * shares[7]);
}

TEST(SkewRoutingTest, SmallVocabulariesHaveOneRowForEachToken) {
  ModelConfig config = ConfigOf(4, 4);  // all experts
  config.vocab_size = 10;
  SkewRouting(1, &config);
  const ModelWeights weights = Drawn(config);
  EXPECT_EQ(weights.layers[2].moe.router.token_rows, 10);
  for (const double share : Shares(weights.layers[2].moe.router, 4, 4)) EXPECT_NEAR(share, 1, 1e-9);
}

TEST(SkewRoutingTest, RefusesModelsWhoseRoutersDiffer) {
  const auto refusal = [](ModelConfig config) -> std::string {
    try {
      SkewRouting(1, &config);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(refusal(ModelConfig()),
              ::testing::HasSubstr("--expert-skew 1: the model has no exp"));
  ModelConfig zero = ConfigOf(4, 1);
  zero.moe->router.zero_experts = 2;
  EXPECT_THAT(refusal(zero), ::testing::HasSubstr("experts without computation"));
  ModelConfig latent = ConfigOf(4, 1);
  latent.moe->latent = 2;
  EXPECT_THAT(refusal(latent), ::testing::HasSubstr("narrower rows"));
}

}  // namespace
}  // namespace switchyard
