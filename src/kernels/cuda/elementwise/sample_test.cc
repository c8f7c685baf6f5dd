#include "kernels/cuda/elementwise/sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "core/cuda/runtime.h"
#include "kernels/best_tokens.h"

namespace switchyard::cuda {
namespace {

using kernels::BestToken;
using kernels::RowSampling;

// Samples as engine/sampler does: all filters apply to the probabilities of the whole row.
int32_t Reference(const std::vector<float>& logits, const RowSampling& row_sampling) {
  for (const float x : logits)
    if (!std::isfinite(x)) return -1;
  const auto best = std::ranges::max_element(logits) - logits.begin();
  if (row_sampling.temperature == 0.0f) return static_cast<int32_t>(best);
  std::vector<double> weights;
  for (const float x : logits)
    weights.push_back(std::exp((x - logits[best]) * (1.0f / row_sampling.temperature)));
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int a, int b) { return weights[a] > weights[b]; });
  std::vector<bool> keeps(logits.size(), false);
  double before = 0.0, kept = 0.0;
  for (size_t i = 0; i < order.size(); ++i) {
    const double w = weights[order[i]];
    if (row_sampling.top_k > 0 && static_cast<int32_t>(i) >= row_sampling.top_k) break;
    if (row_sampling.top_p < 1.0f && before > row_sampling.top_p * total) break;
    if (w < row_sampling.min_p) break;
    keeps[order[i]] = true;
    kept += w;
    before += w;
  }
  double below = 0.0;
  int32_t last = -1;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (!keeps[i]) continue;
    below += weights[i];
    last = static_cast<int32_t>(i);
    if (below > row_sampling.uniform * kept) break;
  }
  return last;
}

// Masks of some rows, as kernels::SampleParams has them.
struct Masks {
  std::vector<int32_t> rows;    // [rows]
  std::vector<uint32_t> words;  // [masks, (vocab + 31) / 32]
};

std::vector<int32_t> OnDevice(const std::vector<std::vector<float>>& rows,
                              const std::vector<RowSampling>& sampling, const Masks& masks = {},
                              const std::vector<int32_t>& ids = {}) {
  const auto count = static_cast<int64_t>(rows.size());
  const auto vocab = static_cast<int64_t>(rows[0].size());
  DeviceMemory logits(count * vocab * sizeof(float)), weights(count * vocab * sizeof(float));
  DeviceMemory device_sampling(count * sizeof(RowSampling)), tokens(count * sizeof(int32_t));
  for (int64_t r = 0; r < count; ++r)
    CopyToDevice(logits.as<float>() + r * vocab, rows[r].data(), vocab * sizeof(float), "logits");
  CopyToDevice(device_sampling.data(), sampling.data(), device_sampling.bytes(), "sampling");
  const bool masked = !masks.words.empty();
  DeviceMemory words(masks.words.size() * sizeof(uint32_t) + 4);
  DeviceMemory mask_rows(count * sizeof(int32_t));
  if (masked) {
    CopyToDevice(words.data(), masks.words.data(), masks.words.size() * sizeof(uint32_t), "masks");
    CopyToDevice(mask_rows.data(), masks.rows.data(), mask_rows.bytes(), "rows of masks");
  }
  DeviceMemory device_ids(ids.size() * sizeof(int32_t) + 4);
  if (!ids.empty())
    CopyToDevice(device_ids.data(), ids.data(), ids.size() * sizeof(int32_t), "ids");
  Check(SampleTokens({.logits = logits.as<float>(),
                      .sampling = device_sampling.as<RowSampling>(),
                      .rows = count,
                      .vocab = vocab,
                      .masks = masked ? words.as<uint32_t>() : nullptr,
                      .mask_rows = masked ? mask_rows.as<int32_t>() : nullptr,
                      .weights = weights.as<float>(),
                      .ids = ids.empty() ? nullptr : device_ids.as<int32_t>(),
                      .tokens = tokens.as<int32_t>()},
                     nullptr),
        "sample");
  std::vector<int32_t> result(count);
  Check(cudaMemcpy(result.data(), tokens.data(), tokens.bytes(), cudaMemcpyDeviceToHost), "tokens");
  return result;
}

class SampleTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (DeviceCount() == 0) GTEST_SKIP() << "no GPU";
  }
  std::vector<float> Row(int64_t vocab, float spread) {
    std::normal_distribution<float> normal(0.0f, spread);
    std::vector<float> row(vocab);
    for (float& x : row) x = normal(random_);
    return row;
  }
  std::mt19937 random_{7};
};

