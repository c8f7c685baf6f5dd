// Random GEMM cases, and the rounding that a GPU applies to their inputs.
#pragma once

#include "kernels/cuda/device/device_testing.h"
#include "quant/activations.h"

namespace switchyard::kernels {

inline constexpr int64_t kRows[] = {1, 2, 7, 8, 9, 16, 17, 31, 33, 64, 65, 129, 300};

class ProductsTest : public DeviceTest {
 protected:
  struct Case {
    WeightView w;
    std::vector<float> x, bias, y;
    int64_t m, ldx, ldy;
    bool with_bias, accumulate;
    LinearParams Params() {
      return {.x = x.data(),
              .ldx = ldx,
              .w = w,
              .bias = with_bias ? bias.data() : nullptr,
              .y = y.data(),
              .ldy = ldy,
              .m = m,
              .accumulate = accumulate};
    }
  };

  Case MakeCase(WeightFormat format, int64_t m, bool ragged) {
    Case c;
    const int64_t n = ragged ? 1 + random_.Below(200) : 64 * (1 + random_.Below(6));
    const int64_t k = ragged ? 1 + random_.Below(700) : 128 * (1 + random_.Below(6));
    c.w = random_.Weight(format, n, k);
    c.m = m;
    c.ldx = k + (ragged ? random_.Below(3) : 0);
    c.ldy = n + (ragged ? random_.Below(3) : 0);
    c.x = random_.Normal(m * c.ldx);
    c.bias = random_.Normal(n);
    c.y = random_.Normal(m * c.ldy);
    c.with_bias = random_.Below(2) == 0;
    c.accumulate = random_.Below(3) == 0;
    return c;
  }

  // Returns w, rounded as `device` rounds it when it places the weight.
  WeightView RoundedWeight(Device& device, const WeightView& w, const WeightView& placed) {
    if (&device != fast_.get() || placed.format != WeightFormat::kBF16) return w;
    std::vector<float> values(w.n * w.k);
    for (int64_t i = 0; i < w.n; ++i) DequantizeRow(w, i, 0, w.k, &values[i * w.k]);
    return Quantize(WeightFormat::kBF16, values, w.n, w.k);
  }

  // Returns x, rounded as `device` rounds it for a GEMM with a placed weight.
  std::vector<float> RoundedInput(Device& device, const WeightView& placed,
                                  const std::vector<float>& x, int64_t m, int64_t ldx) {
    std::vector<float> rounded = x;
    if (&device != fast_.get()) return rounded;
    const bool fp8 = placed.format == WeightFormat::kFp8Block;
    for (int64_t i = 0; i < m; ++i) {
      float* row = &rounded[i * ldx];
      if (fp8) RoundActivations(ActivationFormat::kFp8Group, 1.0f, row, placed.k, row);
      if (placed.format == WeightFormat::kBF16) {
        RoundActivations(placed.activation, placed.input_scale, row, placed.k, row);
        RoundTo(DType::kBF16, row, placed.k, pool_);
      }
    }
    return rounded;
  }

  // Tolerance relative to ‖x‖ ‖w‖. Tensor core sums of FP8 products have fewer bits within 128
  // elements.
  double Tolerance(Device& device, WeightFormat placed) {
    if (&device == exact_.get() || placed == WeightFormat::kF32) return 40 * kEpsilon;
    return placed == WeightFormat::kFp8Block ? 1e-3 : 100 * kEpsilon;
  }

  void CheckLinear(Device& device, Case c) {
    const WeightView placed = device.Place(c.w);
    Case expected = c;
    expected.w = RoundedWeight(device, c.w, placed);
    expected.w.activation = &device == exact_.get() || placed.format == WeightFormat::kF32
                                ? c.w.activation
                                : ActivationFormat::kNone;
    expected.x = RoundedInput(device, placed, c.x, c.m, c.ldx);
    cpu_->Linear(expected.Params());

    const DeviceVector x(device, c.x), bias(device, c.bias), y(device, c.y);
    LinearParams p = c.Params();
    p.x = x.data();
    p.w = placed;
    p.bias = c.with_bias ? bias.data() : nullptr;
    p.y = y.data();
    device.Linear(p);
    const std::vector<float> got = y.Read();

    const double tolerance = Tolerance(device, placed.format);
    std::vector<float> row(c.w.k);
    for (int64_t n = 0; n < c.w.n; ++n) {
      DequantizeRow(c.w, n, 0, c.w.k, row.data());
      const double w_norm = Norm(row.data(), c.w.k);
      for (int64_t i = 0; i < c.m; ++i) {
        const double bound = tolerance * (Norm(&c.x[i * c.ldx], c.w.k) * w_norm + 4);
        ASSERT_NEAR(got[i * c.ldy + n], expected.y[i * c.ldy + n], bound)
            << device.Describe() << " " << Name(c.w.format) << " as " << Name(placed.format)
            << ", m " << c.m << " n " << c.w.n << " k " << c.w.k << " at " << i << ", " << n;
      }
    }
    for (int64_t i = 0; i < c.m; ++i) {
      for (int64_t j = c.w.n; j < c.ldy; ++j) ASSERT_EQ(got[i * c.ldy + j], c.y[i * c.ldy + j]);
    }
  }
};

}  // namespace switchyard::kernels
