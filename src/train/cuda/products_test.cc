#include "train/cuda/products.h"

#include <gtest/gtest.h>

#include <numeric>

#include "core/error.h"
#include "train/cuda/router_products.h"
#include "train/cuda/testing.h"

namespace switchyard::train::gpu {
namespace {

constexpr double kUntouched = 0.75;  // old values, too, of outputs that are added to

// A layer with random operands. Strides are larger than dense ones if `padded`.
struct Layer {
  Layer(bool bf16, std::vector<int32_t> row_counts, int64_t outputs, int64_t inputs, bool padded,
        bool bf16_output, std::mt19937& random)
      : n(outputs), k(inputs), counts(std::move(row_counts)), begins(counts.size() + 1) {
    std::partial_sum(counts.begin(), counts.end(), begins.begin() + 1);
    rows = begins.back() + 5;  // rows of no group at the end
    groups = static_cast<int>(counts.size());
    ldx = k + (padded ? 8 : 0);
    ldy = n + (padded ? 16 : 0);
    ldw = k + (padded ? 24 : 0);
    stride = n * ldw + (padded ? 32 : 0);
    device_begins = Upload(begins);
    x.emplace_back(TestArray::Random(bf16, rows * ldx, random));
    w.emplace_back(TestArray::Random(bf16, groups * stride, random));
    dy.emplace_back(TestArray::Random(bf16, rows * ldy, random));
    y.emplace_back(TestArray::Filled(bf16_output, rows * ldy, kUntouched));
    dx.emplace_back(TestArray::Filled(bf16_output, rows * ldx, kUntouched));
    dw.emplace_back(TestArray::Filled(false, groups * stride, kUntouched));
  }
  ProductShape shape() const {
    return {.rows = rows,
            .n = n,
            .k = k,
            .groups = groups,
            .begins = device_begins.as<int32_t>(),
            .ldx = ldx,
            .ldy = ldy,
            .ldw = ldw,
            .group_stride = stride};
  }
  void Run(bool accumulate) const {
    LinearForward(shape(), x[0], w[0], y[0], accumulate, nullptr);
    LinearInputGradient(shape(), dy[0], w[0], dx[0], accumulate, nullptr);
    LinearWeightGradient(shape(), dy[0], x[0], dw[0].floats(), accumulate, nullptr);
  }
  void Expect(bool accumulate) const {
    std::vector<double> want_y = y[0].values, want_dx = dx[0].values, want_dw = dw[0].values;
    const double old = accumulate ? kUntouched : 0.0;
    for (int g = 0; g < groups; ++g) {
      const double* weight = w[0].values.data() + g * stride;
      for (int64_t i = 0; i < n; ++i) std::fill_n(want_dw.data() + g * stride + i * ldw, k, old);
      for (int64_t r = begins[g]; r < begins[g + 1]; ++r) {
        const double *in = x[0].values.data() + r * ldx, *back = dy[0].values.data() + r * ldy;
        double *out = want_y.data() + r * ldy, *din = want_dx.data() + r * ldx;
        std::fill_n(out, n, old);
        std::fill_n(din, k, old);
        for (int64_t i = 0; i < n; ++i) {
          double* gradient = want_dw.data() + g * stride + i * ldw;
          for (int64_t j = 0; j < k; ++j) {
            out[i] += in[j] * weight[i * ldw + j];
            din[j] += back[i] * weight[i * ldw + j];
            gradient[j] += back[i] * in[j];
          }
        }
      }
    }
    const std::string sizes = " of n " + std::to_string(n) + ", k " + std::to_string(k) +
                              (x[0].bf16() ? ", bfloat16" : ", float32");
    const double tolerance = 2e-5;  // float32 sums
    ExpectClose(y[0], want_y, tolerance, "output" + sizes);
    ExpectClose(dx[0], want_dx, tolerance, "gradient of the input" + sizes);
    ExpectClose(dw[0], want_dw, tolerance, "gradient of the weight" + sizes);
  }

