// Selection of keys by an index, and latent attention to the selected keys.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "core/test_effort.h"
#include "kernels/cache_rows.h"
#include "kernels/testing.h"

namespace switchyard::kernels {
namespace {

class SelectKeysTest : public IsaTest {};

std::vector<char> CacheOf(DType dtype, const std::vector<float>& rows, int64_t width) {
  const int64_t count = std::ssize(rows) / width, bytes = CacheRowBytes(dtype, width);
  std::vector<char> cache(count * bytes);
  for (int64_t i = 0; i < count; ++i)
    WriteCacheRow(dtype, rows.data() + i * width, width, cache.data() + i * bytes);
  return cache;
}

// Two sequences: `rows` last rows of `keys` keys, and a row of the other sequence.
struct Batch {
  int64_t heads, width, topk;
  int32_t page_size;
  DType dtype;
  int32_t rows, keys, other_keys;
  std::vector<int32_t> pages;
  std::vector<float> q, weights;
  std::vector<char> cache;
  std::vector<SequenceSpan> spans;
  std::vector<int32_t> selected;

  Batch(Random& random, DType type) : dtype(type) {
    heads = 1 + random.Below(9);
    width = 1 + random.Below(40);
    page_size = random.Pick({1, 4, 16});
    keys = static_cast<int32_t>(1 + random.Below(300));
    rows = static_cast<int32_t>(1 + random.Below(keys));
    other_keys = static_cast<int32_t>(1 + random.Below(300));
    topk = 1 + random.Below(150);
    const int64_t first = CeilDiv(keys, page_size), count = first + CeilDiv(other_keys, page_size);
    pages = random.Shuffled(static_cast<int32_t>(count));
    q = random.Normal((rows + 1) * heads * width);
    weights = random.Normal((rows + 1) * heads);
    cache = CacheOf(dtype, random.Normal(count * page_size * width), width);
    spans = {{.rows = rows, .kv_len = keys, .pages = pages.data()},
             {.row_begin = rows, .rows = 1, .kv_len = other_keys, .pages = pages.data() + first}};
    selected.assign((rows + 1) * topk, -1);
  }
  SelectKeysParams Params() {
    return {.q = q.data(),
            .ldq = heads * width,
            .weights = weights.data(),
            .cache = cache.data(),
            .kv_dtype = dtype,
            .heads = heads,
            .head_dim = width,
            .topk = topk,
            .page_size = page_size,
            .sequences = spans,
            .selected = selected.data()};
  }
  // The scores of a row's keys, and a bound of their rounding errors.
  std::vector<double> Scores(const SequenceSpan& span, int32_t row, double* error) const {
    std::vector<double> scores;
    std::vector<float> key(width);
    *error = 0;
    for (int32_t j = 0; j < span.kv_len - span.rows + row + 1; ++j) {
      ReadCacheRow(dtype, cache.data() + span.SlotOf(j, page_size) * CacheRowBytes(dtype, width),
                   width, key.data());
      double score = 0, bound = 0;
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t head = (span.row_begin + row) * heads + h;
        double product = 0;
        for (int64_t d = 0; d < width; ++d) product += double{q[head * width + d]} * key[d];
        score += weights[head] * std::max(0.0, product);
        bound += std::abs(weights[head]) * Norm(q.data() + head * width, width) *
                 Norm(key.data(), width);
      }
      scores.push_back(score);
      *error = std::max(*error, bound * static_cast<double>(width + heads) * kEpsilon);
    }
    return scores;
  }
};

TEST_P(SelectKeysTest, SelectsTheKeysWithTheHighestScores) {
  Random random(1);
  ThreadPool pool(2);
  for (int round = 0; round < FewerIfSanitized(15, 3); ++round) {
    Batch b(random,
            random.Pick({DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3, DType::kI8}));
    SelectKeys(b.Params(), pool);
    for (const SequenceSpan& span : b.spans) {
      for (int32_t row = 0; row < span.rows; ++row) {
        const int32_t* const got = b.selected.data() + (span.row_begin + row) * b.topk;
        double error = 0;
        const std::vector<double> scores = b.Scores(span, row, &error);
        if (std::ssize(scores) <= b.topk) {
          EXPECT_EQ(std::count(got, got + b.topk, -1), b.topk);
          continue;
        }
        std::vector<double> sorted = scores;
        std::ranges::sort(sorted, std::greater());
        int64_t found = 0;
        for (size_t j = 0; j < scores.size(); ++j) {
          // Slots are ascending by position.
          const bool is =
              found < b.topk && got[found] == span.SlotOf(static_cast<int64_t>(j), b.page_size);
          found += is;
          if (is) {
            ASSERT_GE(scores[j], sorted[b.topk - 1] - 2 * error);
          } else {
            ASSERT_LE(scores[j], sorted[b.topk - 1] + 2 * error);
          }
        }
        EXPECT_EQ(found, b.topk);
      }
    }
  }
}

TEST_P(SelectKeysTest, ChunksThreadsAndBranchesGiveTheSameKeys) {
  Random random(2);
  ThreadPool one(1), three(3);
  for (int round = 0; round < FewerIfSanitized(10, 3); ++round) {
    Batch b(random, random.Pick({DType::kF32, DType::kBF16}));
    SelectKeys(b.Params(), one);
    const std::vector<int32_t> want = b.selected;
    std::ranges::fill(b.selected, -1);
    SelectKeys(b.Params(), three);
    EXPECT_EQ(want, b.selected);
    std::ranges::fill(b.selected, -1);
    // Rows alone, with the last keys in a branch.
    const SequenceSpan all = b.spans[0];
    const int32_t begin = all.kv_len / 2;
    std::vector<int32_t> branch;
    for (int32_t j = begin; j < all.kv_len; ++j)
      branch.push_back(static_cast<int32_t>(all.SlotOf(j, b.page_size)));
    SelectKeysParams p = b.Params();
    for (int32_t row = 0; row < all.rows; ++row) {
      const SequenceSpan alone = {.row_begin = row,
                                  .rows = 1,
                                  .kv_len = all.kv_len - all.rows + row + 1,
                                  .pages = all.pages,
                                  .branch = branch.data(),
                                  .branch_begin = begin};
      p.sequences = {&alone, 1};
      SelectKeys(p, three);
    }
    p.sequences = {&b.spans[1], 1};
    SelectKeys(p, one);
    EXPECT_EQ(want, b.selected);
  }
}

// All scores are 0, and some are −0; a few are NaN.
TEST_P(SelectKeysTest, OfEqualScoresTheFirstPositionsAreSelectedAndNanIsTheLowest) {
  ThreadPool pool(2);
  constexpr int32_t kKeys = 300, kTopK = 290;
  std::vector<float> keys(kKeys, -1.0f);
  for (int32_t j = 0; j < kKeys; j += 3) keys[j] = 0.0f;
  for (const int32_t j : {0, 7, 200}) keys[j] = std::numeric_limits<float>::quiet_NaN();
  keys[299] = 1.0f;  // of the highest score with a positive weight
  std::vector<int32_t> pages(kKeys), selected(kTopK);
  std::iota(pages.begin(), pages.end(), 0);
  const SequenceSpan span = {.rows = 1, .kv_len = kKeys, .pages = pages.data()};
  const float q = 1.0f;
  for (const float weight : {1.0f, -1.0f}) {
    SelectKeys({.q = &q,
                .ldq = 1,
                .weights = &weight,
                .cache = keys.data(),
                .heads = 1,
                .head_dim = 1,
                .topk = kTopK,
                .sequences = {&span, 1},
                .selected = selected.data()},
               pool);
    std::vector<int32_t> want;
    const int32_t before = weight > 0 ? kTopK - 1 : kTopK;
    for (int32_t j = 0; std::ssize(want) < before; ++j)
      if (!std::isnan(keys[j])) want.push_back(j);
    if (weight > 0) want.push_back(299);
    EXPECT_EQ(selected, want) << weight;
  }
}

// Rows of sequences whose lengths are near topk. The last sequence has two rows, and one of the
// others has its last keys in a branch.
TEST(InheritKeysTest, RowsTakeTheKeysOfTheirParents) {
  Random random(7);
  ThreadPool pool(3);
  for (int round = 0; round < 20; ++round) {
    const auto topk = static_cast<int32_t>(1 + random.Below(70));
    const int32_t page_size = random.Pick({1, 4, 16});
    const auto rows = static_cast<int32_t>(2 + random.Below(12));
    const auto most_pages = static_cast<int32_t>(CeilDiv(topk + 4, page_size));
    const std::vector<int32_t> pages = random.Shuffled(rows * most_pages);
    const std::vector<int32_t> branch = {9001, 9002, 9003, 9004};
    std::vector<SequenceSpan> spans;
    for (int32_t row = 0; row + 1 < rows; ++row)
      spans.push_back(
          {.row_begin = row,
           .rows = row + 2 < rows ? 1 : 2,
           .kv_len = static_cast<int32_t>(std::max<int64_t>(2, topk - 1 + random.Below(5))),
           .pages = pages.data() + row * most_pages});
    spans[0].branch = branch.data();
    spans[0].branch_begin = std::max(0, spans[0].kv_len - 4);
    std::vector<int32_t> parents, selected(int64_t{rows} * topk);
    for (int32_t row = 0; row < rows; ++row)
      parents.push_back(static_cast<int32_t>(random.Below(rows)));
    std::iota(selected.begin(), selected.end(), 10000);
    const std::vector<int32_t> before = selected;
    InheritKeys({.parents = parents.data(),
                 .topk = topk,
                 .page_size = page_size,
                 .sequences = spans,
                 .selected = selected.data()},
                pool);
    for (const SequenceSpan& span : spans) {
      for (int32_t i = 0; i < span.rows; ++i) {
        const int32_t row = span.row_begin + i, keys = span.kv_len - span.rows + i + 1;
        for (int32_t j = 0; j < topk; ++j) {
          int64_t want = before[row * topk + j];  // a row without a selection
          if (keys > topk + 1) want = before[parents[row] * topk + j];
          if (keys == topk + 1) want = span.SlotOf(j, page_size);
          ASSERT_EQ(selected[row * topk + j], want) << keys << " keys, " << topk << " selected";
        }
      }
    }
  }
  InheritKeys({.topk = 4}, pool);
}

// Latent attention to selected keys.
struct Latent {
  int64_t heads = 5, lora = 24, rope = 8, topk = 70;
  int32_t keys = 200, rows = 180;
  DType dtype = DType::kF32;
  bool rounded = false;
  std::vector<int32_t> pages, selected;
  std::vector<float> q, values, out;
  std::vector<char> cache;
  SequenceSpan span;

