#include "core/error.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/gemm/gemm_testing.h"

namespace switchyard::cuda {
namespace {

class DenseGemmTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (DeviceCount() == 0 || !IsHopper()) GTEST_SKIP() << "no Hopper GPU";
  }
  bool fp8() const { return GetParam(); }
};

DenseGemmParams Params(const GemmProblemData& c, int64_t m, float* y) {
  return {.x = c.a.data(),
          .x_scales = c.fp8 ? c.a_scales.as<float>() : nullptr,
          .ld_x_scales = c.rows,
          .w = c.b.data(),
          .w_scales = c.fp8 ? c.b_scales.as<float>() : nullptr,
          .y = y,
          .m = m,
          .n = c.n,
          .k = c.k};
}

TEST_P(DenseGemmTest, GivesSumsWithBiasAddedToWhatIsThere) {
  for (const int64_t m : {1, 7, 100, 600})
    for (const int64_t n : {1, 63, 200, 514}) {
      const GemmProblemData c(fp8(), 1, (m + 3) / 4 * 4, n, fp8() ? 384 : 392,
                              static_cast<unsigned>(m + n));
      const DeviceMemory y = Upload(std::vector<float>(m * n, 5.0f));
      DenseGemmParams p = Params(c, m, y.as<float>());
      p.bias = c.bias.as<float>();
      p.accumulate = true;
      DenseGemm(p, nullptr);
      const std::vector<float> got = Download<float>(y, m * n);
      for (int64_t row = 0; row < m; ++row)
        for (int64_t column = row % 5; column < n; column += 5)
          ASSERT_NEAR(got[row * n + column], c.Sum(0, row, column) + c.Bias(0, column) + 5.0,
                      Tolerance(fp8()) * c.Size(0, row, column) + 2e-6)
              << "m " << m << ", n " << n << ", row " << row << ", column " << column;
    }
}

TEST_P(DenseGemmTest, RowsDoNotDependOnOtherRows) {
  const int64_t most = 1500, n = 640;
  const GemmProblemData c(fp8(), 1, most, n, 2176, 8);
  const DeviceMemory all = DeviceMemory(most * n * 4), some = DeviceMemory(most * n * 4);
  DenseGemm(Params(c, most, all.as<float>()), nullptr);
  const std::vector<float> want = Download<float>(all, most * n);
  for (const int64_t m : {1, 8, 17, 33, 70, 128, 193, 400, 800}) {
    DenseGemm(Params(c, m, some.as<float>()), nullptr);
    ASSERT_EQ(std::memcmp(Download<float>(some, m * n).data(), want.data(), m * n * 4), 0) << m;
  }
}

std::vector<GemmPlan> FewRowsPlans(bool fp8, int64_t m, int64_t k) {
  std::vector<GemmPlan> plans;
  for (const int weight_rows : {16, 32, 64, 128}) {
    for (const int cluster : {1, 2})
      plans.push_back({.few_rows = true, .weight_rows = weight_rows, .cluster = cluster});
    if (m <= 64 && weight_rows <= 64 && k * (fp8 ? 1 : 2) % 128 == 0)
      plans.push_back({.few_rows = true, .weight_rows = weight_rows, .steps = 4});
  }
  return plans;
}

TEST_P(DenseGemmTest, EveryPlanGivesTheSameBits) {
  const CurrentGpu gpu = FindCurrentGpu();
  for (const int64_t m : {1, 24, 50, 100, 260})
    for (const int64_t k : {2176, fp8() ? 128 : 2056}) {
      const GemmProblemData c(fp8(), 1, (m + 3) / 4 * 4, 776, k, static_cast<unsigned>(m));
      for (const bool float_output : {true, false}) {
        const size_t bytes = m * c.n * (float_output ? 4 : 2);
        const auto run = [&](const GemmPlan& plan) {
          const DeviceMemory y(bytes);
          GemmProblem p = c.Problem(y.data(), float_output);
          p.rows = m;
          p.bias = c.bias.as<float>();
          LaunchGemm(p, plan, gpu, nullptr);
          return Download<uint8_t>(y, bytes);
        };
        const std::vector<uint8_t> want = run(PlanManyRows(fp8()));
        for (const GemmPlan& plan : FewRowsPlans(fp8(), m, k))
          EXPECT_TRUE(run(plan) == want)
              << "m " << m << ", k " << k << ", tiles of " << plan.weight_rows << ", cluster of "
              << plan.cluster << ", steps " << plan.steps;
      }
    }
}

TEST_P(DenseGemmTest, RowsMayHaveAStride) {
  const int64_t m = 20, n = 96, k = 128;
  const GemmProblemData c(fp8(), 1, m, n, k, 9);
  const DeviceMemory all(m * n * 4), apart(m * 104 * 2);
  DenseGemm(Params(c, m, all.as<float>()), nullptr);
  DenseGemmParams p = Params(c, m / 2, nullptr);
  p.ldx = 2 * k;  // every second row
  std::vector<float> want = Download<float>(all, m * n);
  if (fp8()) {  // x_scales has no such gaps, so only the first row matches
    p.m = 1;
  }
  p.y = apart.data();
  p.ldy = 104;
  p.float_output = false;
  DenseGemm(p, nullptr);
  const std::vector<uint16_t> got = Download<uint16_t>(apart, m * 104);
  for (int64_t row = 0; row < p.m; ++row)
    for (int64_t column = 0; column < 104; ++column)
      ASSERT_EQ(got[row * 104 + column], column < n ? ToBF16(want[2 * row * n + column]).bits : 0);
}

TEST_P(DenseGemmTest, WhatDoesNotFitIsRefused) {
  const GemmProblemData c(fp8(), 1, 8, 64, 128, 2);
  const DeviceMemory y(8 * 64 * 4);
  DenseGemmParams p = Params(c, 8, y.as<float>());
  EXPECT_TRUE(DenseGemmTakes(p));
  p.k = 100;
  EXPECT_FALSE(DenseGemmTakes(p));
  EXPECT_THROW(DenseGemm(p, nullptr), Error);
  p.k = 128;
  p.y = y.as<uint8_t>() + 4;
  EXPECT_FALSE(DenseGemmTakes(p));
  p.y = y.data();
  p.m = 0;
  DenseGemm(p, nullptr);
}

INSTANTIATE_TEST_SUITE_P(Formats, DenseGemmTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "fp8" : "bf16"; });

}  // namespace
}  // namespace switchyard::cuda
