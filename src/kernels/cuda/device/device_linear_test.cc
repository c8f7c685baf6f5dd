// Linear on a GPU against the CPU, and bits of a row in batches of all sizes.
#include "kernels/cuda/device/device_products_testing.h"

namespace switchyard::kernels {
namespace {

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

// Rows of a batch have the same bits if they are computed one at a time or in small batches.
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

}  // namespace
}  // namespace switchyard::kernels
