// Fused ops have the same bits as the ops that they replace.
#include "kernels/fused_ops.h"

#include <array>

#include "kernels/cuda/device/device_testing.h"
#include "quant/fp8.h"

namespace switchyard::kernels {
namespace {

class FusedOpsTest : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped()) return;
    device_ = fast_.get();
    plain_ = MakeCudaDevice({.dtype = DType::kBF16,
                             .max_tokens = kMaxTokens,
                             .max_sequences = kMaxSequences,
                             .max_pages = kMaxPages,
                             .fused = false});
    ASSERT_NE(device_->fused(), nullptr);
    EXPECT_EQ(plain_->fused(), nullptr);
  }
  Device* device_ = nullptr;
  std::unique_ptr<Device> plain_;  // without early launch
};

std::vector<uint16_t> Halves(std::vector<float> values) {
  std::vector<uint16_t> halves(values.size());
  for (size_t i = 0; i < values.size(); ++i) halves[i] = ToBF16(values[i]).bits;
  return halves;
}

TEST_F(FusedOpsTest, AddNormHasTheBitsOfSumAndNorm) {
  for (int round = 0; round < 60; ++round) {
    const int64_t m = random_.Pick<int64_t>({0, 1, 2, 17, 33, 300});
    const int64_t n =
        random_.Pick<int64_t>({4, 64, 132, 1000, 1024, 1028, 2048, 4100, 7168, 8192, 9000});
    const bool adds = round % 3 != 0, floats = round % 4 != 1, halves = round % 4 != 2;
    const std::vector<float> x = random_.Normal(m * n), add = random_.Normal(m * n);
    const std::vector<float> weight = random_.Normal(n), none(m * n);
    const DeviceVector w(*device_, weight), branch(*device_, add);
    const DeviceVector want_x(*device_, x), want_y(*device_, none);
    if (adds) device_->AddInPlace(want_x.data(), branch.data(), m * n);
    device_->RmsNorm({.x = want_x.data(),
                      .ldx = n,
                      .weight = w.data(),
                      .y = want_y.data(),
                      .ldy = n,
                      .m = m,
                      .n = n});
    const DeviceVector got_x(*device_, x), got_y(*device_, none);
    const DeviceVector got_halves(*device_, std::vector<uint16_t>(m * n));
    device_->fused()->AddNorm(
        {.x = got_x.data(),
         .add = adds ? branch.data() : nullptr,
         .weight = w.data(),
         .y = floats ? got_y.data() : nullptr,
         .rounded = {.form = halves ? RoundedForm::kBFloat16 : RoundedForm::kNone,
                     .data = halves ? got_halves.data() : nullptr},
         .m = m,
         .n = n});
    EXPECT_TRUE(SameBits(got_x.Read(), want_x.Read())) << "m " << m << " n " << n;
    const std::vector<float> y = want_y.Read();
    EXPECT_TRUE(SameBits(got_y.Read(), floats ? y : none)) << "m " << m << " n " << n;
    EXPECT_EQ(got_halves.Read(), Halves(halves ? y : none)) << "m " << m << " n " << n;
  }
}

TEST_F(FusedOpsTest, AddNormQuantizesLikeTheCpu) {
  for (const int64_t n : {128, 1024, 1152, 2048, 8192, 8320}) {
    for (const int64_t m : {1, 3, 40}) {
      SCOPED_TRACE(testing::Message() << "m " << m << " n " << n);
      const int64_t groups = n / 128, stride = (m + 3) / 4 * 4;
      const std::vector<float> x = random_.Normal(m * n);
      const DeviceVector residual(*device_, x), weight(*device_, random_.Normal(n));
      const DeviceVector add(*device_, random_.Normal(m * n)), normed(*device_, x);
      const DeviceVector codes(*device_, std::vector<uint8_t>(m * n));
      const DeviceVector scales(*device_, std::vector<float>(groups * stride));
      device_->fused()->AddNorm({.x = residual.data(),
                                 .add = add.data(),
                                 .weight = weight.data(),
                                 .y = normed.data(),
                                 .rounded = {.form = RoundedForm::kFp8Groups,
                                             .data = codes.data(),
                                             .scales = scales.data(),
                                             .scale_stride = stride},
                                 .m = m,
                                 .n = n});
      const std::vector<float> y = normed.Read(), got_scales = scales.Read();
      std::vector<uint8_t> want(m * n);
      for (int64_t t = 0; t < m; ++t) {
        std::vector<float> of_row(groups);
        QuantizeFp8Groups(&y[t * n], n, &want[t * n], of_row.data());
        for (int64_t g = 0; g < groups; ++g) EXPECT_EQ(got_scales[g * stride + t], of_row[g]);
      }
      EXPECT_EQ(codes.Read(), want);
    }
  }
}

