#include <algorithm>

#include "core/test_effort.h"
#include "kernels/reference.h"
#include "kernels/testing.h"

namespace switchyard::kernels {
namespace {

class LinearTest : public IsaTest {};

// Bounds |y - expected| by 20 eps ‖x‖ ‖w‖: the rounding error of a dot product, with a margin for
// the bias.
void ExpectNear(const LinearParams& p, const std::vector<float>& expected,
                const std::string& what) {
  std::vector<float> row(p.w.k);
  for (int64_t n = 0; n < p.w.n; ++n) {
    DequantizeRow(p.w, n, 0, p.w.k, row.data());
    const double w_norm = Norm(row.data(), p.w.k);
    for (int64_t m = 0; m < p.m; ++m) {
      const double bound = 20 * kEpsilon * (Norm(p.x + m * p.ldx, p.w.k) * w_norm + 4);
      const float want = expected[m * p.ldy + n];
      ASSERT_NEAR(p.y[m * p.ldy + n], want, bound) << what << " at " << m << ", " << n;
    }
  }
}

TEST_P(LinearTest, MatchesReference) {
  Random random(1);
  ThreadPool pool(2);
  for (int round = 0; round < FewerIfSanitized(450, 4); ++round) {
    const WeightFormat format = kAllFormats[round % std::size(kAllFormats)];
    const int64_t m = random.Pick<int64_t>({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 17, 64, 100});
    const int64_t k =
        random.Pick<int64_t>({1, 7, 16, 31, 64, 100, 128, 200, 300, 1024, 1040, 2069});
    const int64_t n = random.Pick<int64_t>({1, 3, 4, 5, 31, 33, 64, 70});
    const int64_t col0 = random.Pick<int64_t>({0, 0, 0, 5, 8, 16, 32, 127, 160});
    const WeightView w = random.Weight(format, n, k, random.Below(140), 1 + random.Below(2), col0);
    const int64_t ldx = k + random.Below(3), ldy = n + random.Below(3);
    const std::vector<float> x = random.Normal(m * ldx + 1), bias = random.Normal(n);
    std::vector<float> y = random.Normal(m * ldy + 1);
    std::vector<float> expected = y;
    LinearParams p = {.x = x.data(),
                      .ldx = ldx,
                      .w = w,
                      .bias = round % 2 != 0 ? bias.data() : nullptr,
                      .y = y.data(),
                      .ldy = ldy,
                      .m = m,
                      .accumulate = round % 3 == 0};
    Linear(p, pool);
    LinearParams q = p;
    q.y = expected.data();
    reference::Linear(q);
    ExpectNear(p, expected, fmt::format("{} m {} n {} k {} col0 {}", Name(format), m, n, k, col0));
    // Elements between rows are not written.
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = n; j < ldy; ++j) EXPECT_EQ(y[i * ldy + j], expected[i * ldy + j]);
    }
    EXPECT_EQ(y.back(), expected.back());
  }
}

// Bytes of the scales of a whole matrix.
int64_t ScaleBytes(const WeightView& w) {
  switch (w.format) {
    case WeightFormat::kFp8Block:
      return CeilDiv(w.n, kFp8BlockSize) * CeilDiv(w.k, kFp8BlockSize) * 4;
    case WeightFormat::kFp8Channel:
    case WeightFormat::kInt8Channel:
      return w.n * 4;
    case WeightFormat::kInt4Group:
      return w.n * CeilDiv(w.k, w.group_size) * 4;
    case WeightFormat::kMxfp4:
      return w.n * w.k / kMxfp4BlockSize;
    case WeightFormat::kNvfp4:
      return w.n * w.k / kNvfp4BlockSize;
    default:
      return 0;
  }
}

// Tensors in a mapped file may have any alignment.
TEST_P(LinearTest, WeightsAtOddAddressesGiveTheSameBits) {
  Random random(5);
  ThreadPool pool(1);
  constexpr int64_t kRows = 9, kColumns = 160;
  for (const WeightFormat format : kAllFormats) {
    for (const int64_t m : {1, 70}) {
      const std::vector<float> x = random.Normal(m * kColumns);
      std::vector<float> want(m * kRows), moved(want.size());
      LinearParams p = {.x = x.data(),
                        .ldx = kColumns,
                        .w = random.Weight(format, kRows, kColumns),
                        .y = want.data(),
                        .ldy = kRows,
                        .m = m};
      Linear(p, pool);
      std::vector<char> data(1 + 4 * kRows * kColumns), scales(1 + kRows * kColumns);
      const auto bits = static_cast<int64_t>(8 * BytesPerWeight(format));
      std::memcpy(data.data() + 1, p.w.data, kRows * kColumns * bits / 8);
      p.w.data = data.data() + 1;
      if (p.w.scales != nullptr) {
        std::memcpy(scales.data() + 1, p.w.scales, ScaleBytes(p.w));
        p.w.scales = scales.data() + 1;
      }
      p.y = moved.data();
      Linear(p, pool);
      EXPECT_TRUE(SameBits(want, moved)) << Name(format) << " " << m;
    }
  }
}

