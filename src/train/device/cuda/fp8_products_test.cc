// The FP8 kernels against the plain rounding of operands, and their products against float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "train/cuda/fp8.h"
#include "train/cuda/testing.h"
#include "train/device/plain_fp8.h"

namespace switchyard::train::gpu {
namespace {

constexpr double kOld = 0.75;  // old values of outputs

std::vector<BF16> ToBf16s(const std::vector<double>& values) {
  std::vector<BF16> rounded;
  for (const double x : values) rounded.push_back(ToBF16(static_cast<float>(x)));
  return rounded;
}

// Codes and scales on the device.
struct TestFp8 {
  TestFp8(int64_t code_count, int64_t scale_count)
      : codes(Upload(std::vector<uint8_t>(code_count, 0x7f))),
        scales(Upload(std::vector<float>(scale_count, NAN))),
        view{codes.as<uint8_t>(), scales.as<float>()},
        code_count(code_count),
        scale_count(scale_count) {}
  std::vector<uint8_t> Codes() const { return Download<uint8_t>(codes, code_count); }
  std::vector<float> Scales() const { return Download<float>(scales, scale_count); }

  cuda::DeviceMemory codes, scales;
  Fp8Array view;
  int64_t code_count, scale_count;
};

// A layer of groups of rows with random operands, whose sizes differ between blocks of 128.
struct GpuFp8Layer {
  GpuFp8Layer(std::vector<int32_t> counts, int64_t outputs, int64_t inputs, std::mt19937& random)
      : n(outputs),
        k(inputs),
        groups(std::ssize(counts)),
        begins(counts.size() + 1),
        x(true, {}),
        dy(true, {}),
        w(true, {}) {
    std::partial_sum(counts.begin(), counts.end(), begins.begin() + 1);
    rows = begins.back() + 5;  // rows of no group at the end
    device_begins = Upload(begins);
    x = Operand(rows * k, random);
    dy = Operand(rows * n, random);
    w = Operand(groups * n * k, random);
  }
  static TestArray Operand(int64_t count, std::mt19937& random) {
    std::uniform_real_distribution<double> uniform(-1, 1);
    std::vector<double> values(count);
    double size = 1;
    for (int64_t i = 0; i < count; ++i) {
      if (i % kScaleBlock == 0) size = std::ldexp(1.0, static_cast<int>(random() % 4));
      values[i] = uniform(random) * size;
    }
    if (count >= kScaleBlock) std::fill_n(values.begin(), kScaleBlock, 0.0);  // a block of zeros
    return {true, std::move(values)};
  }
  ProductShape shape() const {
    return {.rows = rows,
            .n = n,
            .k = k,
            .groups = static_cast<int>(groups),
            .begins = device_begins.as<int32_t>()};
  }
  static const BF16* Bits(const TestArray& array) {
    return static_cast<const BF16*>(ConstArray(array).data);
  }
  TestFp8 Rows(const TestArray& from, int64_t width) const {
    TestFp8 out(rows * width, width / kScaleBlock * Fp8RowStride(rows));
    QuantizeRows({.rows = rows, .width = width, .valid_rows = device_begins.as<int32_t>() + groups},
                 Bits(from), out.view, nullptr);
    return out;
  }
  TestFp8 Columns(const TestArray& from, int64_t width) const {
    const int64_t padded = Fp8PaddedRows(rows, groups);
    TestFp8 out(padded * width, padded * width / kScaleBlock);
    QuantizeColumns(shape(), Bits(from), width, out.view, nullptr);
    return out;
  }
  struct Blocks {
    TestFp8 weight, transposed;
  };
  Blocks Weight() const {
    const int64_t count = groups * n * k, blocks = count / (kScaleBlock * kScaleBlock);
    Blocks out{{count, blocks}, {count, blocks}};
    QuantizeBlocks(shape(), Bits(w), out.weight.view, out.transposed.view, nullptr);
    return out;
  }
  // Row r of `from`, decoded, and so on.
  std::vector<float> DecodedRows(const TestArray& from, int64_t width) const {
    return plain::RoundRowsToFp8(ToBf16s(from.values).data(), begins.back(), width);
  }
  std::vector<float> DecodedColumns(const TestArray& from, int64_t width) const {
    return plain::RoundColumnsToFp8(ToBf16s(from.values).data(), begins, width);
  }

