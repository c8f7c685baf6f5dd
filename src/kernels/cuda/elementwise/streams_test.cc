// Residual streams and token ids as numbers on a GPU, against the CPU.
#include "kernels/streams.h"

#include <cmath>
#include <vector>

#include "kernels/cuda/device/device_testing.h"

namespace switchyard::kernels {
namespace {

class GpuStreamsTest : public DeviceTest {
 protected:
  static void ExpectNear(const std::vector<float>& got, const std::vector<float>& want) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i)
      ASSERT_NEAR(got[i], want[i], 2e-5 * (1 + std::fabs(want[i]))) << i;
  }
};

TEST_F(GpuStreamsTest, CollapseAndExpandMatchTheCpu) {
  for (int round = 0; round < 40; ++round) {
    const int64_t m = random_.Below(20), n = round % 4 == 0 ? 1 + random_.Below(kMaxStreams) : 4;
    const int64_t width = random_.Pick<int64_t>({1, 7, 32, 300, 1024});
    const bool mixes = round % 5 > 0;
    const int64_t k = mixes ? StreamLogits(n) : n;
    const std::vector<float> x = random_.Normal(m * n * width), logits = random_.Normal(m * k);
    const std::vector<float> base = random_.Normal(k), scale = random_.Normal(mixes ? 3 : 1);
    const std::vector<float> branch = random_.Normal(m * width);
    std::vector<float> squares(m);
    for (int64_t t = 0; t < m; ++t)
      squares[t] = static_cast<float>(std::pow(Norm(&x[t * n * width], n * width), 2));
    SCOPED_TRACE(::testing::Message() << "m " << m << " n " << n << " width " << width);

    std::vector<float> ys[2], mixed[2], streams[2];
    for (const bool gpu : {false, true}) {
      Device& device = gpu ? *exact_ : *cpu_;
      const DeviceVector on_x(device, x), on_logits(device, logits), on_squares(device, squares);
      const DeviceVector on_base(device, base), on_scale(device, scale), on_branch(device, branch);
      const DeviceVector mix(device, std::vector<float>(m * StreamMix(n)));
      const DeviceVector y(device, std::vector<float>(m * width));
      device.streams()->Collapse({.x = on_x.data(),
                                  .m = m,
                                  .n = n,
                                  .width = width,
                                  .logits = on_logits.data(),
                                  .squares = on_squares.data(),
                                  .base = on_base.data(),
                                  .scale = on_scale.data(),
                                  .iterations = static_cast<int>(1 + round % 20),
                                  .eps = 1e-4f,
                                  .norm_eps = 1e-4f,
                                  .mix = mixes ? mix.data() : nullptr,
                                  .y = y.data()});
      ys[gpu] = y.Read();
      mixed[gpu] = mix.Read();
      if (!mixes) continue;
      device.streams()->Expand({.x = on_x.data(),
                                .mix = mix.data(),
                                .branch = on_branch.data(),
                                .m = m,
                                .n = n,
                                .width = width});
      streams[gpu] = on_x.Read();
    }
    ExpectNear(ys[1], ys[0]);
    ExpectNear(mixed[1], mixed[0]);
    ExpectNear(streams[1], streams[0]);
  }
}

TEST_F(GpuStreamsTest, TokensBecomeFloats) {
  const std::vector<int32_t> tokens = {0, 7, 129279, 1 << 24, 3};
  const DeviceVector on_device(*exact_, tokens);
  const DeviceVector rows(*exact_, std::vector<float>(tokens.size() * 3, -1.0f));
  exact_->TokensToFloats(rows.data() + 2, 3, on_device.data(), std::ssize(tokens));
  const std::vector<float> got = rows.Read();
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_EQ(got[i], i % 3 == 2 ? static_cast<float>(tokens[i / 3]) : -1.0f) << i;
}

}  // namespace
}  // namespace switchyard::kernels
