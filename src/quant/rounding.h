// Scalar rounding without branches or library calls, so that compilers vectorise it. Only for loops
// that vector_width.h dispatches.
#pragma once

#include <bit>
#include <cstdint>

namespace switchyard::rounding {

constexpr float kSmallestScale = 0x1p-64f;  // scales and products stay far from the subnormal range

[[gnu::always_inline]] inline float Magnitude(float x) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(x) & 0x7fffffffu);
}

[[gnu::always_inline]] inline float WithSignOf(float magnitude, float x) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) |
                              (std::bit_cast<uint32_t>(x) & 0x80000000u));
}

// Largest magnitude in x [n]; NaN counts as the largest. Compares bit patterns, which for
// magnitudes have the same order as the values.
[[gnu::always_inline]] inline float LargestMagnitude(const float* x, int64_t n) {
  int32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    const int32_t bits = std::bit_cast<int32_t>(x[i]) & 0x7fffffff;
    largest = bits > largest ? bits : largest;
  }
  return std::bit_cast<float>(largest);
}

// The e4m3 magnitude nearest to m (three mantissa bits, steps of 2^-9 below 2^-6, at most 448).
// Adding 1.5 · 2^20 times m's power of two leaves three mantissa bits of m in the sum.
[[gnu::always_inline]] inline float RoundMagnitudeE4M3(float m) {
  m = m > 448.0f ? 448.0f : m;
  constexpr auto kFirstNormal = std::bit_cast<int32_t>(0x1p-6f);
  const int32_t exponent = std::bit_cast<int32_t>(m) & 0x7f800000;
  const int32_t step = exponent > kFirstNormal ? exponent : kFirstNormal;
  const float magic = std::bit_cast<float>((static_cast<uint32_t>(step) + (20u << 23)) | 0x400000u);
  return (m + magic) - magic;
}

[[gnu::always_inline]] inline float RoundE4M3(float x) {
  return WithSignOf(RoundMagnitudeE4M3(Magnitude(x)), x);
}

// Nearest bfloat16 in the upper half of the bits, ties to even; the lower half is zero.
[[gnu::always_inline]] inline uint32_t RoundBitsBFloat16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  // Keep NaN, which the addition could turn into infinity or zero.
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return (nan ? bits | 0x400000u : rounded) & 0xffff0000u;
}

// All bits are ones if a < b, else zeros. a - b must not overflow.
[[gnu::always_inline]] inline uint32_t MaskBelow(int32_t a, int32_t b) {
  return static_cast<uint32_t>((a - b) >> 31);
}

// An e4m3 code is exponent (bias 7) and mantissa, in the same layout as the upper bits of a float32
// (bias 127). A subnormal's value is 2^-6 · (1 + mantissa) - 2^-6.
constexpr uint32_t kRebias = 120u << 3;
constexpr uint32_t kE4M3FirstNormal = std::bit_cast<uint32_t>(0x1p-6f);

[[gnu::always_inline]] inline uint8_t ToE4M3(float x) {
  const float m = RoundMagnitudeE4M3(Magnitude(x));
  const auto bits = std::bit_cast<int32_t>(m);
  const uint32_t small = MaskBelow(bits, kE4M3FirstNormal);
  const uint32_t nan = MaskBelow(0x7f800000, bits);
  const float lifted = m + std::bit_cast<float>(small & kE4M3FirstNormal);
  const uint32_t code = (std::bit_cast<uint32_t>(lifted) >> 20) - kRebias - (small & 8u);
  const uint32_t sign = std::bit_cast<uint32_t>(x) >> 24 & 0x80u;
  return static_cast<uint8_t>((code & ~nan) | (nan & 0x7fu) | sign);
}

[[gnu::always_inline]] inline float FromE4M3(uint8_t code) {
  const int32_t magnitude = code & 0x7f;
  const uint32_t small = MaskBelow(magnitude, 8);
  const uint32_t nan = MaskBelow(0x7e, magnitude) & 0x7fc00000u;
  const uint32_t lifted = (static_cast<uint32_t>(magnitude) + kRebias + (small & 8u)) << 20;
  const float m = std::bit_cast<float>(lifted) - std::bit_cast<float>(small & kE4M3FirstNormal);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(m) | nan | (uint32_t{code} & 0x80u) << 24);
}

// Nearest integer to x, for |x| < 2^22: the low bits of x + 1.5 · 2^23.
[[gnu::always_inline]] inline int32_t RoundToInt(float x) {
  constexpr float kMagic = 0x1.8p23f;
  return static_cast<int32_t>(std::bit_cast<uint32_t>(x + kMagic) -
                              std::bit_cast<uint32_t>(kMagic));
}

// e2m1 code of the nearest of eight magnitudes; ties go to the even code.
[[gnu::always_inline]] inline uint8_t ToE2M1(float x) {
  const float m = Magnitude(x);
  const int code = (m > 0.25f) + (m >= 0.75f) + (m > 1.25f) + (m >= 1.75f) + (m > 2.5f) +
                   (m >= 3.5f) + (m > 5.0f);
  return static_cast<uint8_t>(code | std::bit_cast<uint32_t>(x) >> 31 << 3);
}

}  // namespace switchyard::rounding
