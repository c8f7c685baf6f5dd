#include "engine/sampler/softmax.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "kernels/exp_sum.h"
#include "quant/vector_width.h"

namespace switchyard {

namespace {

using kernels::ExpLaneSum;
using kernels::ExpOfNonPositive;
using vector_width::RunWidest;

constexpr size_t kBlock = kernels::kExpBlock, kLanes = kernels::kExpLanes;

constexpr uint32_t kExponentBits = 0x7f800000u;  // all ones: NaN or infinity

struct LargestExponent {
  [[gnu::always_inline]] static inline uint32_t Run(const float* values, size_t count) {
    uint32_t lanes[kLanes] = {};
    const size_t whole = count / kLanes * kLanes;
    for (size_t i = 0; i < whole; i += kLanes) {
      const float* __restrict block = values + i;
      for (size_t lane = 0; lane < kLanes; ++lane) {
        const uint32_t exponent = std::bit_cast<uint32_t>(block[lane]) & kExponentBits;
        lanes[lane] = exponent > lanes[lane] ? exponent : lanes[lane];
      }
    }
    uint32_t largest = 0;
    for (const uint32_t lane : lanes) largest = lane > largest ? lane : largest;
    for (size_t i = whole; i < count; ++i) {
      const uint32_t exponent = std::bit_cast<uint32_t>(values[i]) & kExponentBits;
      largest = exponent > largest ? exponent : largest;
    }
    return largest;
  }
};

struct Largest {
  [[gnu::always_inline]] static inline float Run(const float* values, size_t count) {
    float lanes[kLanes];
    for (float& lane : lanes) lane = -std::numeric_limits<float>::infinity();
    const size_t whole = count / kLanes * kLanes;
    for (size_t i = 0; i < whole; i += kLanes) {
      const float* __restrict block = values + i;
      for (size_t lane = 0; lane < kLanes; ++lane)
        lanes[lane] = block[lane] > lanes[lane] ? block[lane] : lanes[lane];
    }
    float best = lanes[0];
    for (const float lane : lanes) best = lane > best ? lane : best;
    for (size_t i = whole; i < count; ++i) best = values[i] > best ? values[i] : best;
    return best;
  }
};

}  // namespace

bool AllFinite(std::span<const float> logits) {
  return RunWidest<LargestExponent>(logits.data(), logits.size()) != kExponentBits;
}

float Max(std::span<const float> values) {
  return RunWidest<Largest>(values.data(), values.size());
}

int32_t ArgMax(std::span<const float> values) {
  if (values.empty()) return 0;
  const auto found = std::find(values.begin(), values.end(), Max(values));
  return static_cast<int32_t>(found - values.begin());
}

double ExpWeights(std::span<const float> values, float max, float inverse_temperature,
                  float* weights) {
  ExpLaneSum sum;
  const size_t whole = values.size() / kBlock * kBlock;
  for (size_t i = 0; i < whole; i += kBlock) {
    const float* __restrict in = values.data() + i;
    float* __restrict out = weights + i;
    for (size_t j = 0; j < kBlock; ++j)
      out[j] = ExpOfNonPositive((in[j] - max) * inverse_temperature);
    sum.AddBlock(out);
  }
  for (size_t i = whole; i < values.size(); ++i) {
    weights[i] = ExpOfNonPositive((values[i] - max) * inverse_temperature);
    sum.Add(weights[i]);
  }
  return sum.Total();
}

double ExpSum(std::span<const float> values, float max) { return kernels::ExpSum(values, max); }

}  // namespace switchyard
