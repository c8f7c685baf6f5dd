// Quantization error of each number format: one expert with OLMoE's proportions in every format,
// with and without rounded inputs, against the same expert in bfloat16. An increase is a defect in
// packing, unpacking or rounding.
#include <fmt/format.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "kernels/reference.h"
#include "kernels/testing.h"

namespace switchyard::kernels {
namespace {

constexpr int64_t kHidden = 256, kWidth = 128, kRows = 64;

struct Case {
  WeightFormat format;
  ActivationFormat activation;
  double bound;  // limit of the relative RMS error, about 3 % above the measured value
  Int4Packing int4 = {};
};

using W = WeightFormat;
using A = ActivationFormat;
constexpr Int4Packing kInt4With32 = {.group_size = 32};
constexpr Int4Packing kInt4WithZeros = {.group_size = 32, .symmetric = false};
const Case kCases[] = {
    {W::kF16, A::kNone, 0.0031},
    {W::kFp8Block, A::kNone, 0.0474},
    {W::kFp8Block, A::kFp8Group, 0.0658},
    {W::kFp8Channel, A::kNone, 0.0471},
    {W::kFp8Channel, A::kFp8Token, 0.0642},
    {W::kFp8Channel, A::kFp8Tensor, 0.0705},
    {W::kInt8Channel, A::kNone, 0.0126},
    {W::kInt8Channel, A::kInt8Token, 0.0219},
    {W::kInt4Group, A::kNone, 0.2013},
    {W::kInt4Group, A::kNone, 0.1716, kInt4With32},
    {W::kInt4Group, A::kNone, 0.1485, kInt4WithZeros},
    {W::kInt4Group, A::kFp8Token, 0.2076},
    {W::kMxfp4, A::kNone, 0.2085},
    {W::kNvfp4, A::kNone, 0.1739},
};

// Weights of one expert, and its outputs for kRows rows in any format.
class Expert {
 public:
  std::vector<float> Run(WeightFormat format, ActivationFormat activation,
                         const Int4Packing& int4 = {}) const {
    const auto weight = [&](const std::vector<float>& values, int64_t n, int64_t k,
                            float input_scale) {
      WeightView w = Quantize(format, values, n, k, int4);
      w.activation = activation;
      w.input_scale = input_scale;
      return w;
    };
    // Calibrated largest magnitudes of the inputs.
    const ExpertWeights expert = {.gate = weight(gate_, kWidth, kHidden, 4.0f / 448),
                                  .up = weight(up_, kWidth, kHidden, 4.0f / 448),
                                  .down = weight(down_, kHidden, kWidth, 8.0f / 448)};
    std::vector<float> middle(kRows * kWidth), out(kRows * kHidden);
    const std::vector<int32_t> offsets = {0, kRows};
    ThreadPool pool(1);
    GroupedMlp({.x = x_.data(),
                .ldx = kHidden,
                .experts = {&expert, 1},
                .offsets = offsets,
                .scratch = middle.data(),
                .out = out.data(),
                .ldo = kHidden},
               pool);
    return out;
  }

 private:
  // The bounds are for normal numbers. Those of Random have fewer large magnitudes.
  static std::vector<float> Normal(unsigned seed, int64_t count, float scale) {
    std::mt19937 engine(seed);
    std::normal_distribution<float> normal(0.0f, scale);
    std::vector<float> values(count);
    for (float& value : values) value = normal(engine);
    return values;
  }
  static std::vector<float> Values(unsigned seed, int64_t n, int64_t k) {
    return Normal(seed, n * k, 1.0f / std::sqrt(static_cast<float>(k)));
  }

  std::vector<float> gate_ = Values(1, kWidth, kHidden), up_ = Values(2, kWidth, kHidden),
                     down_ = Values(3, kHidden, kWidth), x_ = Normal(4, kRows*kHidden, 1.0f);
};

class FormatErrorTest : public IsaTest {};

TEST_P(FormatErrorTest, StaysWithinItsBound) {
  const Expert expert;
  const std::vector<float> want = expert.Run(W::kBF16, A::kNone);
  const auto count = static_cast<int64_t>(want.size());
  for (const Case& c : kCases) {
    std::vector<float> difference = expert.Run(c.format, c.activation, c.int4);
    for (int64_t i = 0; i < count; ++i) difference[i] -= want[i];
    const double error = Norm(difference.data(), count) / Norm(want.data(), count);
    const std::string name = c.format != W::kInt4Group
                                 ? std::string(Name(c.format))
                                 : fmt::format("{} of {}{}", Name(c.format), c.int4.group_size,
                                               c.int4.symmetric ? "" : " with zero points");
    fmt::print("{:32} {:10} rows: {:8.5f} of {:8.5f}\n", name, Name(c.activation), error, c.bound);
    EXPECT_LT(error, c.bound) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, FormatErrorTest, EveryIsa(), IsaName);

}  // namespace
}  // namespace switchyard::kernels