  int64_t n, k, rows, ldx, ldy, ldw, stride;
  int groups;
  std::vector<int32_t> counts, begins;
  cuda::DeviceMemory device_begins;
  std::vector<TestArray> x, w, dy, y, dx, dw;  // one each
};

class TrainProducts : public TrainCudaTest {};

TEST_F(TrainProducts, RaggedGroupsInFloat32) {
  for (const bool accumulate : {false, true}) {
    const Layer layer(false, {0, 3, 70, 0, 0, 129, 1}, 37, 45, false, false, random_);
    layer.Run(accumulate);
    layer.Expect(accumulate);
  }
}

TEST_F(TrainProducts, RaggedGroupsInBFloat16) {
  struct Sizes {
    std::vector<int32_t> counts;
    int64_t n, k;
  };
  // Tiles are 128 × 256 in pairs of blocks, and 64 along the inner dimension.
  const Sizes all[] = {{{5}, 8, 8},
                       {{64, 128}, 64, 64},
                       {{0, 1, 127, 0, 129, 63, 65, 0}, 72, 136},
                       {{140, 0, 20}, 520, 264},
                       {{0, 0}, 64, 128},
                       {{33, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2,
                         2,  2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 0, 40},
                        40,
                        96}};
  for (const Sizes& s : all)
    for (const bool accumulate : {false, true})
      for (const bool rounds : {false, true}) {
        const Layer layer(true, s.counts, s.n, s.k, accumulate, rounds, random_);
        layer.Run(accumulate);
        layer.Expect(accumulate);
      }
}

TEST_F(TrainProducts, DenseRowsNeedNoRanges) {
  for (const int64_t rows : {1, 100, 1200}) {
    const int64_t n = 136, k = 200;
    const TestArray x = TestArray::Random(true, rows * k, random_),
                    w = TestArray::Random(true, n * k, random_),
                    y = TestArray::Filled(false, rows * n, kUntouched);
    LinearForward({.rows = rows, .n = n, .k = k}, x, w, y, false, nullptr);
    std::vector<double> want(rows * n);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = 0; i < n; ++i)
        want[r * n + i] =
            std::inner_product(x.values.begin() + r * k, x.values.begin() + (r + 1) * k,
                               w.values.begin() + i * k, 0.0);
    ExpectClose(y, want, 2e-5, "output");
  }
}

// Rows of the next group are not part of a group's sums, even if they are not finite.
TEST_F(TrainProducts, BitsOfAGroupDoNotDependOnOthers) {
  const int64_t n = 64, k = 72;
  const Layer layer(true, {70, 150, 9}, n, k, false, false, random_);
  layer.Run(false);
  const std::vector<double> y = layer.y[0].Read(), dx = layer.dx[0].Read(), dw = layer.dw[0].Read();
  // Group 1 alone, between rows that are not finite.
  const int64_t begin = 70, count = 150;
  std::vector<double> x_values(layer.rows * k, INFINITY), dy_values(layer.rows * n, NAN);
  std::copy_n(layer.x[0].values.begin() + begin * k, count * k, x_values.begin() + begin * k);
  std::copy_n(layer.dy[0].values.begin() + begin * n, count * n, dy_values.begin() + begin * n);
  const TestArray x(true, x_values), dy(true, dy_values),
      w(true, {layer.w[0].values.begin() + n * k, layer.w[0].values.begin() + 2 * n * k}),
      got_y = TestArray::Filled(false, layer.rows * n, kUntouched),
      got_dx = TestArray::Filled(false, layer.rows * k, kUntouched),
      got_dw = TestArray::Filled(false, n * k, kUntouched);
  const cuda::DeviceMemory begins = Upload(std::vector<int32_t>{begin, begin + count});
  const ProductShape shape = {
      .rows = layer.rows, .n = n, .k = k, .groups = 1, .begins = begins.as<int32_t>()};
  LinearForward(shape, x, w, got_y, false, nullptr);
  LinearInputGradient(shape, dy, w, got_dx, false, nullptr);
  LinearWeightGradient(shape, dy, x, got_dw.floats(), false, nullptr);
  const std::vector<double> alone_y = got_y.Read(), alone_dx = got_dx.Read(),
                            alone_dw = got_dw.Read();
  for (int64_t i = 0; i < layer.rows * n; ++i) {
    const bool own = i >= begin * n && i < (begin + count) * n;
    ASSERT_EQ(alone_y[i], own ? y[i] : kUntouched);
  }
  for (int64_t i = 0; i < layer.rows * k; ++i) {
    const bool own = i >= begin * k && i < (begin + count) * k;
    ASSERT_EQ(alone_dx[i], own ? dx[i] : kUntouched);
  }
  for (int64_t i = 0; i < n * k; ++i) ASSERT_EQ(alone_dw[i], dw[n * k + i]);
}

TEST_F(TrainProducts, RouterLogitsUseFloat32Weights) {
  const int64_t rows = 90, n = 20, k = 64;
  const TestArray x = TestArray::Random(true, rows * k, random_),
                  w = TestArray::Random(false, n * k, random_),
                  y = TestArray::Filled(false, rows * n, kUntouched);
  LinearForward({.rows = rows, .n = n, .k = k}, x, w, y, false, nullptr);
  std::vector<double> want(rows * n);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < n; ++i)
      want[r * n + i] = std::inner_product(x.values.begin() + r * k, x.values.begin() + (r + 1) * k,
                                           w.values.begin() + i * k, 0.0);
  ExpectClose(y, want, 1e-6, "logits");
}