  struct Results {
    TestArray y, dx, dw;
  };
  Results Run(bool bf16, bool accumulate) const {
    Results out{TestArray::Filled(bf16, rows * n, kOld), TestArray::Filled(bf16, rows * k, kOld),
                TestArray::Filled(false, groups * n * k, kOld)};
    const Blocks blocks = Weight();
    const TestFp8 in = Rows(x, k), back = Rows(dy, n), in_columns = Columns(x, k),
                  back_columns = Columns(dy, n);
    Fp8Product(shape(), in.view, blocks.weight.view, out.y, accumulate, nullptr);
    ProductShape transposed = shape();
    std::swap(transposed.n, transposed.k);
    Fp8Product(transposed, back.view, blocks.transposed.view, out.dx, accumulate, nullptr);
    Fp8WeightGradient(shape(), back_columns.view, in_columns.view, out.dw.floats(), nullptr);
    cuda::Check(cudaDeviceSynchronize(), "FP8 products");  // before the operands are freed
    return out;
  }
  void Expect(const Results& got, bool accumulate) const {
    const std::vector<float> in = DecodedRows(x, k), back = DecodedRows(dy, n),
                             in_columns = DecodedColumns(x, k),
                             back_columns = DecodedColumns(dy, n);
    std::vector<uint8_t> codes(groups * n * k), codes_transposed(codes.size());
    std::vector<float> scales(codes.size() / (kScaleBlock * kScaleBlock)), others(scales.size());
    const Fp8Weight weight = {codes.data(), scales.data(), codes_transposed.data(), others.data()};
    const LinearShape s = {.n = n, .k = k, .groups = groups, .fp8 = &weight};
    plain::QuantizeWeight(s, ToBf16s(w.values).data());
    const std::vector<float> decoded = plain::DecodeWeight(s);
    std::vector<double> y(rows * n, kOld), dx(rows * k, kOld), dw(groups * n * k, kOld);
    const double old = accumulate ? kOld : 0.0;
    for (int64_t g = 0; g < groups; ++g) {
      const float* matrix = decoded.data() + g * n * k;
      double* gradient = dw.data() + g * n * k;
      for (int64_t r = begins[g]; r < begins[g + 1]; ++r) {
        std::fill_n(dx.begin() + r * k, k, old);
        for (int64_t i = 0; i < n; ++i) {
          double sum = old;
          for (int64_t j = 0; j < k; ++j) {
            sum += static_cast<double>(in[r * k + j]) * matrix[i * k + j];
            dx[r * k + j] += static_cast<double>(back[r * n + i]) * matrix[i * k + j];
            gradient[i * k + j] +=
                static_cast<double>(back_columns[r * n + i]) * in_columns[r * k + j];
          }
          y[r * n + i] = sum;
        }
      }
    }
    const std::string sizes = " of n " + std::to_string(n) + ", k " + std::to_string(k) + ", " +
                              std::to_string(groups) + " groups";
    // The tensor core sums 128 products with fewer bits than float32.
    const double tolerance = got.y.bf16() ? 3e-3 : 1e-3;
    ExpectTypicallyClose(got.y, y, tolerance, "output" + sizes);
    ExpectTypicallyClose(got.dx, dx, tolerance, "gradient of the input" + sizes);
    ExpectTypicallyClose(got.dw, dw, 1e-3, "gradient of the weight" + sizes);
    const std::vector<double> got_y = got.y.Read(), got_dx = got.dx.Read();
    for (int64_t i = begins.back() * n; i < rows * n; ++i) ASSERT_EQ(got_y[i], kOld);
    for (int64_t i = begins.back() * k; i < rows * k; ++i) ASSERT_EQ(got_dx[i], kOld);
  }

