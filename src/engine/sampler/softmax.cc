#include "engine/sampler/softmax.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "kernels/exp_sum.h"

namespace switchyard {

namespace {

using kernels::ExpLaneSum;
using kernels::ExpOfNonPositive;

constexpr size_t kBlock = kernels::kExpBlock, kLanes = kernels::kExpLanes;

}  // namespace

bool AllFinite(std::span<const float> logits) {
  uint32_t largest = 0;  // exponent bits; all ones means NaN or infinity
  const size_t whole = logits.size() / kBlock * kBlock;
  for (size_t i = 0; i < whole; i += kBlock) {
    const float* __restrict block = logits.data() + i;
    for (size_t j = 0; j < kBlock; ++j) {
      const uint32_t exponent = std::bit_cast<uint32_t>(block[j]) & 0x7f800000u;
      largest = exponent > largest ? exponent : largest;
    }
  }
  for (const float value : logits.subspan(whole))
    largest = std::max(largest, std::bit_cast<uint32_t>(value) & 0x7f800000u);
  return largest != 0x7f800000u;
}

float Max(std::span<const float> values) {
  float lanes[kLanes];
  std::fill(lanes, lanes + kLanes, -std::numeric_limits<float>::infinity());
  const size_t whole = values.size() / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    const float* __restrict block = values.data() + i;
    for (size_t lane = 0; lane < kLanes; ++lane)
      lanes[lane] = block[lane] > lanes[lane] ? block[lane] : lanes[lane];
  }
  float best = *std::max_element(lanes, lanes + kLanes);
  for (const float value : values.subspan(whole)) best = std::max(best, value);
  return best;
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
