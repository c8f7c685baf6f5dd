#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/device.h"
#include "kernels/testing.h"

namespace switchyard::kernels {
namespace {

TEST(CpuDeviceTest, MemoryIsZeroedAndAligned) {
  ThreadPool pool(2);
  const std::unique_ptr<Device> device = MakeCpuDevice(pool);
  EXPECT_TRUE(device->is_cpu());
  for (const size_t bytes : {0u, 1u, 1000u, 100000u}) {
    const std::shared_ptr<void> memory = device->Allocate(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.get()) % 256, 0u);
    const auto* data = static_cast<const uint8_t*>(memory.get());
    for (size_t i = 0; i < bytes; ++i) ASSERT_EQ(data[i], 0);
  }
}

TEST(CpuDeviceTest, CopyRowsTakesListedRows) {
  ThreadPool pool(2);
  const std::unique_ptr<Device> device = MakeCpuDevice(pool);
  const std::vector<float> x = {0, 1, 2, 10, 11, 12, 20, 21, 22};
  const int32_t rows[] = {2, 0};
  std::vector<float> y(6, -1.0f);
  device->CopyRows(
      {.x = x.data() + 1, .ldx = 3, .rows = rows, .y = y.data(), .ldy = 3, .m = 2, .n = 2});
  EXPECT_EQ(y, (std::vector<float>{21, 22, -1, 1, 2, -1}));
}

TEST(CpuDeviceTest, ClampKeepsNan) {
  ThreadPool pool(2);
  const std::unique_ptr<Device> device = MakeCpuDevice(pool);
  std::vector<float> x = {-INFINITY, -2.5f, -2.0f, 0.0f, 1.5f, 2.0f, 3.0f, INFINITY, NAN};
  device->Clamp(x.data(), static_cast<int64_t>(x.size()) - 1, 2.0f);
  const std::vector<float> want = {-2.0f, -2.0f, -2.0f, 0.0f, 1.5f, 2.0f, 2.0f, 2.0f};
  EXPECT_TRUE(std::equal(want.begin(), want.end(), x.begin()));
  device->Clamp(x.data(), static_cast<int64_t>(x.size()), 1.0f);
  EXPECT_EQ(x[4], 1.0f);
  EXPECT_TRUE(std::isnan(x.back()));
}

TEST(CpuDeviceTest, MultiplyBySigmoidActsOnEachElement) {
  ThreadPool pool(2);
  const std::unique_ptr<Device> device = MakeCpuDevice(pool);
  Random random(4);
  for (const int64_t count : {0, 1, 1003}) {
    const std::vector<float> x = random.Normal(count), gate = random.Normal(count, 3.0f);
    std::vector<float> gated = x;
    device->MultiplyBySigmoid(gated.data(), gate.data(), count);
    for (int64_t i = 0; i < count; ++i)
      EXPECT_NEAR(gated[i], x[i] / (1.0 + std::exp(-double{gate[i]})), 1e-6);
  }
}

TEST(CpuDeviceTest, MultiplyRowsBySigmoidHasOneGateForARow) {
  ThreadPool pool(2);
  const std::unique_ptr<Device> device = MakeCpuDevice(pool);
  Random random(5);
  using Size = std::pair<int64_t, int64_t>;
  for (const auto& [rows, n] : {Size{0, 4}, Size{1, 1}, Size{37, 12}, Size{3, 700}}) {
    const std::vector<float> x = random.Normal(rows * n), gate = random.Normal(rows, 3.0f);
    std::vector<float> gated = x;
    device->MultiplyRowsBySigmoid(gated.data(), gate.data(), rows, n);
    for (int64_t i = 0; i < rows * n; ++i)
      EXPECT_NEAR(gated[i], x[i] / (1.0 + std::exp(-double{gate[i / n]})), 1e-6);
  }
}

TEST(CpuDeviceTest, ClearEntriesClearsListedOnes) {
  ThreadPool pool(2);
  const std::unique_ptr<Device> device = MakeCpuDevice(pool);
  std::vector<int32_t> values = {1, 2, 3, 4};
  const int32_t index[] = {3, 1, 0};
  device->ClearEntries(values.data(), index, 2);
  EXPECT_EQ(values, (std::vector<int32_t>{1, 0, 3, 0}));
}

// Two halves of a row, as held by two ranks, give the norm of the whole row.
TEST(CpuDeviceTest, SquaresOfPartsMakeTheNormOfTheWhole) {
  ThreadPool pool(2);
  const std::unique_ptr<Device> device = MakeCpuDevice(pool);
  Random random(1);
  const int64_t m = 5, n = 96, half = n / 2;
  const std::vector<float> x = random.Normal(m * n), weight = random.Normal(n);
  std::vector<float> expected(m * n), sums(m);
  device->RmsNorm({.x = x.data(),
                   .ldx = n,
                   .weight = weight.data(),
                   .y = expected.data(),
                   .ldy = n,
                   .m = m,
                   .n = n});
  std::vector<std::vector<float>> parts(2, std::vector<float>(m * half));
  for (int64_t part = 0; part < 2; ++part) {
    std::vector<float> squares(m);
    device->CopyRows({.x = x.data() + part * half,
                      .ldx = n,
                      .y = parts[part].data(),
                      .ldy = half,
                      .m = m,
                      .n = half});
    device->SumSquares({.x = parts[part].data(), .m = m, .n = half, .squares = squares.data()});
    for (int64_t t = 0; t < m; ++t) sums[t] += squares[t];
  }
  for (int64_t part = 0; part < 2; ++part) {
    device->ScaleBySquares({.x = parts[part].data(),
                            .m = m,
                            .n = half,
                            .squares = sums.data(),
                            .total = n,
                            .weight = weight.data() + part * half});
    for (int64_t t = 0; t < m; ++t) {
      for (int64_t i = 0; i < half; ++i)
        EXPECT_NEAR(parts[part][t * half + i], expected[t * n + part * half + i], 1e-6);
    }
  }
}

}  // namespace
}  // namespace switchyard::kernels