  int64_t n, k, groups, rows = 0;
  std::vector<int32_t> begins;
  cuda::DeviceMemory device_begins;
  TestArray x, dy, w;
};

class TrainFp8 : public TrainCudaTest {
 protected:
  void SetUp() override {
    TrainCudaTest::SetUp();
    if (!IsSkipped() && !cuda::IsHopper()) GTEST_SKIP() << "no Hopper GPU";
  }
};

TEST_F(TrainFp8, RowsHaveTheBitsOfPlainRounding) {
  for (const int64_t width : {128, 384, 2048}) {
    const GpuFp8Layer layer({3, 0, 70}, width, width, random_);
    const TestFp8 got = layer.Rows(layer.x, width);
    const int64_t valid = layer.begins.back(), blocks = width / kScaleBlock;
    std::vector<uint8_t> codes(valid * width);
    std::vector<float> scales(valid * blocks);
    plain::QuantizeRows(ToBf16s(layer.x.values).data(), valid * width, codes.data(), scales.data());
    const std::vector<uint8_t> got_codes = got.Codes();
    const std::vector<float> got_scales = got.Scales();
    for (size_t i = 0; i < got_codes.size(); ++i)  // other rows are not written
      ASSERT_EQ(got_codes[i], i < codes.size() ? codes[i] : 0x7f) << i;
    for (int64_t r = 0; r < valid; ++r)
      for (int64_t b = 0; b < blocks; ++b)
        ASSERT_EQ(got_scales[b * Fp8RowStride(layer.rows) + r], scales[r * blocks + b]);
  }
}

TEST_F(TrainFp8, TransitRowsAreDecodedExactly) {
  const GpuFp8Layer layer({131}, 128, 640, random_);
  const int64_t count = layer.rows * layer.k;
  const TestFp8 rows(count, count / kScaleBlock);
  QuantizeTransitRows({.rows = layer.rows, .width = layer.k}, GpuFp8Layer::Bits(layer.x), rows.view,
                      nullptr);
  const TestArray decoded = TestArray::Filled(true, count, kOld);
  DecodeTransitRows({.rows = layer.rows, .width = layer.k}, rows.view,
                    static_cast<BF16*>(Array(decoded).data), nullptr);
  const std::vector<double> got = decoded.Read();
  const std::vector<float> want =
      plain::RoundRowsToFp8(ToBf16s(layer.x.values).data(), layer.rows, layer.k);
  for (int64_t i = 0; i < count; ++i) ASSERT_EQ(got[i], want[i]) << i;
}

TEST_F(TrainFp8, ColumnsHaveTheBitsOfPlainRounding) {
  const std::vector<int32_t> all_counts[] = {{1}, {0, 130, 0, 0, 128, 7, 0}, {0, 0}, {400, 3}};
  for (const std::vector<int32_t>& counts : all_counts) {
    const GpuFp8Layer layer(counts, 256, 384, random_);
    const int64_t width = layer.k, padded = Fp8PaddedRows(layer.rows, layer.groups);
    const TestFp8 got = layer.Columns(layer.x, width);
    const std::vector<uint8_t> codes = got.Codes();
    const std::vector<float> scales = got.Scales(), want = layer.DecodedColumns(layer.x, width);
    int64_t first = 0;  // padded row of the group
    for (size_t g = 0; g < counts.size(); ++g) {
      const int64_t end = first + (counts[g] + kScaleBlock - 1) / kScaleBlock * kScaleBlock;
      ASSERT_LE(end, padded);
      for (int64_t at = first; at < end; ++at) {
        const int64_t row = layer.begins[g] + at - first;
        for (int64_t column = 0; column < width; ++column) {
          const uint8_t code = codes[column * padded + at];
          float value = 0;
          DecodeFp8(&code, 1, scales[at / kScaleBlock * width + column], &value);
          ASSERT_EQ(value, row < layer.begins[g + 1] ? want[row * width + column] : 0.0f)
              << "row " << row << ", column " << column;
        }
      }
      first = end;
    }
  }
}

TEST_F(TrainFp8, WeightsHaveTheBitsOfPlainRounding) {
  const GpuFp8Layer layer({1, 0, 2}, 256, 384, random_);
  const GpuFp8Layer::Blocks got = layer.Weight();
  std::vector<uint8_t> codes(layer.groups * layer.n * layer.k), transposed(codes.size());
  std::vector<float> scales(codes.size() / (kScaleBlock * kScaleBlock)), others(scales.size());
  const Fp8Weight weight = {codes.data(), scales.data(), transposed.data(), others.data()};
  plain::QuantizeWeight(
      LinearShape{.n = layer.n, .k = layer.k, .groups = layer.groups, .fp8 = &weight},
      ToBf16s(layer.w.values).data());
  EXPECT_EQ(got.weight.Codes(), codes);
  EXPECT_EQ(got.weight.Scales(), scales);
  EXPECT_EQ(got.transposed.Codes(), transposed);
  EXPECT_EQ(got.transposed.Scales(), others);
}

TEST_F(TrainFp8, ProductsOfRaggedGroups) {
  struct Sizes {
    std::vector<int32_t> counts;
    int64_t n, k;
  };
  // Tiles are 128 × 192 or 128 × 128 in pairs of blocks.
  const Sizes all[] = {{{5}, 128, 128},
                       {{128, 256}, 256, 128},
                       {{0, 1, 127, 0, 129, 63, 65, 0}, 384, 640},
                       {{140, 0, 20}, 512, 256},
                       {{0, 0}, 128, 128},
                       {{33, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2,
                         2,  2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 0, 40},
                        128,
                        256}};
  for (const Sizes& s : all) {
    const GpuFp8Layer layer(s.counts, s.n, s.k, random_);
    layer.Expect(layer.Run(false, false), false);
    layer.Expect(layer.Run(false, true), true);
    layer.Expect(layer.Run(true, false), false);
  }
}

// Blocks compute several tiles in turn, and steps along the inner dimension more than 32.
TEST_F(TrainFp8, MoreTilesThanBlocks) {
  std::vector<int32_t> counts(100);
  for (int32_t& count : counts) count = static_cast<int32_t>(random_() % 45);
  const GpuFp8Layer many(counts, 256, 128, random_);
  many.Expect(many.Run(true, false), false);
  const GpuFp8Layer wide({3000, 1, 1500}, 128, 128, random_);  // and many stages
  wide.Expect(wide.Run(false, false), false);
  const GpuFp8Layer deep({40, 9}, 128, 4608, random_);
  deep.Expect(deep.Run(false, false), false);
}

TEST_F(TrainFp8, DenseRowsNeedNoRanges) {
  for (const int64_t rows : {1, 100, 700}) {
    const GpuFp8Layer layer({static_cast<int32_t>(rows)}, 256, 384, random_);
    const GpuFp8Layer::Results want = layer.Run(false, false);
    const GpuFp8Layer::Blocks blocks = layer.Weight();
    const TestFp8 in(rows * 384, 3 * Fp8RowStride(rows));
    QuantizeRows({.rows = rows, .width = 384}, GpuFp8Layer::Bits(layer.x), in.view, nullptr);
    const TestArray y = TestArray::Filled(false, rows * 256, kOld);
    Fp8Product({.rows = rows, .n = 256, .k = 384}, in.view, blocks.weight.view, y, false, nullptr);
    std::vector<double> grouped = want.y.Read();
    grouped.resize(rows * 256);
    EXPECT_EQ(y.Read(), grouped);
  }
}

// Rows of other groups are not part of a group's sums, even if they are not finite.
TEST_F(TrainFp8, BitsOfAGroupDoNotDependOnOthers) {
  const int64_t n = 128, k = 256, begin = 70, count = 150;
  const GpuFp8Layer layer({70, 150, 9}, n, k, random_);
  const GpuFp8Layer::Results all = layer.Run(false, false);
  GpuFp8Layer alone({70, 150, 9}, n, k, random_);
  std::vector<double> x(layer.rows * k, INFINITY), dy(layer.rows * n, NAN);
  std::copy_n(layer.x.values.begin() + begin * k, count * k, x.begin() + begin * k);
  std::copy_n(layer.dy.values.begin() + begin * n, count * n, dy.begin() + begin * n);
  alone.x = TestArray(true, x);
  alone.dy = TestArray(true, dy);
  alone.w = TestArray(true, layer.w.values);
  const GpuFp8Layer::Results got = alone.Run(false, false);
  const auto expect_part = [](const TestArray& a, const TestArray& b, int64_t first, int64_t size) {
    const std::vector<double> left = a.Read(), right = b.Read();
    for (int64_t i = first; i < first + size; ++i) ASSERT_EQ(left[i], right[i]) << i;
  };
  expect_part(got.y, all.y, begin * n, count * n);
  expect_part(got.dx, all.dx, begin * k, count * k);
  expect_part(got.dw, all.dw, n * k, n * k);
  EXPECT_FALSE(std::isfinite(got.y.Read()[0]));
  EXPECT_FALSE(std::isfinite(got.dw.Read()[0]));
}

TEST_F(TrainFp8, WrongSizesAreRefused) {
  const TestFp8 operand(128 * 128, 128);
  const TestArray y = TestArray::Filled(false, 128 * 128, kOld);
  const auto product = [&](const ProductShape& shape) {
    Fp8Product(shape, operand.view, operand.view, y, false, nullptr);
  };
  EXPECT_THROW(product({.rows = 4, .n = 64, .k = 128}), Error);
  EXPECT_THROW(product({.rows = 4, .n = 128, .k = 192}), Error);
  EXPECT_THROW(product({.rows = 4, .n = 128, .k = 128, .groups = 2}), Error);
  EXPECT_THROW(product({.rows = 4, .n = 128, .k = 128, .ldx = 256}), Error);
  EXPECT_THROW(QuantizeRows({.rows = 1, .width = 64}, nullptr, operand.view, nullptr), Error);
}

}  // namespace
}  // namespace switchyard::train::gpu
