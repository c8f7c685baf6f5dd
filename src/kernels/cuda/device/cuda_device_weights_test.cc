// Weight upload, tested with host memory instead of device memory.
#include "kernels/cuda/device/cuda_device_weights.h"

#include <cstring>

#include "kernels/testing.h"

namespace switchyard::cuda {
namespace {

using kernels::kAllFormats;
using kernels::Random;
using kernels::SameBits;

UploadTarget HostMemory() {
  return {
      .allocate = [](size_t bytes) { return std::shared_ptr<void>(calloc(1, bytes), free); },
      .copy_in = [](void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }};
}

TEST(PlaceWeightTest, ViewsOfEveryFormatBecomeCompactMatricesOfTheSameNumbers) {
  Random random(1);
  ThreadPool pool(2);
  for (int round = 0; round < 300; ++round) {
    const WeightFormat format = kAllFormats[round % std::size(kAllFormats)];
    const DType dtype = random.Pick({DType::kF32, DType::kBF16});
    const int64_t n = 1 + random.Below(300), k = random.Pick<int64_t>({1, 7, 64, 128, 300, 512});
    const bool blocks = random.Below(2) == 0, plain = random.Below(4) == 0;
    WeightView w = random.Weight(format, n, k, blocks ? 128 * random.Below(3) : random.Below(140),
                                 blocks ? 1 : 1 + random.Below(2),
                                 blocks ? 128 * random.Below(2) : random.Pick<int64_t>({0, 5, 32}));
    w.activation = ActivationFormat::kFp8Tensor;
    w.input_scale = 0.5f;
    const WeightView placed = UploadWeight(w, DeviceFormat(w, dtype, plain), HostMemory(), pool);
    EXPECT_EQ(placed.format, DeviceFormat(w, dtype, plain));
    EXPECT_TRUE(placed.row0 == 0 && placed.col0 == 0 && placed.row_step == 1);
    EXPECT_TRUE(placed.stored_k == k && placed.k == k && placed.n == n);
    EXPECT_TRUE(placed.activation == w.activation && placed.input_scale == w.input_scale);
    std::vector<float> expected(k), got(k);
    for (int64_t i = 0; i < n; ++i) {
      DequantizeRow(w, i, 0, k, expected.data());
      DequantizeRow(placed, i, 0, k, got.data());
      if (placed.format == WeightFormat::kBF16) {
        for (float& value : expected) value = ToFloat(ToBF16(value));
      }
      ASSERT_TRUE(SameBits(expected, got)) << Name(format) << " as " << Name(placed.format)
                                           << " row " << i << " of " << n << " x " << k;
    }
  }
}

// A later model gets the memory of the first one, and its own weights have no data.
TEST(PlaceWeightTest, MemoryThatHoldsTheWeightIsNotWritten) {
  Random random(2);
  ThreadPool pool(2);
  for (int round = 0; round < 60; ++round) {
    const WeightFormat format = kAllFormats[round % std::size(kAllFormats)];
    const DType dtype = random.Pick({DType::kF32, DType::kBF16});
    const int64_t n = 1 + random.Below(300), k = random.Pick<int64_t>({64, 128, 300, 512});
    WeightView w = random.Weight(format, n, k, 128 * random.Below(3), 1, 0);
    std::shared_ptr<void> memory;
    size_t size = 0;
    UploadTarget target = HostMemory();
    target.allocate = [&](size_t bytes) {
      size = bytes;
      return memory = std::shared_ptr<void>(calloc(1, bytes), free);
    };
    const WeightView first = UploadWeight(w, DeviceFormat(w, dtype), target, pool);
    w.data = w.scales = w.zeros = &w;  // must not be read
    target.copy_in = nullptr;
    target.allocate = [&](size_t bytes) {
      EXPECT_EQ(bytes, size);
      return memory;
    };
    const WeightView again = UploadWeight(w, DeviceFormat(w, dtype), target, pool);
    EXPECT_TRUE(again.data == first.data && again.scales == first.scales);
    EXPECT_TRUE(again.format == first.format && again.n == n && again.k == k);
  }
}

TEST(PlaceWeightTest, FormsFollowTheDevicesDtype) {
  const auto form = [](WeightFormat format, DType dtype, int64_t row0, int64_t col0) {
    return DeviceFormat({.format = format, .row0 = row0, .col0 = col0, .n = 64, .k = 64}, dtype);
  };
  EXPECT_EQ(form(WeightFormat::kF16, DType::kF32, 0, 0), WeightFormat::kF16);
  EXPECT_EQ(form(WeightFormat::kF16, DType::kBF16, 0, 0), WeightFormat::kBF16);
  EXPECT_EQ(form(WeightFormat::kF32, DType::kBF16, 3, 5), WeightFormat::kF32);
  EXPECT_EQ(form(WeightFormat::kFp8Block, DType::kBF16, 128, 256), WeightFormat::kFp8Block);
  EXPECT_EQ(form(WeightFormat::kFp8Block, DType::kBF16, 64, 0), WeightFormat::kBF16);
  EXPECT_EQ(form(WeightFormat::kFp8Block, DType::kF32, 0, 1), WeightFormat::kF32);
  EXPECT_EQ(form(WeightFormat::kInt8Channel, DType::kF32, 0, 0), WeightFormat::kF32);
  EXPECT_EQ(form(WeightFormat::kNvfp4, DType::kBF16, 0, 0), WeightFormat::kBF16);
}

}  // namespace
}  // namespace switchyard::cuda
