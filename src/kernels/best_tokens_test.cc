// Selection of the best tokens on CPUs, the reference of GPUs.
#include "kernels/best_tokens.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "core/test_random.h"

namespace switchyard::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Compares with a sort of the row, and with a sum in double.
void ExpectBest(const std::vector<float>& logits, int32_t count) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::ranges::greater(), [&](int32_t i) { return logits[i]; });
  const double max = logits[order[0]];
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - max);
  std::vector<BestToken> best(count);
  EXPECT_NEAR(SelectBestTokens(logits, best), sum, 1e-6 * sum);
  for (int32_t i = 0; i < count; ++i) {
    const bool exists = i < std::ssize(order);
    EXPECT_EQ(best[i].token, exists ? order[i] : -1) << i << " of " << logits.size();
    EXPECT_EQ(best[i].logit, exists ? logits[order[i]] : -kInfinity);
  }
}

TEST(BestTokensTest, AreTheFirstOnesOfASort) {
  TestRandom random(1);
  for (const int64_t vocab : {1, 2, 15, 64, 100, 5000})
    for (const int32_t count : {1, 2, 5, 16})
      for (const uint64_t distinct : {1, 3, 1000000}) {
        std::vector<float> logits(vocab);
        for (float& x : logits) x = static_cast<float>(random() % distinct) * 1e-5f - 3.0f;
        for (size_t i = 0; i < logits.size(); i += 7)
          if (i > 0) logits[i] = -kInfinity;  // forbidden tokens
        ExpectBest(logits, count);
      }
}

TEST(BestTokensTest, RowsWithoutAFiniteLogitHaveTheSumZero) {
  std::vector<BestToken> best(2);
  EXPECT_EQ(SelectBestTokens(std::vector<float>(70, -kInfinity), best), 0);
  EXPECT_EQ(best[1].token, 1);
}

}  // namespace
}  // namespace switchyard::kernels