TEST_F(SampleTest, SamplesAsTheSamplerDoes) {
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  for (const int64_t vocab : {1, 2, 61, 1024, 5003, 151936}) {
    std::vector<std::vector<float>> rows;
    std::vector<RowSampling> sampling;
    for (int i = 0; i < 24; ++i) {
      rows.push_back(Row(vocab, i % 3 == 0 ? 0.1f : 3.0f));
      RowSampling row_sampling{.temperature = i % 6 == 0 ? 0.0f : 0.7f,
                               .uniform = uniform(random_)};
      if (i % 4 == 1) row_sampling.top_k = 1 + i;
      if (i % 4 == 2) row_sampling.top_p = 0.8f;
      if (i % 4 == 3) row_sampling.min_p = 0.05f;
      if (i % 8 == 5) row_sampling.top_p = 0.3f;
      sampling.push_back(row_sampling);
    }
    const std::vector<int32_t> tokens = OnDevice(rows, sampling);
    int differ = 0;  // different rounding of sums may change a sample at a boundary
    for (size_t i = 0; i < rows.size(); ++i) differ += tokens[i] != Reference(rows[i], sampling[i]);
    EXPECT_LE(differ, vocab > 10000 ? 1 : 0) << vocab;
  }
}

TEST_F(SampleTest, EqualLogitsFallToTheLowestIds) {
  const std::vector<float> row(100, 1.0f);
  const std::vector<RowSampling> sampling = {
      {},
      {.temperature = 1.0f, .top_k = 3, .uniform = 0.999},
      {.temperature = 1.0f, .top_p = 0.049f, .uniform = 0.999},
      {.temperature = 1.0f, .uniform = 0.0}};
  EXPECT_EQ(OnDevice({row, row, row, row}, sampling), (std::vector<int32_t>{0, 2, 4, 0}));
}

TEST_F(SampleTest, LogitsThatAreNotFiniteAreReported) {
  std::vector<float> nan(50, 0.0f), inf(50, 0.0f), fine(50, 0.0f);
  nan[49] = std::numeric_limits<float>::quiet_NaN();
  inf[3] = std::numeric_limits<float>::infinity();
  fine[7] = 2.0f;
  EXPECT_EQ(OnDevice({nan, inf, fine}, {{}, {.temperature = 1.0f}, {}}),
            (std::vector<int32_t>{-1, -1, 7}));
}

TEST_F(SampleTest, IdsReplaceTheIndicesOfLogits) {
  std::vector<float> bad(300, 0.0f);
  bad[299] = std::numeric_limits<float>::infinity();
  const std::vector<std::vector<float>> rows = {Row(300, 3.0f), Row(300, 0.1f), bad, Row(300, 1)};
  const std::vector<RowSampling> sampling = {
      {}, {.temperature = 1.0f, .uniform = 0.4}, {}, {.temperature = 0.7f, .top_k = 5}};
  std::vector<int32_t> ids(300), want = OnDevice(rows, sampling);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(1000 + 7 * i);
  for (int32_t& token : want)
    if (token >= 0) token = ids[token];
  EXPECT_EQ(OnDevice(rows, sampling, {}, ids), want);
}

// A row with a mask gives the token of a row that has only the allowed logits.
TEST_F(SampleTest, MasksLeaveTheAllowedTokensOnly) {
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  for (const int64_t vocab : {1, 31, 32, 33, 1000, 151936}) {
    const int64_t width = (vocab + 31) / 32;
    std::vector<std::vector<float>> rows, compact;
    std::vector<std::vector<int32_t>> allowed;
    std::vector<RowSampling> sampling;
    Masks masks;
    for (int i = 0; i < 24; ++i) {
      rows.push_back(Row(vocab, 3.0f));
      RowSampling row_sampling{.temperature = i % 6 == 0 ? 0.0f : 0.9f,
                               .uniform = uniform(random_)};
      if (i % 4 == 1) row_sampling.top_k = 1 + i;
      if (i % 4 == 2) row_sampling.top_p = 0.8f;
      if (i % 4 == 3) row_sampling.min_p = 0.05f;
      sampling.push_back(row_sampling);
      allowed.emplace_back();
      compact.emplace_back();
      masks.rows.push_back(i % 3 == 0 ? -1 : static_cast<int32_t>(masks.words.size() / width));
      const size_t first = masks.words.size();
      if (masks.rows.back() >= 0) masks.words.resize(first + width, 0);
      const double share = i % 2 == 0 ? 0.5 : 0.01;
      for (int32_t id = 0; id < vocab; ++id) {
        const bool last_chance = id + 1 == vocab && allowed.back().empty();
        if (masks.rows.back() >= 0 && !last_chance && uniform(random_) > share) continue;
        if (masks.rows.back() >= 0) masks.words[first + id / 32] |= uint32_t{1} << (id % 32);
        allowed.back().push_back(id);
        compact.back().push_back(rows.back()[id]);
      }
    }
    const std::vector<int32_t> tokens = OnDevice(rows, sampling, masks);
    int differ = 0;  // different rounding of sums may change a sample at a boundary
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_TRUE(std::ranges::binary_search(allowed[i], tokens[i])) << vocab << " " << i;
      differ += tokens[i] != allowed[i][Reference(compact[i], sampling[i])];
    }
    EXPECT_LE(differ, vocab > 10000 ? 1 : 0) << vocab;
  }
}

