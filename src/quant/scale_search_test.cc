#include "quant/scale_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "core/dtype.h"
#include "quant/quantize.h"
#include "quant/testing.h"

namespace switchyard {
namespace {

constexpr int64_t kRows = 32, kColumns = 1024;

// Student's t with 5 degrees of freedom: kurtosis 9.
std::vector<float> HeavyTailed(int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::student_t_distribution<float> t(5);
  std::vector<float> values(count);
  for (float& v : values) v = t(random);
  return values;
}

double SumOfSquares(const std::vector<float>& x) {
  double sum = 0;
  for (const float v : x) sum += double{v} * v;
  return sum;
}

// Relative root mean square error of the packed matrix.
double ErrorOf(const WeightView& w, const std::vector<float>& values) {
  double error = 0;
  for (int64_t i = 0; i < w.n; ++i) {
    const std::vector<float> row = Row(w, i);
    for (int64_t j = 0; j < w.k; ++j) error += std::pow(double{row[j]} - values[i * w.k + j], 2);
  }
  return std::sqrt(error / SumOfSquares(values));
}

double ErrorOf(WeightFormat format, const std::vector<float>& values, const Int4Packing& packing) {
  return ErrorOf(Quantize(format, values, kRows, kColumns, packing), values);
}

// A block of 32 weights as 4-bit codes: w = scale · code - least.
struct Q4Block {
  double scale = 0, least = 0;
  std::array<int, 32> codes{};
};

int Q4Code(double x, double scale, double least) {
  return scale > 0 ? static_cast<int>(std::clamp(std::round((x + least) / scale), 0.0, 15.0)) : 0;
}

// Finds the scale and least value of a block. Tries 21 scales near that of the block's range. For
// the codes of each trial, fits scale and least value by least squares with weights sqrt(mean x²) +
// |x|.
Q4Block FitQ4Block(const float* x) {
  double mean = 0;
  for (int i = 0; i < 32; ++i) mean += double{x[i]} * x[i] / 32;
  const double low = std::min<double>(0, *std::min_element(x, x + 32));
  const double high = *std::max_element(x, x + 32);
  if (high <= low) return {.least = -low};
  Q4Block best;
  double best_error = HUGE_VAL;
  for (int trial = 0; trial <= 20; ++trial) {
    const double step = (high - low) / (14 + 0.1 * trial);
    double s = 0, sx = 0, sc = 0, scc = 0, sxc = 0;
    for (int i = 0; i < 32; ++i) {
      const double weight = std::sqrt(mean) + std::fabs(x[i]), c = Q4Code(x[i], step, -low);
      s += weight, sx += weight * x[i], sc += weight * c, scc += weight * c * c;
      sxc += weight * x[i] * c;
    }
    const double determinant = s * scc - sc * sc;
    if (determinant <= 0) continue;
    Q4Block b{.scale = (s * sxc - sx * sc) / determinant,
              .least = -(scc * sx - sc * sxc) / determinant};
    if (b.least < 0) b = {.scale = sxc / scc, .least = 0};
    double error = 0;
    for (int i = 0; i < 32; ++i) {
      const double weight = std::sqrt(mean) + std::fabs(x[i]);
      const double y = b.scale * Q4Code(x[i], step, -low) - b.least;
      error += weight * (x[i] - y) * (x[i] - y);
    }
    if (error < best_error) best = b, best_error = error;
  }
  return best;
}

// Error of a format like Q4_K of llama.cpp (4.5 bits per weight): super-blocks of 256 weights with
// two float16 factors, and for each block of 32 a scale and a least value of 6 bits. A plain
// reference, written from the description of the format.
double ErrorLikeQ4K(const std::vector<float>& values) {
  double error = 0;
  for (size_t at = 0; at < values.size(); at += 256) {
    std::array<Q4Block, 8> blocks;
    double most_scale = 0, most_least = 0;
    for (int b = 0; b < 8; ++b) {
      blocks[b] = FitQ4Block(&values[at + 32 * b]);
      most_scale = std::max(most_scale, blocks[b].scale);
      most_least = std::max(most_least, blocks[b].least);
    }
    const double of_scales = ToFloat(ToF16(static_cast<float>(most_scale / 63)));
    const double of_leasts = ToFloat(ToF16(static_cast<float>(most_least / 63)));
    for (int b = 0; b < 8; ++b) {
      const double scale = of_scales * std::round(blocks[b].scale / of_scales);
      const double least =
          of_leasts > 0 ? of_leasts * std::round(blocks[b].least / of_leasts) : 0.0;
      for (int i = 0; i < 32; ++i) {
        const double x = values[at + 32 * b + i];
        error += std::pow(x - (scale * Q4Code(x, scale, least) - least), 2);
      }
    }
  }
  return std::sqrt(error / SumOfSquares(values));
}

Int4Scale FindInt4Scale(const float* x, int64_t n, bool symmetric) {
  Int4Scale s;
  FindInt4Scales(x, n, n, symmetric, &s);
  return s;
}

// With 4.5 bits per weight, Q4_K stores the least value of each block, so the 16 codes span the
// block's range exactly. An integer zero point shifts codes by whole steps only, which raises the
// error by 6 to 8 % at the same block size.
TEST(ScaleSearch, Int4IsNearQ4KAndBetterInSmallerGroups) {
  for (const auto& values : {RandomValues(kRows * kColumns, 1), HeavyTailed(kRows * kColumns, 2)}) {
    const double q4k = ErrorLikeQ4K(values);
    Int4Packing int4{.group_size = 32, .symmetric = false, .search = true};
    const double of_32 = ErrorOf(WeightFormat::kInt4Group, values, int4);
    EXPECT_LT(of_32, 1.09 * q4k);
    int4.group_size = 16;
    EXPECT_LT(ErrorOf(WeightFormat::kInt4Group, values, int4), 0.92 * q4k);
    EXPECT_GT(q4k, 0.9 * of_32);  // the reference is not broken
  }
}

TEST(ScaleSearch, Int4HasASmallerErrorThanThePlainRule) {
  for (const auto& values : {RandomValues(kRows * kColumns, 3), HeavyTailed(kRows * kColumns, 4)}) {
    for (const bool symmetric : {true, false}) {
      for (const int32_t group : {32, 64, 128}) {
        Int4Packing packing{.group_size = group, .symmetric = symmetric};
        const double plain = ErrorOf(WeightFormat::kInt4Group, values, packing);
        packing.search = true;
        const double found = ErrorOf(WeightFormat::kInt4Group, values, packing);
        EXPECT_LT(found, (symmetric ? 0.96 : 0.98) * plain)
            << "group " << group << ", symmetric " << symmetric;
      }
    }
  }
}

// No scale of a fine grid has a much smaller error.
TEST(ScaleSearch, Int4IsNearTheBestOfAllScales) {
  const std::vector<float> values = RandomValues(64 * 32, 5);
  double found = 0, best = 0;
  for (int64_t g = 0; g < 64; ++g) {
    const float* x = &values[g * 32];
    const auto error = [&](float scale, int zero) {
      double sum = 0;
      for (int i = 0; i < 32; ++i) {
        const double steps = std::clamp<double>(std::nearbyint(x[i] / scale), -zero, 15 - zero);
        sum += std::pow(x[i] - steps * scale, 2);
      }
      return sum;
    };
    const Int4Scale s = FindInt4Scale(x, 32, false);
    found += error(s.scale, s.zero);
    double least = HUGE_VAL;
    for (int zero = 0; zero < 16; ++zero) {
      for (int step = 1; step <= 1000; ++step) {
        least = std::min(least, error(static_cast<float>(step) * 1e-3f, zero));
      }
    }
    best += least;
  }
  EXPECT_LT(std::sqrt(found / best), 1.03);
}

TEST(ScaleSearch, Int4KeepsRepresentableGroups) {
  for (const float scale : {0.25f, 3.0f}) {
    std::vector<float> x;
    for (int code = 0; code < 16; ++code) x.push_back(static_cast<float>(code - 8) * scale);
    const WeightView w =
        Quantize(WeightFormat::kInt4Group, x, 1, 16, {.group_size = 16, .search = true});
    EXPECT_EQ(Row(w, 0), x);
    // The same values with the other sign need a negative scale.
    std::vector<float> negative = x;
    for (float& v : negative) v = -v;
    EXPECT_EQ(
        Row(Quantize(WeightFormat::kInt4Group, negative, 1, 16, {.group_size = 16, .search = true}),
            0),
        negative);
    std::vector<float> shifted;
    for (int code = 0; code < 16; ++code) shifted.push_back(static_cast<float>(code - 3) * scale);
    EXPECT_EQ(Row(Quantize(WeightFormat::kInt4Group, shifted, 1, 16,
                           {.group_size = 16, .symmetric = false, .search = true}),
                  0),
              shifted);
  }
}

TEST(ScaleSearch, Int4TakesGroupsOfAnySizeAndSign) {
  std::mt19937 random(6);
  for (const bool symmetric : {true, false}) {
    for (int64_t n = 1; n <= 40; ++n) {
      for (const float offset : {-5.0f, 0.0f, 5.0f}) {
        std::vector<float> x = RandomValues(n, random());
        for (float& v : x) v += offset;
        const Int4Scale s = FindInt4Scale(x.data(), n, symmetric);
        EXPECT_TRUE(std::isfinite(s.scale) && s.scale != 0);
        EXPECT_EQ(s.scale, ToFloat(ToBF16(s.scale)));
        EXPECT_LE(s.zero, 15);
        if (symmetric) {
          EXPECT_EQ(s.zero, kInt4Zero);
        }
      }
    }
  }
}

TEST(ScaleSearch, ExtremeGroupsHaveFiniteScales) {
  for (const bool symmetric : {true, false}) {
    for (const float magnitude : {0.0f, 0x1p-126f, 0x1p-60f, 0x1p-30f, 0x1p99f, 0x1p127f}) {
      const std::vector<float> x = {magnitude, -magnitude, magnitude / 2, 0};
      const WeightView w = Quantize(WeightFormat::kInt4Group, x, 1, 4,
                                    {.group_size = 4, .symmetric = symmetric, .search = true});
      const std::vector<float> row = Row(w, 0);
      for (int i = 0; i < 4; ++i) {
        const float tolerance = magnitude < 0x1p-60f ? 0x1p-60f : 0.15f * magnitude;
        EXPECT_NEAR(row[i], x[i], tolerance) << magnitude;
      }
    }
  }
}

TEST(ScaleSearch, Mxfp4HasASmallerErrorThanTheSpecificationsExponent) {
  for (const auto& values : {RandomValues(kRows * kColumns, 7), HeavyTailed(kRows * kColumns, 8)}) {
    const double plain = ErrorOf(WeightFormat::kMxfp4, values, {});
    const double found = ErrorOf(WeightFormat::kMxfp4, values, {.search = true});
    EXPECT_LT(found, 0.98 * plain);
  }
}

TEST(ScaleSearch, Mxfp4KeepsRepresentableBlocksAndZeros) {
  std::vector<float> values(96, 0.0f);
  for (int i = 0; i < 64; ++i) values[i] = kE2M1[i % 16] * (i < 32 ? 4.0f : 0.125f);
  const WeightView w = Quantize(WeightFormat::kMxfp4, values, 1, 96, {.search = true});
  EXPECT_EQ(Row(w, 0), values);
  EXPECT_EQ(static_cast<const uint8_t*>(w.scales)[2], 127);
}

TEST(ScaleSearch, Mxfp4ChoosesTheBetterOfTheTwoExponents) {
  std::mt19937 random(9);
  for (int trial = 0; trial < 200; ++trial) {
    const std::vector<float> x = RandomValues(kMxfp4BlockSize, random());
    const uint8_t code = FindMxfp4Scale(x.data());
    const auto error = [&](uint8_t with) {
      double sum = 0;
      for (const float v : x) {
        double least = HUGE_VAL;
        for (const float e : kE2M1)
          least = std::min<double>(least, std::fabs(v - e * FromE8M0(with)));
        sum += least * least;
      }
      return sum;
    };
    EXPECT_LE(error(code), 1.000001 * error(code - 1));
    EXPECT_LE(error(code), 1.000001 * error(code + 1));
  }
}

}  // namespace
}  // namespace switchyard