TEST_P(LinearTest, ElementDoesNotDependOnBatchColumnsOrThreads) {
  Random random(2);
  ThreadPool one(1), three(3);
  constexpr int64_t kRows = 64, kColumns = 200;
  for (const WeightFormat format : kAllFormats) {
    for (const int64_t k : {40, 1100, 2500}) {
      if (GetParam() == Isa::kReference && k > 40) continue;  // one code path, and slow
      for (const int64_t col0 : {0, 7}) {
        const WeightView w = random.Weight(format, kColumns, k, 3, 1, col0);
        const std::vector<float> x = random.Normal(kRows * k), bias = random.Normal(kColumns);
        std::vector<float> all(kRows * kColumns), again(all.size());
        LinearParams p = {.x = x.data(),
                          .ldx = k,
                          .w = w,
                          .bias = bias.data(),
                          .y = all.data(),
                          .ldy = kColumns,
                          .m = kRows};
        Linear(p, one);
        p.y = again.data();
        Linear(p, three);
        EXPECT_TRUE(SameBits(all, again)) << "threads, " << Name(format) << " k " << k;
        for (const int64_t m : {1, 2, 3, 4, 5, 8, 11, 13}) {
          for (int64_t first = 0; first + m <= kRows; first += kSanitized ? 51 : 17) {
            p.x = x.data() + first * k;
            p.m = m;
            Linear(p, three);
            EXPECT_TRUE(SameBits(again.data(), all.data() + first * kColumns, m * kColumns))
                << Name(format) << " k " << k << " rows " << first << " + " << m;
          }
        }
        std::vector<float> part(kRows * 37);
        p = {.x = x.data(),
             .ldx = k,
             .w = w.Rows(50, 87),
             .bias = bias.data() + 50,
             .y = part.data(),
             .ldy = 37,
             .m = kRows};
        Linear(p, one);
        for (int64_t i = 0; i < kRows; ++i) {
          EXPECT_TRUE(SameBits(part.data() + i * 37, all.data() + i * kColumns + 50, 37));
        }
      }
    }
  }
}

TEST_P(LinearTest, GroupEqualsItsParts) {
  Random random(3);
  ThreadPool pool(3);
  constexpr int64_t kRows = 9, kDepth = 96;
  const std::vector<float> x = random.Normal(kRows * kDepth);
  std::vector<LinearParams> parts;
  std::vector<std::vector<float>> outputs;
  for (const int64_t n : {300, 1, 64}) {
    outputs.emplace_back(kRows * n);
    parts.push_back({.x = x.data(),
                     .ldx = kDepth,
                     .w = random.Weight(WeightFormat::kBF16, n, kDepth),
                     .y = outputs.back().data(),
                     .ldy = n,
                     .m = kRows});
  }
  LinearGroup(parts, pool);
  for (size_t i = 0; i < parts.size(); ++i) {
    std::vector<float> alone(outputs[i].size());
    parts[i].y = alone.data();
    Linear(parts[i], pool);
    EXPECT_TRUE(SameBits(alone, outputs[i])) << i;
  }
}

TEST_P(LinearTest, ManyRowsOfFewWeightsAreSharedByThreads) {
  Random random(4);
  ThreadPool one(1), three(3);
  constexpr int64_t kRows = 500, kDepth = 64, kColumns = 8;  // a router
  const std::vector<float> x = random.Normal(kRows * kDepth);
  std::vector<float> a(kRows * kColumns), b(a.size());
  LinearParams p = {.x = x.data(),
                    .ldx = kDepth,
                    .w = random.Weight(WeightFormat::kF32, kColumns, kDepth),
                    .y = a.data(),
                    .ldy = kColumns,
                    .m = kRows};
  Linear(p, one);
  p.y = b.data();
  Linear(p, three);
  EXPECT_TRUE(SameBits(a, b));
}

