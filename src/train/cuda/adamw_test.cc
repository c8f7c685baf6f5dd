#include "train/cuda/adamw.h"

#include <gtest/gtest.h>

#include "core/parallel.h"
#include "train/cuda/testing.h"
#include "train/optimizer/adamw.h"

namespace switchyard::train::gpu {
namespace {

class TrainAdamW : public TrainCudaTest {
 protected:
  ThreadPool pool_{2};
};

std::vector<float> Floats(const TestArray& array) {
  const std::vector<double> values = array.Read();
  return {values.begin(), values.end()};
}

TEST_F(TrainAdamW, StepsHaveTheBitsOfTheCpu) {
  const AdamWOptions options = {.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1};
  for (const int64_t count : {1, 1030, 20001})
    for (const int64_t first : {0, 1}) {  // 1: not aligned
      const TestArray value = TestArray::Random(false, first + count, random_),
                      m = TestArray::Filled(false, first + count, 0),
                      s = TestArray::Filled(false, first + count, 0),
                      rounded = TestArray::Filled(true, first + count, 77),
                      factor = TestArray::Filled(false, 1, 0.5);
      Parameter<float> p = {.name = "w", .shape = {count}};
      p.value.assign(value.values.begin() + first, value.values.end());
      p.gradient.resize(count);
      AdamW cpu({&p}, options);
      for (int step = 1; step <= 3; ++step) {
        const TestArray gradient = TestArray::Random(false, first + count, random_);
        std::copy(gradient.values.begin() + first, gradient.values.end(), p.gradient.begin());
        // The CPU has one factor; the GPU multiplies two, of which one is a power of two.
        cpu.Step(0.01 * step, 0.35, pool_);
        AdamWStep({.count = count,
                   .value = value.floats() + first,
                   .gradient = gradient.floats() + first,
                   .first = m.floats() + first,
                   .second = s.floats() + first,
                   .rounded = static_cast<BF16*>(Array(rounded).At(first).data),
                   .factors = MakeAdamWFactors(0.01 * step, options.weight_decay, options.beta1,
                                               options.beta2, options.epsilon, step, 0.7),
                   .scale = factor.floats()},
                  nullptr);
        std::vector<float> zeros(first + count);
        if (first > 0) zeros[0] = static_cast<float>(gradient.values[0]);
        EXPECT_EQ(Floats(gradient), zeros);
      }
      const auto own = [&](const TestArray& array) {
        const std::vector<float> all = Floats(array);
        return std::vector<float>(all.begin() + first, all.end());
      };
      EXPECT_EQ(own(value), p.value);
      EXPECT_EQ(own(m), cpu.moments()[0].first);
      EXPECT_EQ(own(s), cpu.moments()[0].second);
      std::vector<float> want;
      for (const float x : p.value) want.push_back(ToFloat(ToBF16(x)));
      EXPECT_EQ(own(rounded), want);
    }
}

TEST_F(TrainAdamW, BlockSumsGiveTheNormOfTheCpu) {
  for (const int64_t count : {1, 9, 16384, 16385, 100003}) {
    const TestArray gradient = TestArray::Random(false, count, random_);
    Parameter<float> p = {.name = "w", .shape = {count}};
    p.value.resize(count);
    p.gradient.assign(gradient.values.begin(), gradient.values.end());
    const int64_t blocks = Shards::Blocks(count);
    const cuda::DeviceMemory sums = Upload(std::vector<double>(blocks, 77.0));
    BlockSumsOfSquares(gradient.floats(), count, sums.as<double>(), nullptr);
    double sum = 0;
    for (const double x : Download<double>(sums, blocks)) sum += x;
    EXPECT_EQ(std::sqrt(sum), NormOfGradients(Catalog({&p}, nullptr), pool_).norm);
  }
}

}  // namespace
}  // namespace switchyard::train::gpu
