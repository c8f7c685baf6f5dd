#include "engine/sampler/softmax.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace switchyard {

namespace {

constexpr size_t kBlock = 64;  // values per inner loop: a few vectors on any machine
constexpr size_t kLanes = 16;  // partial sums: enough for one AVX-512 register

// exp(x) for x in [−inf, 0]: x = n · ln 2 + r with |r| ≤ ln 2 / 2, a polynomial in r, and 2^n
// through the exponent bits. Coefficients are Cephes' expf (Moshier).
inline float ExpOfNonPositive(float x) {
  constexpr float kLowest = -85.0f;  // 2^n stays a normal number; exp(−85) is about 1e-37
  const float clamped = x < kLowest ? kLowest : x;
  // Adding 1.5 · 2^23 leaves no fraction bits: the sum's low bits are the nearest integer.
  constexpr float kRound = 12582912.0f;
  const float shifted = clamped * 1.44269504088896341f + kRound;
  const float n = shifted - kRound;
  const float r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const uint32_t exponent = (std::bit_cast<uint32_t>(shifted) + 127u) << 23;
  return x < kLowest ? 0.0f : p * std::bit_cast<float>(exponent);
}

// Adds up blocks of 4096 values in kLanes float32 sums, and these sums in double.
class LaneSum {
 public:
  void AddBlock(const float* __restrict block) {
    for (size_t i = 0; i < kBlock; i += kLanes)
      for (size_t lane = 0; lane < kLanes; ++lane) lanes_[lane] += block[i + lane];
    if (++blocks_ == 4096 / kBlock) Flush();
  }
  void Add(float value) { total_ += value; }
  double Total() {
    Flush();
    return total_;
  }

 private:
  void Flush() {
    for (float& lane : lanes_) {
      total_ += lane;
      lane = 0.0f;
    }
    blocks_ = 0;
  }
  float lanes_[kLanes] = {};
  double total_ = 0.0;
  size_t blocks_ = 0;
};

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
  LaneSum sum;
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

double ExpSum(std::span<const float> values, float max) {
  LaneSum sum;
  const size_t whole = values.size() / kBlock * kBlock;
  for (size_t i = 0; i < whole; i += kBlock) {
    float block[kBlock];
    const float* __restrict in = values.data() + i;
    for (size_t j = 0; j < kBlock; ++j) block[j] = ExpOfNonPositive(in[j] - max);
    sum.AddBlock(block);
  }
  for (const float value : values.subspan(whole)) sum.Add(ExpOfNonPositive(value - max));
  return sum.Total();
}

}  // namespace switchyard