TEST_F(TrainProducts, RouterGradientsKeepMoreThanBFloat16) {
  for (const int64_t n : {16, 20}) {  // with parts, and with the plain kernel
    const int64_t m = 150, k = 72;
    const TestArray x = TestArray::Random(true, m * k, random_),
                    w = TestArray::Random(false, n * k, random_),
                    dlogits = TestArray::Random(false, m * n, random_),
                    logits = TestArray::Filled(false, m * n, kUntouched),
                    dx = TestArray::Random(false, m * k, random_),
                    dw = TestArray::Random(false, n * k, random_);
    const cuda::DeviceMemory scratch(static_cast<size_t>(RouterProductScratch(m, n, k)));
    const RouterProduct p = {.m = m,
                             .n = n,
                             .k = k,
                             .x = static_cast<const BF16*>(ConstArray(x).data),
                             .w = w.floats(),
                             .scratch = scratch.data()};
    std::vector<double> want(m * n), want_dx = dx.values, want_dw = dw.values;
    for (int64_t t = 0; t < m; ++t)
      for (int64_t e = 0; e < n; ++e)
        for (int64_t i = 0; i < k; ++i) {
          want[t * n + e] += x.values[t * k + i] * w.values[e * k + i];
          want_dx[t * k + i] += dlogits.values[t * n + e] * w.values[e * k + i];
          want_dw[e * k + i] += dlogits.values[t * n + e] * x.values[t * k + i];
        }
    RouterLogits(p, logits.floats(), nullptr);
    RouterProductGradients(p, dlogits.floats(), dx.floats(), dw.floats(), nullptr);
    ExpectClose(logits, want, 5e-6, "logits");
    ExpectClose(dx, want_dx, 5e-5, "gradient of the input");
    ExpectClose(dw, want_dw, 5e-5, "gradient of the weight");
  }
}

TEST_F(TrainProducts, WrongSizesAreRefused) {
  const TestArray a = TestArray::Filled(false, 64, 0);
  EXPECT_THROW(LinearForward({.rows = 1, .n = 8, .k = 8, .groups = 2}, a, a, a, false, nullptr),
               Error);
  EXPECT_THROW(LinearForward({.rows = 1, .n = 0, .k = 8}, a, a, a, false, nullptr), Error);
  EXPECT_THROW(LinearForward({.rows = 1, .n = 8, .k = 8, .groups = kMaxProductGroups + 1}, a, a, a,
                             false, nullptr),
               Error);
}

}  // namespace
}  // namespace switchyard::train::gpu
