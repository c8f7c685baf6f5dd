#include "quant/scale_search.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "core/dtype.h"
#include "quant/rounding.h"
#include "quant/vector_width.h"

namespace switchyard {
namespace {

using vector_width::RunWidest;

constexpr int kCandidates = 8;

// One lane per candidate, so that sums over the group need no reduction across lanes. Uses the
// vector extension of GCC and clang, which is compiled for each instruction set (vector_width.h).
using Lanes [[gnu::vector_size(kCandidates * sizeof(float))]] = float;

// For each candidate: codes are round(x · inverse), clamped to [low, high] steps from zero.
struct Candidates {
  Lanes inverse, low, high;
};

// The extreme values of a group and 0, and its mean magnitude.
struct Extremes {
  float low = 0, high = 0, mean = 0;
};

[[gnu::always_inline]] inline Extremes FindExtremes(const float* x, int64_t n) {
  Lanes low = {}, high = {}, magnitudes = {};
  int64_t i = 0;
  for (; i + kCandidates <= n; i += kCandidates) {
    Lanes v;
    std::memcpy(&v, x + i, sizeof v);
    low = v < low ? v : low;
    high = v > high ? v : high;
    magnitudes += v < 0.0f ? -v : v;
  }
  Extremes e;
  float sum = 0;
  for (int lane = 0; lane < kCandidates; ++lane) {
    e.low = low[lane] < e.low ? low[lane] : e.low;
    e.high = high[lane] > e.high ? high[lane] : e.high;
    sum += magnitudes[lane];
  }
  for (; i < n; ++i) {
    e.low = x[i] < e.low ? x[i] : e.low;
    e.high = x[i] > e.high ? x[i] : e.high;
    sum += rounding::Magnitude(x[i]);
  }
  e.mean = sum / static_cast<float>(n);
  return e;
}

// Per candidate: the number of steps (code - 8) to which the value of largest magnitude is mapped.
// More steps divide the other values more finely, but beyond -8 and 7 this value is clamped.
constexpr Lanes kSymmetricSteps = {-7.5f, -8.0f, -8.4f, -9.0f, -10.0f, 7.0f, 7.5f, 8.3f};

[[gnu::always_inline]] inline Candidates Symmetric(const Extremes& e) {
  const float largest = e.high > -e.low ? e.high : e.low;
  const Lanes zero = {};
  return {kSymmetricSteps / largest, zero - 8.0f, zero + 7.0f};
}

// Candidates with a zero point: the two integers nearest to the exact zero point of the group's
// range, with four scales each. kFits: factors of 1 / s, where s is the smallest scale with which
// no value of the group is clamped. kSecond: 1 for candidates of the larger zero point.
constexpr Lanes kFits = {0.98f, 1.04f, 1.09f, 1.15f, 0.98f, 1.04f, 1.09f, 1.15f};
constexpr Lanes kSecond = {0, 0, 0, 0, 1, 1, 1, 1};

[[gnu::always_inline]] inline Candidates WithZeros(const Extremes& e) {
  const int first = static_cast<int>(-e.low * (15.0f / (e.high - e.low)));
  const Lanes below = static_cast<float>(first < 14 ? first : 14) + kSecond;
  const Lanes above = 15.0f - below;
  // If all values have the same sign, only the codes on that side of zero limit the scale. A zero
  // point without codes on that side gives the inverse scale 0, so its gain is not positive.
  const Lanes by_low = below / (e.low < 0 ? -e.low : 1e-30f);
  const Lanes by_high = above / (e.high > 0 ? e.high : 1e-30f);
  const Lanes low_only = e.high > 0 ? by_high : by_low;
  const Lanes fits = e.low < 0 && e.high > 0 ? (by_low < by_high ? by_low : by_high) : low_only;
  return {fits * kFits, -below, above};
}

[[gnu::always_inline]] inline Int4Scale FindScale(const float* x, int64_t n, bool symmetric) {
  const Extremes e = FindExtremes(x, n);
  const float largest = e.high > -e.low ? e.high : -e.low;
  // Groups of zeros or of negligible values become zeros, as in Quantize. Beyond 2^100, sums could
  // overflow.
  if (!(largest > 8 * rounding::kSmallestScale)) return {};
  if (largest > 0x1p100f) return {.scale = ToFloat(ToBF16(largest / 7.0f))};
  const Candidates c = symmetric ? Symmetric(e) : WithZeros(e);
  constexpr float kMagic = 0x1.8p23f;  // rounds to integers (rounding.h)
  const float inverse = 1.0f / largest, mean = e.mean * inverse;
  Lanes products = {}, squares = {};  // sums of weight · x · steps and weight · steps²
  for (int64_t i = 0; i < n; ++i) {
    const float part = x[i] * inverse, magnitude = rounding::Magnitude(part);
    const float weight = symmetric ? magnitude * magnitude : mean + magnitude;
    const float weighted = weight * part;
    Lanes steps = (c.inverse * x[i] + kMagic) - kMagic;
    steps = steps < c.low ? c.low : steps;
    steps = steps > c.high ? c.high : steps;
    products += steps * weighted;
    squares += steps * steps * weight;
  }
  // Scales are in units of the largest magnitude. The gain is the weighted sum of x² minus the
  // weighted squared error. It is NaN if all codes are zero.
  const Lanes scales = products / squares, gains = products * scales;
  int best = 0;
  float most = 0;
  for (int i = 0; i < kCandidates; ++i) {
    const bool better = gains[i] > most;
    most = better ? gains[i] : most;
    best = better ? i : best;
  }
  if (!(most > 0)) return {};
  return {ToFloat(ToBF16(scales[best] * largest)), static_cast<uint8_t>(-c.low[best])};
}

struct FindScales {
  [[gnu::always_inline]] static inline void Run(const float* x, int64_t k, int64_t group,
                                                bool symmetric, Int4Scale* out) {
    for (int64_t j = 0; j < k; j += group) {
      *out++ = FindScale(x + j, group < k - j ? group : k - j, symmetric);
    }
  }
};

}  // namespace

void FindInt4Scales(const float* x, int64_t k, int64_t group, bool symmetric, Int4Scale* out) {
  RunWidest<FindScales>(x, k, group, symmetric, out);
}

namespace {

// Squared errors of x · inverse when rounded to e2m1, which has one mantissa bit (and steps of 0.5
// below 1).
struct E2M1Errors {
  [[gnu::always_inline]] static inline void Run(const float* x, float inverse,
                                                float* __restrict errors) {
    constexpr auto kOne = std::bit_cast<int32_t>(1.0f);
    for (int64_t i = 0; i < kMxfp4BlockSize; ++i) {
      const float m = rounding::Magnitude(x[i]) * inverse;
      const float clamped = m > 6.0f ? 6.0f : m;
      const int32_t exponent = std::bit_cast<int32_t>(clamped) & 0x7f800000;
      const int32_t step = exponent > kOne ? exponent : kOne;
      // 1.5 · 2^22 times the power of two of m leaves one mantissa bit (rounding.h).
      const float magic =
          std::bit_cast<float>((static_cast<uint32_t>(step) + (22u << 23)) | 0x400000u);
      const float error = m - ((clamped + magic) - magic);
      errors[i] = error * error;
    }
  }
};

double SquaredError(const float* x, float scale) {
  float errors[kMxfp4BlockSize];
  RunWidest<E2M1Errors>(x, 1.0f / scale, static_cast<float*>(errors));
  double sum = 0;
  for (const float e : errors) sum += e;
  return sum * scale * scale;
}

struct LargestOfBlock {
  [[gnu::always_inline]] static inline float Run(const float* x) {
    return rounding::LargestMagnitude(x, kMxfp4BlockSize);
  }
};

}  // namespace

uint8_t FindMxfp4Scale(const float* x) {
  const float largest = RunWidest<LargestOfBlock>(x);
  if (!(largest > 0)) return 127;
  const int power = std::clamp(std::ilogb(largest) - 2, -127, 127);
  const auto code = static_cast<uint8_t>(power + 127);
  // Extreme exponents are not compared: the next exponent may not exist, or the reciprocal of the
  // scale may not be a normal number.
  if (power < -100 || power > 100) return code;
  const float scale = FromE8M0(code);
  return SquaredError(x, 2 * scale) < SquaredError(x, scale) ? static_cast<uint8_t>(code + 1)
                                                             : code;
}

}  // namespace switchyard