struct HeadsCase {
  int64_t m, heads, kv_heads, head_dim, rotary_dim;
  bool norm, interleaved;
  DType dtype;
};

TEST_F(FusedOpsTest, HeadsToCacheHasTheBitsOfItsOps) {
  constexpr int64_t kSlots = 400, kPositions = 100;
  for (int round = 0; round < 120; ++round) {
    const int64_t kv_heads = 1 + random_.Below(4), dim = random_.Pick<int64_t>({64, 80, 128, 256});
    HeadsCase c = {.m = random_.Pick<int64_t>({0, 1, 7, 64, 300}),
                   .heads = kv_heads * (1 + random_.Below(8)),
                   .kv_heads = kv_heads,
                   .head_dim = dim,
                   .rotary_dim = random_.Pick<int64_t>({0, dim / 2, dim}),
                   .norm = random_.Below(3) > 0,
                   .interleaved = random_.Below(2) == 0,
                   .dtype = random_.Pick({DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3})};
    // So many heads that WholeHeadsKernel processes several heads per warp.
    if (round % 3 == 0 && kv_heads == 4 && (dim == 64 || dim == 128)) {
      c.m = 300;
      c.heads = 64;
      c.rotary_dim = dim;
      c.interleaved = false;
    }
    SCOPED_TRACE(::testing::Message() << "round " << round << " m " << c.m << " heads " << c.heads
                                      << " of " << kv_heads << " dim " << dim);
    const int64_t q_width = c.heads * dim, kv_width = kv_heads * dim, ld = q_width + 2 * kv_width;
    const DeviceVector table(*device_, random_.Normal(kPositions * std::max<int64_t>(dim, 1)));
    const DeviceVector q_norm(*device_, random_.Normal(dim)), k_norm(*device_, random_.Normal(dim));
    std::vector<int32_t> positions(c.m + 1), slots = random_.Shuffled(kSlots);
    slots.resize(c.m + 1);
    for (int32_t& position : positions) position = static_cast<int32_t>(random_.Below(kPositions));
    if (c.m > 1) slots[random_.Below(c.m)] = -1;
    const DeviceVector at(*device_, positions), to(*device_, slots);
    const std::vector<float> qkv = random_.Normal(c.m * ld);
    const DeviceVector k_scales(*device_, std::vector<float>{0.3f, 0.01f, 2.0f, 0.7f});
    const DeviceVector v_scales(*device_, std::vector<float>{1.1f, 0.002f, 5.0f, 0.06f});
    const bool scaled = c.dtype == DType::kF8E4M3 && random_.Below(2) == 0;
    const float* const scales_of_k = scaled ? k_scales.data() : nullptr;
    const float* const scales_of_v = scaled ? v_scales.data() : nullptr;
    const std::vector<uint8_t> cache(kSlots * kv_width * SizeOf(c.dtype), 3);

    // Runs the separate ops, as layers do without fused ops.
    const auto part = [&](int64_t begin, int64_t width) {
      std::vector<float> values;
      for (int64_t t = 0; t < c.m; ++t)
        values.insert(values.end(), qkv.begin() + t * ld + begin,
                      qkv.begin() + t * ld + begin + width);
      return DeviceVector(*device_, values);
    };
    const DeviceVector q = part(0, q_width), k = part(q_width, kv_width);
    const DeviceVector v = part(q_width + kv_width, kv_width);
    const DeviceVector want_k(*device_, cache), want_v(*device_, cache);
    const std::array<std::tuple<float*, int64_t, float*>, 2> normed = {
        {{q.data(), c.heads, q_norm.data()}, {k.data(), kv_heads, k_norm.data()}}};
    for (const auto& [rows, heads, weight] : normed) {
      if (c.norm)
        device_->RmsNorm({.x = rows,
                          .ldx = dim,
                          .weight = weight,
                          .y = rows,
                          .ldy = dim,
                          .m = c.m * heads,
                          .n = dim});
      device_->Rope({.x = rows,
                     .ldx = heads * dim,
                     .m = c.m,
                     .heads = heads,
                     .head_dim = dim,
                     .rotary_dim = c.rotary_dim,
                     .interleaved = c.interleaved,
                     .positions = at.data(),
                     .cos_sin = table.data()});
    }
    const std::array<std::tuple<float*, const float*, uint8_t*>, 2> stored = {
        {{k.data(), scales_of_k, want_k.data()}, {v.data(), scales_of_v, want_v.data()}}};
    for (const auto& [rows, scales, into] : stored)
      device_->StoreKv({.x = rows,
                        .ldx = kv_width,
                        .m = c.m,
                        .n = kv_width,
                        .slots = to.data(),
                        .cache = into,
                        .dtype = c.dtype,
                        .scales = scales,
                        .heads = kv_heads});

    const DeviceVector all(*device_, qkv), again(*device_, qkv);
    const DeviceVector got_k(*device_, cache), got_v(*device_, cache);
    ASSERT_TRUE(device_->fused()->SupportsHeads(dim, c.rotary_dim));
    kernels::NormRopeStoreKvParams fused = {.qkv = all.data(),
                                            .q_norm = c.norm ? q_norm.data() : nullptr,
                                            .k_norm = c.norm ? k_norm.data() : nullptr,
                                            .m = c.m,
                                            .heads = c.heads,
                                            .kv_heads = kv_heads,
                                            .head_dim = dim,
                                            .rotary_dim = c.rotary_dim,
                                            .interleaved = c.interleaved,
                                            .positions = at.data(),
                                            .cos_sin = table.data(),
                                            .slots = to.data(),
                                            .k_cache = got_k.data(),
                                            .v_cache = got_v.data(),
                                            .kv_dtype = c.dtype,
                                            .k_scales = scales_of_k,
                                            .v_scales = scales_of_v};
    device_->fused()->NormRopeStoreKv(fused);
    const std::vector<float> got = all.Read(), want = q.Read();
    for (int64_t t = 0; t < c.m; ++t)
      ASSERT_TRUE(SameBits(&got[t * ld], &want[t * q_width], q_width)) << "row " << t;
    EXPECT_EQ(got_k.Read(), want_k.Read());
    EXPECT_EQ(got_v.Read(), want_v.Read());

    fused.qkv = again.data();
    fused.bf16_queries = true;
    device_->fused()->NormRopeStoreKv(fused);
    const std::vector<float> halves = again.Read();
    for (int64_t t = 0; t < c.m; ++t) {
      for (int64_t h = 0; h < c.heads; ++h) {
        const auto* rounded = reinterpret_cast<const uint16_t*>(&halves[t * ld + h * dim]);
        for (int64_t i = 0; i < dim; ++i)
          ASSERT_EQ(rounded[i], ToBF16(want[t * q_width + h * dim + i]).bits)
              << "row " << t << ", head " << h;
      }
    }
  }
}

