#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "core/check.h"

namespace switchyard {
namespace {

// theta^(2i / dim): wavelengths divided by 2π.
std::vector<float> Periods(const RopeConfig& rope) {
  std::vector<float> periods(static_cast<size_t>(rope.rotary_dim / 2));
  const auto dim = static_cast<float>(rope.rotary_dim);
  for (size_t i = 0; i < periods.size(); ++i) {
    periods[i] = std::pow(static_cast<float>(rope.theta), static_cast<float>(2 * i) / dim);
  }
  return periods;
}

void ScaleLlama3(const RopeConfig& rope, std::vector<float>* frequencies) {
  const auto factor = static_cast<float>(rope.factor);
  const auto old_length = static_cast<float>(rope.original_max_position);
  const auto low = static_cast<float>(rope.low_freq_factor);
  const auto high = static_cast<float>(rope.high_freq_factor);
  for (float& f : *frequencies) {
    const float wavelength = static_cast<float>(2.0 * std::numbers::pi) / f;
    if (wavelength > old_length / low) {
      f /= factor;
    } else if (high > low && wavelength >= old_length / high) {
      const float smooth = (old_length / wavelength - low) / (high - low);
      f = (1.0f - smooth) * f / factor + smooth * f;
    }
  }
}

// The fractional pair index whose pair turns `rotations` times over the original context.
double CorrectionDim(const RopeConfig& rope, double rotations) {
  return static_cast<double>(rope.rotary_dim) *
         std::log(static_cast<double>(rope.original_max_position) /
                  (rotations * 2.0 * std::numbers::pi)) /
         (2.0 * std::log(rope.theta));
}

std::vector<float> YarnFrequencies(const RopeConfig& rope, const std::vector<float>& periods) {
  double low = CorrectionDim(rope, rope.beta_fast);
  double high = CorrectionDim(rope, rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(rope.rotary_dim - 1));
  if (low == high) high += 0.001;  // avoids a division by zero

  const auto factor = static_cast<float>(rope.factor);
  std::vector<float> frequencies(periods.size());
  for (size_t i = 0; i < periods.size(); ++i) {
    const float ramp =
        (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low);
    const float plain_share = 1.0f - std::clamp(ramp, 0.0f, 1.0f);
    const float divided = 1.0f / (factor * periods[i]);
    const float plain = 1.0f / periods[i];
    frequencies[i] = divided * (1.0f - plain_share) + plain * plain_share;
  }
  return frequencies;
}

// NTK-aware scaling by length, transformers' dynamic type: a sequence of `length` tokens beyond the
// original length has a larger theta.
std::vector<float> DynamicFrequencies(const RopeConfig& rope, int64_t length) {
  const auto dim = static_cast<double>(rope.rotary_dim);
  const double stretch =
      rope.factor * static_cast<double>(length) / static_cast<double>(rope.original_max_position) -
      (rope.factor - 1.0);
  RopeConfig longer = rope;
  longer.type = RopeConfig::Type::kDefault;
  longer.theta = rope.theta * std::pow(stretch, dim / (dim - 2.0));
  return InverseFrequencies(longer);
}

std::vector<float> LongRopeFrequencies(const std::vector<float>& factors,
                                       const std::vector<float>& periods) {
  std::vector<float> frequencies(periods.size());
  for (size_t i = 0; i < periods.size(); ++i) frequencies[i] = 1.0f / (factors[i] * periods[i]);
  return frequencies;
}

// Frequencies for the token at `position`, computed for a sequence that ends at this token. If a
// sequence grows past the original length, its tokens are then rotated as in transformers'
// generate. No row depends on other rows.
std::vector<float> FrequenciesAt(const RopeConfig& rope, int64_t position) {
  if (position < rope.original_max_position) return InverseFrequencies(rope);
  if (rope.type == RopeConfig::Type::kDynamic) return DynamicFrequencies(rope, position + 1);
  RopeConfig longer = rope;
  longer.short_factor = rope.long_factor;
  return InverseFrequencies(longer);
}

}  // namespace

double YarnMscale(const RopeConfig& rope, double mscale) {
  return rope.factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(rope.factor) + 1.0;
}

std::vector<float> InverseFrequencies(const RopeConfig& rope) {
  const std::vector<float> periods = Periods(rope);
  std::vector<float> frequencies(periods.size());
  std::ranges::transform(periods, frequencies.begin(), [](float p) { return 1.0f / p; });
  if (rope.type == RopeConfig::Type::kYarn) {
    frequencies = YarnFrequencies(rope, periods);
  } else if (rope.type == RopeConfig::Type::kLinear) {
    for (float& f : frequencies) f /= static_cast<float>(rope.factor);
  } else if (rope.type == RopeConfig::Type::kLongRope) {
    frequencies = LongRopeFrequencies(rope.short_factor, periods);
  } else if (rope.type == RopeConfig::Type::kLlama3) {
    ScaleLlama3(rope, &frequencies);
  }
  if (rope.frequency_dtype == DType::kBF16) {
    for (float& f : frequencies) f = ToFloat(ToBF16(f));
  }
  return frequencies;
}

double RopeAttentionFactor(const RopeConfig& rope) {
  if (rope.type == RopeConfig::Type::kLongRope) {
    if (rope.attention_factor) return *rope.attention_factor;
    if (rope.factor <= 1.0) return 1.0;
    return std::sqrt(1.0 + std::log(rope.factor) /
                               std::log(static_cast<double>(rope.original_max_position)));
  }
  if (rope.type != RopeConfig::Type::kYarn) return 1.0;
  if (rope.attention_factor) return *rope.attention_factor;
  if (rope.mscale != 0.0 && rope.mscale_all_dim != 0.0) {
    return YarnMscale(rope, rope.mscale) / YarnMscale(rope, rope.mscale_all_dim);
  }
  return YarnMscale(rope, 1.0);
}

Tensor BuildCosSin(const RopeConfig& rope, int64_t max_position) {
  CHECK_GE(max_position, 1);
  if (rope.rotary_dim == 0) return {};
  std::vector<float> frequencies = InverseFrequencies(rope);
  const bool by_length =
      rope.type == RopeConfig::Type::kDynamic || rope.type == RopeConfig::Type::kLongRope;
  const auto half = static_cast<int64_t>(frequencies.size());
  auto scale = static_cast<float>(RopeAttentionFactor(rope));
  Tensor table = Tensor::Empty(DType::kF32, {max_position, 2 * half});
  float* row = table.data<float>();
  for (int64_t position = 0; position < max_position; ++position, row += 2 * half) {
    const bool first_long = position == rope.original_max_position;
    const bool changes = rope.type == RopeConfig::Type::kDynamic || first_long;
    if (by_length && changes && position >= rope.original_max_position)
      frequencies = FrequenciesAt(rope, position);
    if (first_long && rope.long_attention_factor)
      scale = static_cast<float>(*rope.long_attention_factor);
    for (int64_t i = 0; i < half; ++i) {
      // The angle is rounded to float32 as in transformers; cosine and sine are then accurate.
      const auto angle = static_cast<double>(static_cast<float>(position) * frequencies[i]);
      row[i] = static_cast<float>(std::cos(angle)) * scale;
      row[half + i] = static_cast<float>(std::sin(angle)) * scale;
    }
  }
  return table;
}

int64_t QueryScaleWidth(const AttentionConfig& attention) {
  constexpr int64_t kMost = 16;  // narrow: a table for 10^6 positions has 64 MB
  return attention.query_scale_beta == 0.0 ? 0 : std::gcd(attention.head_dim, kMost);
}

Tensor BuildQueryScale(const AttentionConfig& attention, int64_t max_position) {
  const int64_t half = QueryScaleWidth(attention) / 2;
  if (half == 0) return {};
  Tensor table = Tensor::Empty(DType::kF32, {max_position, 2 * half});
  float* row = table.data<float>();
  for (int64_t position = 0; position < max_position; ++position, row += 2 * half) {
    const int64_t turns =
        (position + attention.query_scale_offset) / attention.query_scale_positions;
    const double scale =
        1.0 + attention.query_scale_beta * std::log(1.0 + static_cast<double>(turns));
    std::fill_n(row, half, static_cast<float>(scale));
    std::fill_n(row + half, half, 0.0f);
  }
  return table;
}

}  // namespace switchyard
