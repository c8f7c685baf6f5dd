#include "kernels/cuda/elementwise/sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "core/cuda/runtime.h"

namespace switchyard::cuda {
namespace {

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

}  // namespace
}  // namespace switchyard::cuda
