#include "quant/fp8.h"

#include <algorithm>
#include <bit>

#include "quant/rounding.h"
#include "quant/vector_width.h"

namespace switchyard {
namespace {

using vector_width::RunWidest;

[[gnu::always_inline]] inline float ScaleOf(const float* x, int64_t n) {
  float scale = rounding::LargestMagnitude(x, n) / 448.0f;
  scale = scale < rounding::kSmallestScale ? rounding::kSmallestScale : scale;
  return std::bit_cast<float>((std::bit_cast<uint32_t>(scale) + 8u) & ~15u);
}

struct Scale {
  [[gnu::always_inline]] static inline float Run(const float* x, int64_t n) {
    return ScaleOf(x, n);
  }
};

struct Encode {
  [[gnu::always_inline]] static inline void Run(const float* x, int64_t n, float scale,
                                                uint8_t* __restrict codes) {
    const float inverse = 1.0f / scale;
    for (int64_t i = 0; i < n; ++i) codes[i] = rounding::ToE4M3(x[i] * inverse);
  }
};

struct Decode {
  [[gnu::always_inline]] static inline void Run(const uint8_t* codes, int64_t n, float scale,
                                                float* __restrict x) {
    for (int64_t i = 0; i < n; ++i) x[i] = rounding::FromE4M3(codes[i]) * scale;
  }
};

struct EncodeGroups {
  [[gnu::always_inline]] static inline void Run(const float* x, int64_t n, uint8_t* codes,
                                                float* scales) {
    for (int64_t i = 0; i < n; i += kFp8GroupSize) {
      const int64_t count = n - i < kFp8GroupSize ? n - i : kFp8GroupSize;
      const float scale = *scales++ = ScaleOf(x + i, count);
      Encode::Run(x + i, count, scale, codes + i);
    }
  }
};

struct DecodeGroups {
  [[gnu::always_inline]] static inline void Run(const uint8_t* codes, const float* scales,
                                                int64_t n, float* x) {
    for (int64_t i = 0; i < n; i += kFp8GroupSize) {
      const int64_t count = n - i < kFp8GroupSize ? n - i : kFp8GroupSize;
      Decode::Run(codes + i, count, *scales++, x + i);
    }
  }
};

struct AnyNan {
  [[gnu::always_inline]] static inline bool Run(const uint8_t* codes, int64_t n) {
    uint8_t any = 0;
    for (int64_t i = 0; i < n; ++i) any |= (codes[i] & 0x7f) == 0x7f ? 1 : 0;
    return any != 0;
  }
};

}  // namespace

void EncodeFp8(const float* x, int64_t n, float scale, uint8_t* codes) {
  RunWidest<Encode>(x, n, scale, codes);
}

void DecodeFp8(const uint8_t* codes, int64_t n, float scale, float* x) {
  RunWidest<Decode>(codes, n, scale, x);
}

float Fp8Scale(const float* x, int64_t n) { return RunWidest<Scale>(x, n); }

void QuantizeFp8Groups(const float* x, int64_t n, uint8_t* codes, float* scales) {
  RunWidest<EncodeGroups>(x, n, codes, scales);
}

void DequantizeFp8Groups(const uint8_t* codes, const float* scales, int64_t n, float* x) {
  RunWidest<DecodeGroups>(codes, scales, n, x);
}

bool HasNanCodes(std::span<const uint8_t> codes) {
  constexpr size_t kChunk = 65536;  // bytes between two checks for an early exit
  for (size_t at = 0; at < codes.size(); at += kChunk) {
    const auto count = static_cast<int64_t>(std::min(kChunk, codes.size() - at));
    if (RunWidest<AnyNan>(codes.data() + at, count)) return true;
  }
  return false;
}

}  // namespace switchyard
