// Helpers of the kernel tests: random data, a fixture per instruction set, bitwise comparison.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/test_random.h"
#include "kernels/ops.h"
#include "quant/quantize.h"

namespace switchyard::kernels {

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed), fast_(seed) {}
  // Numbers of mean 0 and standard deviation `scale`, about normal: sums of four uniform numbers of
  // 16 bits. std::normal_distribution took most of the time of these tests.
  std::vector<float> Normal(int64_t count, float scale = 1.0f) {
    constexpr int kMean = 2 * 65535;                   // of a sum
    const float unit = scale / (2 * 65536 / 3.4641f);  // a sum has the variance 4 · 65536² / 12
    std::vector<float> values(count);
    float* next = values.data();
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t z = fast_();
      const auto sum =
          static_cast<int>((z & 0xffff) + ((z >> 16) & 0xffff) + ((z >> 32) & 0xffff) + (z >> 48));
      next[i] = static_cast<float>(sum - kMean) * unit;
    }
    return values;
  }
  int64_t Below(int64_t bound) {
    return std::uniform_int_distribution<int64_t>(0, bound - 1)(engine_);
  }
  template <typename T>
  T Pick(std::initializer_list<T> choices) {
    return *(choices.begin() + Below(static_cast<int64_t>(choices.size())));
  }
  std::vector<int32_t> Shuffled(int32_t count) {
    std::vector<int32_t> values(count);
    for (int32_t i = 0; i < count; ++i) values[i] = i;
    std::shuffle(values.begin(), values.end(), engine_);
    return values;
  }
  // A random matrix of the format, viewed from `col0` and every row_step-th row from row0.
  // kInt4Group gets a random group size, with or without zero points.
  WeightView Weight(WeightFormat format, int64_t n, int64_t k, int64_t row0 = 0,
                    int64_t row_step = 1, int64_t col0 = 0) {
    const int64_t rows = row0 + n * row_step;
    const int64_t columns = CeilDiv(col0 + k, kMxfp4BlockSize) * kMxfp4BlockSize;
    const Int4Packing int4 = {.group_size = Pick<int32_t>({16, 32, 64, 96, 128, 4096}),
                              .symmetric = Below(2) == 0};
    WeightView w = Quantize(format, Normal(rows * columns), rows, columns, int4);
    w.row0 = row0;
    w.row_step = row_step;
    w.col0 = col0;
    w.n = n;
    w.k = k;
    return w;
  }

 private:
  std::mt19937 engine_;
  TestRandom fast_;
};

constexpr WeightFormat kAllFormats[] = {
    WeightFormat::kF32,       WeightFormat::kBF16,       WeightFormat::kF16,
    WeightFormat::kFp8Block,  WeightFormat::kFp8Channel, WeightFormat::kInt8Channel,
    WeightFormat::kInt4Group, WeightFormat::kMxfp4,      WeightFormat::kNvfp4};

// Runs each test with one instruction set; skipped if the CPU does not support it.
class IsaTest : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    try {
      SelectIsa(Name(GetParam()));
    } catch (const Error& e) {
      GTEST_SKIP() << e.what();
    }
  }
  void TearDown() override { SelectIsa("auto"); }
};

inline std::string IsaName(const ::testing::TestParamInfo<Isa>& info) {
  std::string name(Name(info.param));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

inline auto EveryIsa() {
  return ::testing::Values(Isa::kReference, Isa::kAvx2, Isa::kAvx512, Isa::kAmx, Isa::kAmxEmulated);
}

// Bitwise equality: NaN equals NaN, 0 differs from -0.
inline bool SameBits(const float* a, const float* b, int64_t count) {
  return count == 0 || std::memcmp(a, b, count * sizeof(float)) == 0;
}
inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && SameBits(a.data(), b.data(), static_cast<int64_t>(a.size()));
}

inline double Norm(const float* x, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += double{x[i]} * x[i];
  return std::sqrt(sum);
}

constexpr double kEpsilon = 0x1p-23;

}  // namespace switchyard::kernels
