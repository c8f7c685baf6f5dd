// LinearGroup, HeadLinear and Mlp on a GPU against the CPU.
#include <cmath>

#include "kernels/cuda/device/device_products_testing.h"

namespace switchyard::kernels {
namespace {

class ProductGroups : public ProductsTest,
                      public ::testing::WithParamInterface<std::tuple<bool, int64_t>> {};

// A group gives the results of its parts run separately, captured or not.
TEST_P(ProductGroups, AreTheirParts) {
  const auto [exact, m] = GetParam();
  Device* const device = exact ? exact_.get() : fast_.get();
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

INSTANTIATE_TEST_SUITE_P(Shapes, ProductGroups,
                         ::testing::Combine(::testing::Bool(),
                                            ::testing::Values<int64_t>(1, 32, 200)),
                         [](const auto& info) {
                           return fmt::format("{}Rows{}",
                                              std::get<0>(info.param) ? "Exact" : "Fast",
                                              std::get<1>(info.param));
                         });

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
    std::vector<WeightView> weights, placed, rounded_weights;
    for (int64_t h = 0; h < heads; ++h) {
      weights.push_back(random_.Weight(format, n, k));
      placed.push_back(device.Place(weights.back()));
      rounded_weights.push_back(RoundedWeight(device, weights.back(), placed.back()));
    }
    std::vector<float> rounded = x, expected(m * heads * out);
    const bool halves = &device == fast_.get() && format != WeightFormat::kF32;
    if (halves) {
      RoundTo(DType::kBF16, rounded.data(), static_cast<int64_t>(x.size()), pool_);
      for (int64_t h = 0; h < heads; ++h) {  // FP8 blocks are rounded to bfloat16
        std::vector<float> values(n * k);
        for (int64_t i = 0; i < n; ++i) DequantizeRow(weights[h], i, 0, k, &values[i * k]);
        rounded_weights[h] = Quantize(WeightFormat::kBF16, values, n, k);
      }
    }
    HeadLinearParams p = {.x = rounded.data(),
                          .ldx = ldx,
                          .head_stride_x = stride_x,
                          .w = rounded_weights,
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
  constexpr Activation kActivations[] = {Activation::kSwiGluClamped, Activation::kSwiGlu,
                                         Activation::kRelu2, Activation::kSwiGluLimited};
  for (int round = 0; round < 32; ++round) {
    Device& device = round % 2 == 0 ? *exact_ : *fast_;
    const Activation activation = kActivations[round / 2 % 4];
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
    const bool gated = activation != Activation::kRelu2;
    if (!gated) w.up = w.gate, w.up_bias = w.gate_bias;
    std::vector<float> scratch(m * middle), expected(m * hidden);
    const int32_t offsets[] = {0, static_cast<int32_t>(m)};
    GroupedMlpParams p = {.x = x.data(),
                          .ldx = hidden,
                          .experts = {&w, 1},
                          .offsets = offsets,
                          .activation = activation,
                          .limit = 1.0f,
                          .scratch = scratch.data(),
                          .out = expected.data(),
                          .ldo = hidden};
    cpu_->Mlp(p);
    const DeviceVector device_x(device, x), device_scratch(device, scratch), out(device, expected);
    const DeviceVector<float> biases[] = {
        {device, gate_bias}, {device, up_bias}, {device, down_bias}};
    const WeightView gate = device.Place(w.gate);
    ExpertWeights placed = {.gate = gate,
                            .up = gated ? device.Place(w.up) : gate,
                            .down = device.Place(w.down),
                            .gate_bias = biases[0].data(),
                            .up_bias = biases[gated ? 1 : 0].data(),
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