TEST_F(FusedOpsTest, StackedFp8BlocksHaveTheBitsOfSingleOnes) {
  const int64_t k = 384;
  const std::vector<int64_t> sizes = {256, 128, 128};
  std::vector<WeightView> parts;
  for (const int64_t n : sizes)
    parts.push_back(device_->Place(random_.Weight(WeightFormat::kFp8Block, n, k, 0, 1, 0)));
  const WeightView stacked = device_->fused()->ConcatenateRows(parts);
  ASSERT_TRUE(stacked.defined());
  ASSERT_EQ(stacked.n, 512);
  for (const int64_t m : {1, 77, 300}) {
    const DeviceVector x(*device_, random_.Normal(m * k));
    const DeviceVector got(*device_, std::vector<float>(m * stacked.n));
    const DeviceVector views(*device_, std::vector<float>(m * stacked.n));
    const DeviceVector want(*device_, std::vector<float>(m * stacked.n));
    const auto multiply = [&](const WeightView& w, float* y) {
      device_->Linear({.x = x.data(), .ldx = k, .w = w, .y = y, .ldy = stacked.n, .m = m});
    };
    multiply(stacked, got.data());
    int64_t row = 0;
    for (const WeightView& part : parts) {
      multiply(part, want.data() + row);
      multiply(stacked.Rows(row, row + part.n), views.data() + row);
      row += part.n;
    }
    const std::vector<float> result = got.Read();
    EXPECT_TRUE(SameBits(result, want.Read())) << m;
    EXPECT_TRUE(SameBits(result, views.Read())) << m;
  }
  parts[1] = parts[1].Rows(0, 64);  // its block of scales would also cover rows of parts[2]
  EXPECT_FALSE(device_->fused()->ConcatenateRows(parts).defined());
}

