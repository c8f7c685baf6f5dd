#include "moe/cuda/router/router_logits.h"

#include <gtest/gtest.h>

#include <cmath>

#include "moe/cuda/testing.h"

namespace switchyard::cuda {
namespace {

std::vector<float> OnDevice(const std::vector<float>& x, const std::vector<float>& w, bool bf16,
                            const std::vector<float>& bias, int64_t m, int n, int64_t k) {
  std::vector<BF16> rounded;
  for (const float v : w) rounded.push_back(ToBF16(v));
  const DeviceMemory dx = ToDevice(x), dw = bf16 ? ToDevice(rounded) : ToDevice(w);
  const DeviceMemory dbias = ToDevice(bias), y(m * n * 4);
  Check(RouterLogits({.x = dx.as<float>(),
                      .w = dw.data(),
                      .w_is_bf16 = bf16,
                      .bias = bias.empty() ? nullptr : dbias.as<float>(),
                      .y = y.as<float>(),
                      .m = m,
                      .n = n,
                      .k = k},
                     nullptr),
        "router logits");
  return ToHost<float>(y, m * n);
}

TEST(RouterLogits, HaveFloat32Precision) {
  SKIP_WITHOUT_GPU();
  kernels::Random random(5);
  for (int round = 0; round < 24; ++round) {
    const int64_t m = random.Pick({1, 3, 16, 65, 130, 600}), k = 4 * (1 + random.Below(300));
    const int n = random.Pick({1, 8, 10, 64, 256});
    const bool bf16 = random.Below(2) == 0;
    const auto x = random.Normal(m * k);
    auto w = random.Normal(n * k, 0.1f);
    if (bf16)
      for (float& v : w) v = ToFloat(ToBF16(v));
    const auto bias = random.Below(2) == 0 ? random.Normal(n) : std::vector<float>();
    const auto got = OnDevice(x, w, bf16, bias, m, n, k);
    for (int64_t t = 0; t < m; ++t) {
      for (int e = 0; e < n; ++e) {
        double want = bias.empty() ? 0.0 : bias[e], size = std::abs(want);
        for (int64_t i = 0; i < k; ++i) {
          want += double{x[t * k + i]} * w[e * k + i];
          size += std::abs(double{x[t * k + i]} * w[e * k + i]);
        }
        ASSERT_NEAR(got[t * n + e], want, 1e-6 * size + 1e-30)
            << "m " << m << " n " << n << " k " << k << " bf16 " << bf16;
      }
    }
  }
}

TEST(RouterLogits, OfATokenDoNotDependOnTheBatch) {
  SKIP_WITHOUT_GPU();
  constexpr int64_t kTokens = 700, kHidden = 640;
  constexpr int kExperts = 64;
  kernels::Random random(6);
  const auto x = random.Normal(kTokens * kHidden), w = random.Normal(kExperts * kHidden, 0.1f);
  for (const bool bf16 : {false, true}) {
    const auto all = OnDevice(x, w, bf16, {}, kTokens, kExperts, kHidden);
    for (const int64_t m : {1, 40, 300}) {
      const auto some =
          OnDevice({x.end() - m * kHidden, x.end()}, w, bf16, {}, m, kExperts, kHidden);
      EXPECT_TRUE(kernels::SameBits(some, {all.end() - m * kExperts, all.end()})) << m;
    }
  }
}

}  // namespace
}  // namespace switchyard::cuda