TEST_F(SampleTest, ForbiddenLogitsThatAreNotFiniteAreReportedToo) {
  std::vector<float> row(40, 0.0f);
  row[39] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(OnDevice({row}, {{}}, {.rows = {0}, .words = {1, 0}}), (std::vector<int32_t>{-1}));
}

TEST_F(SampleTest, TokensDoNotDependOnOtherRows) {
  const auto row = Row(32000, 2.0f);
  const RowSampling row_sampling{.temperature = 1.3f, .top_p = 0.9f, .uniform = 0.37};
  const std::vector<int32_t> alone = OnDevice({row}, {row_sampling});
  EXPECT_EQ(OnDevice({row, row, row}, {row_sampling, row_sampling, row_sampling}),
            std::vector<int32_t>(3, alone[0]));
}

// The best tokens of some rows, with the sums of their exponentials.
struct BestRows {
  std::vector<double> exp_sums;  // [rows]
  std::vector<BestToken> best;   // [rows, count]
};

BestRows BestOnDevice(const std::vector<std::vector<float>>& rows, int32_t count,
                      const std::vector<int32_t>& ids = {}) {
  const auto rows_count = static_cast<int64_t>(rows.size());
  const auto vocab = static_cast<int64_t>(rows[0].size());
  DeviceMemory logits(rows_count * vocab * sizeof(float)), exp_sums(rows_count * sizeof(double));
  DeviceMemory best(rows_count * count * sizeof(BestToken));
  DeviceMemory device_ids(ids.size() * sizeof(int32_t) + 4);
  for (int64_t r = 0; r < rows_count; ++r)
    CopyToDevice(logits.as<float>() + r * vocab, rows[r].data(), vocab * sizeof(float), "logits");
  if (!ids.empty())
    CopyToDevice(device_ids.data(), ids.data(), ids.size() * sizeof(int32_t), "ids");
  Check(SelectBestTokens({.logits = logits.as<float>(),
                          .rows = rows_count,
                          .vocab = vocab,
                          .count = count,
                          .ids = ids.empty() ? nullptr : device_ids.as<int32_t>(),
                          .exp_sums = exp_sums.as<double>(),
                          .best = best.as<BestToken>()},
                         nullptr),
        "best tokens");
  BestRows result{std::vector<double>(rows_count), std::vector<BestToken>(rows_count * count)};
  Check(
      cudaMemcpy(result.exp_sums.data(), exp_sums.data(), exp_sums.bytes(), cudaMemcpyDeviceToHost),
      "sums");
  Check(cudaMemcpy(result.best.data(), best.data(), best.bytes(), cudaMemcpyDeviceToHost), "best");
  return result;
}

// All bits are those of the CPU: tokens, logits, and sums.
void ExpectBestOfCpu(const std::vector<std::vector<float>>& rows, int32_t count) {
  const BestRows found = BestOnDevice(rows, count);
  for (size_t r = 0; r < rows.size(); ++r) {
    std::vector<BestToken> want(count);
    const double exp_sum = kernels::SelectBestTokens(rows[r], want);
    EXPECT_EQ(std::bit_cast<uint64_t>(found.exp_sums[r]), std::bit_cast<uint64_t>(exp_sum))
        << rows[r].size() << " logits, row " << r << ": " << found.exp_sums[r] << " " << exp_sum;
    for (int32_t i = 0; i < count; ++i) {
      const BestToken& token = found.best[r * count + i];
      EXPECT_TRUE(token.token == want[i].token &&
                  std::bit_cast<uint32_t>(token.logit) == std::bit_cast<uint32_t>(want[i].logit))
          << rows[r].size() << " logits, row " << r << ", place " << i << ": " << token.token << " "
          << token.logit << ", want " << want[i].token << " " << want[i].logit;
    }
  }
}

