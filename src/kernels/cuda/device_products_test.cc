// Products of a GPU against the CPU's, and the bits of a row in batches of every size.
#include <cmath>

#include "kernels/cuda/device_testing.h"
#include "quant/activations.h"

namespace switchyard::kernels {
namespace {

constexpr int64_t kRows[] = {1, 2, 7, 8, 9, 16, 17, 31, 33, 64, 65, 129, 300};

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

  // The weight that `device` makes of w, as float32 on the host.
  WeightView Seen(Device& device, const WeightView& w, const WeightView& placed) {
    if (&device != fast_.get() || placed.format != WeightFormat::kBF16) return w;
    std::vector<float> values(w.n * w.k);
    for (int64_t i = 0; i < w.n; ++i) DequantizeRow(w, i, 0, w.k, &values[i * w.k]);
    return Quantize(WeightFormat::kBF16, values, w.n, w.k);
  }

  // x as the product of `device` with a placed weight takes it.
  std::vector<float> Seen(Device& device, const WeightView& placed, const std::vector<float>& x,
                          int64_t m, int64_t ldx) {
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

  // Of ‖x‖ ‖w‖. The matrix units' sums of FP8 products keep fewer bits within 128 elements.
  double Tolerance(Device& device, WeightFormat placed) {
    if (&device == exact_.get() || placed == WeightFormat::kF32) return 40 * kEpsilon;
    return placed == WeightFormat::kFp8Block ? 1e-3 : 100 * kEpsilon;
  }

  void CheckLinear(Device& device, Case c) {
    const WeightView placed = device.Place(c.w);
    Case expected = c;
    expected.w = Seen(device, c.w, placed);
    expected.w.activation = &device == exact_.get() || placed.format == WeightFormat::kF32
                                ? c.w.activation
                                : ActivationFormat::kNone;
    expected.x = Seen(device, placed, c.x, c.m, c.ldx);
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

TEST_F(ProductsTest, LinearMatchesTheCpu) {
  for (int round = 0; round < 108; ++round) {
    const WeightFormat format = kAllFormats[round % std::size(kAllFormats)];
    Case c = MakeCase(format, kRows[random_.Below(std::size(kRows))], round % 2 == 0);
    CheckLinear(*exact_, c);
    CheckLinear(*fast_, c);
  }
}

TEST_F(ProductsTest, ActivationFormatsRoundAsOnTheCpu) {
  using A = ActivationFormat;
  for (int round = 0; round < 40; ++round) {
    const WeightFormat format =
        random_.Pick({WeightFormat::kF32, WeightFormat::kFp8Block, WeightFormat::kFp8Channel,
                      WeightFormat::kInt8Channel, WeightFormat::kNvfp4});
    Case c = MakeCase(format, kRows[random_.Below(std::size(kRows))], round % 2 == 0);
    c.w.activation = random_.Pick({A::kFp8Group, A::kFp8Token, A::kFp8Tensor, A::kInt8Token});
    c.w.input_scale = 0.01f;
    CheckLinear(*exact_, c);
  }
}

TEST_F(ProductsTest, PartsOfAPlacedMatrixAreWeightsToo) {
  for (Device* device : {exact_.get(), fast_.get()}) {
    for (const WeightFormat format :
         {WeightFormat::kF32, WeightFormat::kBF16, WeightFormat::kFp8Block}) {
      const WeightView w = random_.Weight(format, 512, 384), placed = device->Place(w);
      const DeviceVector x(*device, random_.Normal(20 * 384));
      const DeviceVector whole(*device, std::vector<float>(20 * 512));
      const DeviceVector part(*device, std::vector<float>(20 * 128));
      device->Linear(
          {.x = x.data(), .ldx = 384, .w = placed, .y = whole.data(), .ldy = 512, .m = 20});
      device->Linear({.x = x.data(),
                      .ldx = 384,
                      .w = placed.Rows(256, 384),
                      .y = part.data(),
                      .ldy = 128,
                      .m = 20});
      const std::vector<float> all = whole.Read(), some = part.Read();
      for (int64_t i = 0; i < 20; ++i)
        EXPECT_TRUE(SameBits(&all[i * 512 + 256], &some[i * 128], 128)) << Name(format);
    }
  }
}

// Rows of a batch, one by one and in small batches: the same bits.
TEST_F(ProductsTest, ARowHasTheSameBitsInEveryBatch) {
  for (Device* device : {exact_.get(), fast_.get()}) {
    for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kBF16, WeightFormat::kF16,
                                      WeightFormat::kFp8Block, WeightFormat::kMxfp4}) {
      for (const bool ragged : {false, true}) {
        Case c = MakeCase(format, 200, ragged);
        const WeightView placed = device->Place(c.w);
        const DeviceVector x(*device, c.x), bias(*device, c.bias), y(*device, c.y);
        LinearParams p = c.Params();
        p.x = x.data();
        p.w = placed;
        p.bias = bias.data();
        p.y = y.data();
        p.accumulate = false;
        device->Linear(p);
        const std::vector<float> all = y.Read();
        for (const int64_t m : {1, 5, 8, 9, 30, 40, 70, 130}) {
          const int64_t first = random_.Below(200 - m + 1);
          p.x = x.data() + first * c.ldx;
          p.m = m;
          device->Linear(p);
          const std::vector<float> some = y.Read();
          for (int64_t i = 0; i < m; ++i) {
            ASSERT_TRUE(SameBits(&some[i * c.ldy], &all[(first + i) * c.ldy], c.w.n))
                << Name(format) << " as " << Name(placed.format) << ", m " << m << " n " << c.w.n
                << " k " << c.w.k << " row " << first + i;
          }
        }
      }
    }
  }
}

// What a group gives is what its parts give alone, recorded or not.
TEST_F(ProductsTest, AGroupIsItsParts) {
  for (Device* device : {exact_.get(), fast_.get()}) {
    for (const int64_t m : {1, 32, 200}) {
      const int64_t k = 256;
      const DeviceVector x(*device, random_.Normal(m * k));
      std::vector<LinearParams> parts;
      std::vector<DeviceVector<float>> alone, grouped;
      for (const WeightFormat format :
           {WeightFormat::kBF16, WeightFormat::kBF16, WeightFormat::kBF16, WeightFormat::kBF16,
            WeightFormat::kFp8Block, WeightFormat::kF32, WeightFormat::kFp8Block,
            WeightFormat::kBF16}) {
        const int64_t n = 64 * (1 + random_.Below(8));
        parts.push_back({.x = x.data(),
                         .ldx = k,
                         .w = device->Place(random_.Weight(format, n, k)),
                         .ldy = n,
                         .m = m});
        alone.emplace_back(*device, std::vector<float>(m * n));
        grouped.emplace_back(*device, std::vector<float>(m * n));
      }
      for (size_t i = 0; i < parts.size(); ++i) {
        parts[i].y = alone[i].data();
        device->Linear(parts[i]);
        parts[i].y = grouped[i].data();
      }
      for (int round = 0; round < 3; ++round) {
        device->Run(static_cast<uint64_t>(m), [&] { device->LinearGroup(parts); });
        for (size_t i = 0; i < parts.size(); ++i) {
          EXPECT_TRUE(SameBits(alone[i].Read(), grouped[i].Read())) << i << " of m " << m;
          std::vector<float> zeros(m * parts[i].w.n);
          device->CopyIn(grouped[i].data(), zeros.data(), zeros.size() * sizeof(float));
        }
      }
    }
  }
}

TEST_F(ProductsTest, HeadsMatchTheCpuWithTheSameBitsInEveryBatch) {
  for (int round = 0; round < 24; ++round) {
    Device& device = round % 2 == 0 ? *exact_ : *fast_;
    const bool transposed = round % 4 < 2;
    const WeightFormat format =
        random_.Pick({WeightFormat::kF32, WeightFormat::kBF16, WeightFormat::kFp8Block});
    const int64_t heads = random_.Pick<int64_t>({1, 3, 16, 70}), m = 1 + random_.Below(90);
    const int64_t n = random_.Pick<int64_t>({128, 30, 64}), k = random_.Pick<int64_t>({512, 77});
    const int64_t in = transposed ? k : n, out = transposed ? n : k;
    const int64_t stride_x = in + random_.Pick<int64_t>({0, 1, 64}), ldx = heads * stride_x;
    const std::vector<float> x = random_.Normal(m * ldx);
    std::vector<WeightView> weights, placed, seen;
    for (int64_t h = 0; h < heads; ++h) {
      weights.push_back(random_.Weight(format, n, k));
      placed.push_back(device.Place(weights.back()));
      seen.push_back(Seen(device, weights.back(), placed.back()));
    }
    std::vector<float> rounded = x, expected(m * heads * out);
    const bool halves = &device == fast_.get() && format != WeightFormat::kF32;
    if (halves) {
      RoundTo(DType::kBF16, rounded.data(), static_cast<int64_t>(x.size()), pool_);
      for (int64_t h = 0; h < heads; ++h) {  // FP8 blocks are rounded on the way
        std::vector<float> values(n * k);
        for (int64_t i = 0; i < n; ++i) DequantizeRow(weights[h], i, 0, k, &values[i * k]);
        seen[h] = Quantize(WeightFormat::kBF16, values, n, k);
      }
    }
    HeadLinearParams p = {.x = rounded.data(),
                          .ldx = ldx,
                          .head_stride_x = stride_x,
                          .w = seen,
                          .transposed = transposed,
                          .y = expected.data(),
                          .ldy = heads * out,
                          .head_stride_y = out,
                          .m = m};
    cpu_->HeadLinear(p);
    const DeviceVector device_x(device, x), y(device, std::vector<float>(expected.size()));
    p.x = device_x.data();
    p.w = placed;
    p.y = y.data();
    device.HeadLinear(p);
    const std::vector<float> all = y.Read();
    for (size_t i = 0; i < all.size(); ++i)
      ASSERT_NEAR(all[i], expected[i], 2e-4 * std::sqrt(in)) << Name(format) << " " << i;
    p.m = 1 + random_.Below(m);
    const int64_t first = m - p.m;
    p.x += first * ldx;
    device.HeadLinear(p);
    ASSERT_TRUE(SameBits(y.Read().data(), &all[first * heads * out], p.m * heads * out));
  }
}

TEST_F(ProductsTest, MlpMatchesTheCpu) {
  for (int round = 0; round < 24; ++round) {
    Device& device = round % 2 == 0 ? *exact_ : *fast_;
    const WeightFormat format = random_.Pick({WeightFormat::kF32, WeightFormat::kBF16});
    const int64_t hidden = random_.Pick<int64_t>({64, 256, 100});
    const int64_t middle = random_.Pick<int64_t>({128, 192, 33});
    const int64_t m = kRows[random_.Below(std::size(kRows))];
    const std::vector<float> x = random_.Normal(m * hidden);
    const std::vector<float> gate_bias = random_.Normal(middle), up_bias = random_.Normal(middle),
                             down_bias = random_.Normal(hidden);
    const auto weight = [&](int64_t n, int64_t k) {
      std::vector<float> values = random_.Normal(n * k, 1.0f / std::sqrt(static_cast<float>(k)));
      return Quantize(format, values, n, k);
    };
    ExpertWeights w = {.gate = weight(middle, hidden),
                       .up = weight(middle, hidden),
                       .down = weight(hidden, middle),
                       .gate_bias = gate_bias.data(),
                       .up_bias = up_bias.data(),
                       .down_bias = down_bias.data()};
    std::vector<float> scratch(m * middle), expected(m * hidden);
    const int32_t offsets[] = {0, static_cast<int32_t>(m)};
    GroupedMlpParams p = {
        .x = x.data(),
        .ldx = hidden,
        .experts = {&w, 1},
        .offsets = offsets,
        .activation = round % 3 == 0 ? Activation::kSwiGluClamped : Activation::kSwiGlu,
        .scratch = scratch.data(),
        .out = expected.data(),
        .ldo = hidden};
    cpu_->Mlp(p);
    const DeviceVector device_x(device, x), device_scratch(device, scratch), out(device, expected);
    const DeviceVector<float> biases[] = {
        {device, gate_bias}, {device, up_bias}, {device, down_bias}};
    ExpertWeights placed = {.gate = device.Place(w.gate),
                            .up = device.Place(w.up),
                            .down = device.Place(w.down),
                            .gate_bias = biases[0].data(),
                            .up_bias = biases[1].data(),
                            .down_bias = biases[2].data()};
    p.x = device_x.data();
    p.experts = {&placed, 1};
    p.scratch = device_scratch.data();
    p.out = out.data();
    device.Mlp(p);
    const std::vector<float> all = out.Read();
    const bool halves = &device == fast_.get() && format == WeightFormat::kBF16;
    for (size_t i = 0; i < all.size(); ++i)
      ASSERT_NEAR(all[i], expected[i], halves ? 0.1 : 1e-4) << Name(format) << " " << i;
  }
}

}  // namespace
}  // namespace switchyard::kernels