  int64_t width() const { return lora + rope; }
  Latent(Random& random, DType type, bool bfloat16_rows) : dtype(type), rounded(bfloat16_rows) {
    pages = random.Shuffled(keys);
    values = random.Normal(keys * width());
    cache = CacheOf(dtype, values, width());
    q = random.Normal(rows * heads * width());
    for (float& x : q) x = ToFloat(ToBF16(x));
    out.resize(rows * heads * lora);
    span = {.rows = rows, .kv_len = keys, .pages = pages.data()};
    selected.resize(rows * topk);
    for (int32_t row = 0; row < rows; ++row) {
      std::vector<int32_t> chosen = random.Shuffled(keys - rows + row + 1);
      if (std::ssize(chosen) <= topk) continue;
      std::sort(chosen.begin(), chosen.begin() + topk);
      for (int64_t i = 0; i < topk; ++i) selected[row * topk + i] = pages[chosen[i]];
    }
  }
  LatentAttentionParams Params() {
    return {.q = q.data(),
            .ldq = heads * width(),
            .cache = cache.data(),
            .kv_dtype = dtype,
            .heads = heads,
            .lora = lora,
            .rope = rope,
            .scale = 0.2f,
            .bfloat16_rows = rounded,
            .selected = selected.data(),
            .topk = topk,
            .sequences = {&span, 1},
            .out = out.data(),
            .ldo = heads * lora};
  }
};

TEST_P(SelectKeysTest, AttentionHasTheBitsOfASequenceOfTheSelectedKeys) {
  Random random(3);
  ThreadPool pool(3);
  for (const auto& [dtype, rounded] : {std::pair{DType::kF32, false},
                                       {DType::kBF16, false},
                                       {DType::kBF16, true},
                                       {DType::kI8, false}}) {
    Latent t(random, dtype, rounded);
    LatentAttention(t.Params(), pool);
    const std::vector<float> got = t.out;
    const int64_t bytes = CacheRowBytes(dtype, t.width());
    std::vector<int32_t> in_order(t.topk);
    std::iota(in_order.begin(), in_order.end(), 0);
    LatentAttentionParams dense = t.Params();
    dense.selected = nullptr;
    for (int32_t row = 0; row < t.rows; ++row) {
      const int32_t keys = t.keys - t.rows + row + 1;
      std::vector<char> compact(t.topk * bytes);
      SequenceSpan alone = {.row_begin = row, .rows = 1, .kv_len = keys, .pages = t.pages.data()};
      dense.cache = t.cache.data();
      if (keys > t.topk) {
        for (int64_t i = 0; i < t.topk; ++i)
          std::copy_n(t.cache.data() + t.selected[row * t.topk + i] * bytes, bytes,
                      compact.data() + i * bytes);
        alone.kv_len = static_cast<int32_t>(t.topk);
        alone.pages = in_order.data();
        dense.cache = compact.data();
      }
      dense.sequences = {&alone, 1};
      LatentAttention(dense, pool);
    }
    EXPECT_TRUE(SameBits(got, t.out)) << static_cast<int>(dtype);
  }
}

TEST_P(SelectKeysTest, AttentionEqualsTheReferenceInDoubles) {
  Random random(4);
  ThreadPool pool(2);
  Latent t(random, DType::kF32, false);
  LatentAttention(t.Params(), pool);
  for (int32_t row = 0; row < t.rows; ++row) {
    const int32_t keys = t.keys - t.rows + row + 1;
    std::vector<int32_t> slots(t.pages.begin(), t.pages.begin() + keys);
    if (keys > t.topk)
      slots.assign(t.selected.begin() + row * t.topk, t.selected.begin() + (row + 1) * t.topk);
    for (int64_t h = 0; h < t.heads; ++h) {
      std::vector<double> sums(t.lora);
      double total = 0;
      for (const int32_t slot : slots) {
        const float* const key = t.values.data() + slot * t.width();
        double product = 0;
        for (int64_t d = 0; d < t.width(); ++d)
          product += double{t.q[(row * t.heads + h) * t.width() + d]} * key[d];
        const double e = std::exp(0.2 * product);
        total += e;
        for (int64_t d = 0; d < t.lora; ++d) sums[d] += e * key[d];
      }
      for (int64_t d = 0; d < t.lora; ++d)
        ASSERT_NEAR(t.out[(row * t.heads + h) * t.lora + d], sums[d] / total, 100 * kEpsilon);
    }
  }
}

TEST_P(SelectKeysTest, NoSequencesAndNoRowsDoNothing) {
  ThreadPool pool(2);
  SelectKeys({.heads = 2, .head_dim = 8, .topk = 4}, pool);
  const SequenceSpan empty = {};
  SelectKeys({.heads = 2, .head_dim = 8, .topk = 4, .sequences = {&empty, 1}}, pool);
  const int32_t selected = 0;
  LatentAttention({.heads = 2,
                   .lora = 8,
                   .rope = 8,
                   .selected = &selected,
                   .topk = 4,
                   .sequences = {&empty, 1}},
                  pool);
}

INSTANTIATE_TEST_SUITE_P(Isa, SelectKeysTest, EveryIsa(), IsaName);

}  // namespace
}  // namespace switchyard::kernels