// A layer's ops from the residual stream to the QKV projection; run directly, captured and
// replayed, because early launch applies in graphs too.
class StackedProductsTest : public FusedOpsTest,
                            public testing::WithParamInterface<WeightFormat> {};

TEST_P(StackedProductsTest, HaveTheBitsOfSingleOnes) {
  if (!cuda::IsHopper()) GTEST_SKIP() << "needs a Hopper GPU: only DenseGemm takes rounded rows";
  const bool fp8 = GetParam() == WeightFormat::kFp8Block;
  const int64_t k = 512;
  const std::vector<int64_t> sizes = {256, 128, 128};
  std::vector<WeightView> parts;
  for (const int64_t n : sizes)
    parts.push_back(device_->Place(random_.Weight(GetParam(), n, k, 0, 1, 0)));
  const WeightView stacked = device_->fused()->ConcatenateRows(parts);
  ASSERT_TRUE(stacked.defined());
  ASSERT_EQ(stacked.n, 512);
  const DeviceVector weight(*device_, random_.Normal(k));
  uint64_t key = 0;
  for (const int64_t m : {1, 16, 77, fp8 ? 128 : 300}) {
    const std::vector<float> x = random_.Normal(m * k), zeros(m * k);
    const DeviceVector residual(*device_, x), add(*device_, zeros), normed(*device_, zeros);
    const DeviceVector elements(*device_, std::vector<uint16_t>(m * k));
    const int64_t stride = (m + 3) / 4 * 4;
    const DeviceVector scales(*device_, std::vector<float>(k / 128 * stride));
    const DeviceVector got(*device_, std::vector<float>(m * stacked.n));
    const LinearParams product = {.w = stacked, .y = got.data(), .ldy = stacked.n, .m = m};
    const RoundedRows rounded = {.form = device_->fused()->InputFormOf(product),
                                 .data = elements.data(),
                                 .scales = scales.data(),
                                 .scale_stride = stride};
    ASSERT_EQ(rounded.form, fp8 ? RoundedForm::kFp8Groups : RoundedForm::kBFloat16);
    ++key;
    for (int run = 0; run < 4; ++run) {
      device_->CopyIn(got.data(), std::vector<float>(m * stacked.n).data(), m * stacked.n * 4);
      device_->Run(key, [&] {
        device_->fused()->AddNorm({.x = residual.data(),
                                   .add = add.data(),
                                   .weight = weight.data(),
                                   .y = normed.data(),
                                   .rounded = rounded,
                                   .m = m,
                                   .n = k});
        device_->fused()->LinearOfRoundedRows(product, rounded);
      });
      const std::vector<float> all = got.Read();
      int64_t first = 0;
      for (size_t i = 0; i < parts.size(); ++i) {
        const DeviceVector y(*plain_, std::vector<float>(m * sizes[i]));
        plain_->Linear(
            {.x = normed.data(), .ldx = k, .w = parts[i], .y = y.data(), .ldy = sizes[i], .m = m});
        const std::vector<float> want = y.Read();
        for (int64_t t = 0; t < m; ++t)
          ASSERT_TRUE(SameBits(&all[t * stacked.n + first], &want[t * sizes[i]], sizes[i]))
              << "m " << m << " run " << run << " part " << i << " row " << t;
        first += sizes[i];
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, StackedProductsTest,
                         testing::Values(WeightFormat::kBF16, WeightFormat::kFp8Block),
                         [](const auto& info) {
                           return info.param == WeightFormat::kBF16 ? "Bf16" : "Fp8";
                         });

// GEMMs that read the previous one's output and overwrite its input, in shared buffers. An early
// launch that skips a needed wait gives other bits. Parameterized by format and rows:
// compute-sanitizer's racecheck needs minutes for one case.
class EarlyProductsTest : public FusedOpsTest,
                          public ::testing::WithParamInterface<std::tuple<WeightFormat, int64_t>> {
};

TEST_P(EarlyProductsTest, HaveTheBitsOfThoseThatBeginWhenTheOneAheadHasEnded) {
  constexpr int kProducts = 24;
  const auto [format, m] = GetParam();
  std::vector<WeightView> weights;
  for (int i = 0; i < 4; ++i) {
    const int64_t n = i % 2 == 0 ? 2048 : 768;
    weights.push_back(device_->Place(random_.Weight(format, n, 2816 - n, 0, 1, 0)));
  }
  const std::vector<float> x = random_.Normal(m * 768), empty(m * 2048);
  const DeviceVector ones(*device_, std::vector<float>(768, 1.0f));
  const auto run = [&, rows = m](Device& device, uint64_t key, int passes) {
    const DeviceVector narrow(device, x), wide(device, empty);
    for (int pass = 0; pass < passes; ++pass) {
      device.CopyIn(narrow.data(), x.data(), x.size() * sizeof(float));
      device.Run(key, [&] {
        for (int i = 0; i < kProducts; ++i) {
          const bool up = i % 2 == 0;
          device.Linear({.x = up ? narrow.data() : wide.data(),
                         .ldx = up ? 768 : 2048,
                         .w = weights[i % 4],
                         .y = up ? wide.data() : narrow.data(),
                         .ldy = up ? 2048 : 768,
                         .m = rows});
          // The norm keeps values in a stable range.
          if (!up)
            device.RmsNorm({.x = narrow.data(),
                            .ldx = 768,
                            .weight = ones.data(),
                            .y = narrow.data(),
                            .ldy = 768,
                            .m = rows,
                            .n = 768});
        }
      });
    }
    return narrow.Read();
  };
  const std::vector<float> want = run(*plain_, 0, 1);
  for (const int passes : {1, 2, 4})
    EXPECT_TRUE(SameBits(run(*device_, static_cast<uint64_t>(passes), passes), want))
        << "passes " << passes;
}

INSTANTIATE_TEST_SUITE_P(Shapes, EarlyProductsTest,
                         ::testing::Combine(::testing::Values(WeightFormat::kBF16,
                                                              WeightFormat::kFp8Block),
                                            ::testing::Values<int64_t>(1, 5, 32, 130, 320)),
                         [](const auto& info) {
                           return fmt::format(
                               "{}Rows{}",
                               std::get<0>(info.param) == WeightFormat::kBF16 ? "Bf16" : "Fp8",
                               std::get<1>(info.param));
                         });

TEST_F(FusedOpsTest, WhatCannotBeStackedIsLeft) {
  const auto placed = [&](WeightFormat format, int64_t n, int64_t k) {
    return device_->Place(random_.Weight(format, n, k, 0, 1, 0));
  };
  const WeightView w = placed(WeightFormat::kBF16, 64, 128);
  for (const WeightView& other :
       {placed(WeightFormat::kBF16, 64, 256), placed(WeightFormat::kF32, 64, 128), w.Cols(0, 64)}) {
    const WeightView parts[] = {w, other};
    EXPECT_FALSE(device_->fused()->ConcatenateRows(parts).defined());
  }
}

}  // namespace
}  // namespace switchyard::kernels