// Sizes around the ends of columns of the kernel, and of blocks and chunks of the sum. With 64
// chunks or more, the sum takes two rounds.
TEST_F(SampleTest, BestTokensHaveTheBitsOfTheCpu) {
  for (const int64_t vocab :
       {1,    2,    15,   17,   63,    64,    65,     1023,   1024,   1025,
        4032, 4095, 4096, 4097, 32000, 61000, 151936, 262143, 262144, 300001}) {
    std::vector<std::vector<float>> rows = {Row(vocab, 0.1f), Row(vocab, 3), Row(vocab, 60)};
    std::vector<float>& column = rows.emplace_back(Row(vocab, 1));  // the best are in one column
    for (int64_t i = std::min<int64_t>(37, vocab - 1); i < vocab; i += 1024) column[i] += 20;
    for (const int32_t count : {1, 2, 5, 16}) ExpectBestOfCpu(rows, count);
  }
}

TEST_F(SampleTest, EqualBestTokensAreInTheOrderOfIds) {
  for (const int64_t vocab : {3, 40, 5000, 151936}) {
    std::vector<std::vector<float>> rows = {std::vector<float>(vocab, -2.5f)};
    // Zeros of both signs are equal.
    for (const auto& values : {std::vector<float>{-0.0f, 0.0f}, {-1.0f, 0.0f, -0.0f}, {-4, 2, 7}}) {
      std::vector<float>& row = rows.emplace_back(vocab);
      for (float& x : row) x = values[random_() % values.size()];
    }
    for (const int32_t count : {1, 4, 16}) ExpectBestOfCpu(rows, count);
  }
}

TEST_F(SampleTest, BestTokensOfExtremeLogits) {
  const std::vector<float> values = {FLT_MAX, -FLT_MAX, FLT_MIN, -1e-40f, 1e-40f, 0.0f, -87.5f};
  std::vector<std::vector<float>> rows;
  for (int i = 0; i < 6; ++i) {
    std::vector<float>& row = rows.emplace_back(3000);
    for (float& x : row) x = values[(i % 2) + random_() % (values.size() - i % 2)];
  }
  ExpectBestOfCpu(rows, 16);
}

TEST_F(SampleTest, BestTokensOfRowsThatAreNotFiniteAreMissing) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<std::vector<float>> rows(5, Row(2000, 1));
  rows[1][1999] = std::numeric_limits<float>::quiet_NaN();
  rows[2][0] = kInfinity;
  rows[4][1024] = -kInfinity;
  const BestRows found = BestOnDevice(rows, 3);
  for (const int row : {0, 3}) {
    std::vector<BestToken> want(3);
    EXPECT_EQ(found.exp_sums[row], kernels::SelectBestTokens(rows[row], want));
    EXPECT_EQ(found.best[3 * row].token, want[0].token);
  }
  for (const int row : {1, 2, 4}) {
    EXPECT_EQ(found.exp_sums[row], 0);
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(found.best[3 * row + i].token, -1);
      EXPECT_EQ(found.best[3 * row + i].logit, -kInfinity);
    }
  }
}

TEST_F(SampleTest, IdsReplaceTheIndicesOfBestTokens) {
  const std::vector<std::vector<float>> rows = {Row(300, 3.0f), std::vector<float>(300, 1.0f)};
  std::vector<int32_t> ids(300);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(5000 - 7 * i);
  const BestRows plain = BestOnDevice(rows, 16), mapped = BestOnDevice(rows, 16, ids);
  EXPECT_EQ(mapped.exp_sums, plain.exp_sums);
  for (size_t i = 0; i < plain.best.size(); ++i) {
    EXPECT_EQ(mapped.best[i].token, ids[plain.best[i].token]);
    EXPECT_EQ(mapped.best[i].logit, plain.best[i].logit);
  }
}

TEST_F(SampleTest, BestTokensOutOfRangeAreRefused) {
  for (const int32_t count : {0, kernels::kMostBestTokens + 1})
    EXPECT_EQ(SelectBestTokens({.rows = 1, .vocab = 5, .count = count}, nullptr),
              cudaErrorInvalidValue);
  EXPECT_EQ(SelectBestTokens({.rows = 0, .vocab = 5, .count = 3}, nullptr), cudaSuccess);
}

}  // namespace
}  // namespace switchyard::cuda