TEST_P(LinearTest, HeadLinearMatchesReferenceBothWays) {
  Random random(5);
  ThreadPool pool(2);
  for (const WeightFormat format : kAllFormats) {
    for (const bool transposed : {true, false}) {
      for (const int64_t m : {0, 1, 3, 40}) {
        constexpr int64_t kHeads = 3, kRows = 70, kColumns = 100;
        const int64_t col0 = random.Pick<int64_t>({0, 5, 32});
        std::vector<WeightView> w;
        for (int64_t h = 0; h < kHeads; ++h) {
          w.push_back(random.Weight(format, kRows, kColumns, h * 11, 1, col0));
        }
        const int64_t in = transposed ? kColumns : kRows, out = transposed ? kRows : kColumns;
        const std::vector<float> x = random.Normal(m * kHeads * (in + 2) + 1);
        std::vector<float> y(m * kHeads * (out + 1) + 1), expected(y.size());
        HeadLinearParams p = {.x = x.data(),
                              .ldx = kHeads * (in + 2),
                              .head_stride_x = in + 2,
                              .w = w,
                              .transposed = transposed,
                              .y = y.data(),
                              .ldy = kHeads * (out + 1),
                              .head_stride_y = out + 1,
                              .m = m};
        HeadLinear(p, pool);
        p.y = expected.data();
        reference::HeadLinear(p);
        for (size_t i = 0; i < y.size(); ++i) {
          ASSERT_NEAR(y[i], expected[i], 400 * kEpsilon) << Name(format) << transposed << " " << i;
        }
        if (m < 2) continue;
        std::vector<float> alone(p.ldy);  // the last row separately
        p.x += (m - 1) * p.ldx;
        p.y = alone.data();
        p.m = 1;
        HeadLinear(p, pool);
        EXPECT_TRUE(SameBits(alone.data(), y.data() + (m - 1) * p.ldy, p.ldy));
      }
    }
  }
}

// Few heads are divided by rows over the threads, which changes no bit.
TEST_P(LinearTest, HeadLinearDoesNotDependOnThreads) {
  Random random(7);
  ThreadPool one(1), three(3), eight(8);
  for (const WeightFormat format : kAllFormats) {
    for (const int64_t rows : {1, 33, 160}) {
      constexpr int64_t kColumns = 64, kTokens = 5;
      const int64_t heads = random.Pick<int64_t>({1, 2, 5});
      std::vector<WeightView> w;
      for (int64_t h = 0; h < heads; ++h) w.push_back(random.Weight(format, rows, kColumns));
      const std::vector<float> x = random.Normal(kTokens * heads * kColumns);
      std::vector<float> want(kTokens * heads * rows);
      HeadLinearParams p = {.x = x.data(),
                            .ldx = heads * kColumns,
                            .head_stride_x = kColumns,
                            .w = w,
                            .transposed = true,
                            .y = want.data(),
                            .ldy = heads * rows,
                            .head_stride_y = rows,
                            .m = kTokens};
      HeadLinear(p, one);
      for (ThreadPool* pool : {&three, &eight}) {
        std::vector<float> y(want.size(), 7.0f);
        p.y = y.data();
        HeadLinear(p, *pool);
        EXPECT_TRUE(SameBits(y, want)) << Name(format) << " " << rows << " " << heads;
      }
    }
  }
}

TEST_P(LinearTest, EmbedScalesOwnRowsAndZeroesOthers) {
  Random random(6);
  ThreadPool pool(2);
  for (const WeightFormat format : kAllFormats) {
    const WeightView w = random.Weight(format, 10, 96);
    const std::vector<int32_t> ids = {25, 19, 20, 29, 30, -1};
    std::vector<float> row(96);
    for (const float scale : {1.0f, 0.3f}) {
      std::vector<float> out(ids.size() * 96, 7.0f);
      Embed({.ids = ids.data(), .m = 6, .w = w, .first = 20, .scale = scale, .out = out.data()},
            pool);
      for (size_t t = 0; t < ids.size(); ++t) {
        std::fill(row.begin(), row.end(), 0.0f);
        if (ids[t] >= 20 && ids[t] < 30) DequantizeRow(w, ids[t] - 20, 0, 96, row.data());
        for (float& value : row) value *= scale;
        EXPECT_TRUE(SameBits(row.data(), out.data() + t * 96, 96)) << ids[t];
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, LinearTest, EveryIsa(), IsaName);

}  // namespace
}  // namespace switchyard::kernels
