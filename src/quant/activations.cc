#include "quant/activations.h"

#include <bit>
#include <cstring>

#include "core/check.h"
#include "quant/fp8.h"
#include "quant/rounding.h"
#include "quant/vector_width.h"

namespace switchyard {
namespace {

using vector_width::RunWidest;

[[gnu::always_inline]] inline float Int8Scale(const float* x, int64_t n) {
  const float scale = rounding::LargestMagnitude(x, n) / 127.0f;
  return scale < rounding::kSmallestScale ? rounding::kSmallestScale : scale;
}

struct EncodeInt8 {
  [[gnu::always_inline]] static inline Int8Row Run(const float* x, int64_t n,
                                                   int8_t* __restrict codes) {
    Int8Row row = {.scale = Int8Scale(x, n)};
    const float inverse = 1.0f / row.scale;
    for (int64_t i = 0; i < n; ++i) {
      const auto code = static_cast<int8_t>(rounding::RoundToInt(x[i] * inverse));
      codes[i] = code;
      row.sum += code;
    }
    return row;
  }
};

[[gnu::always_inline]] inline float EncodeInt8Group(const float* x, int64_t n,
                                                    int8_t* __restrict codes) {
  const float scale = Int8Scale(x, n), inverse = 1.0f / scale;
  for (int64_t i = 0; i < n; ++i) {
    codes[i] = static_cast<int8_t>(rounding::RoundToInt(x[i] * inverse));
  }
  return scale;
}

struct EncodeInt8Groups {
  [[gnu::always_inline]] static inline void Run(const float* x, int64_t n, int8_t* codes,
                                                float* scales) {
    int64_t i = 0;
    for (; i + kInt8GroupSize <= n; i += kInt8GroupSize) {
      *scales++ = EncodeInt8Group(x + i, kInt8GroupSize, codes + i);
    }
    if (i < n) *scales = EncodeInt8Group(x + i, n - i, codes + i);
  }
};

struct RoundInt8 {
  [[gnu::always_inline]] static inline void Run(const float* x, int64_t n, float* out) {
    const float scale = Int8Scale(x, n), inverse = 1.0f / scale;
    for (int64_t i = 0; i < n; ++i) {
      out[i] = static_cast<float>(rounding::RoundToInt(x[i] * inverse)) * scale;
    }
  }
};

struct RoundBFloat16 {
  [[gnu::always_inline]] static inline void Run(const float* x, int64_t n, float* out) {
    for (int64_t i = 0; i < n; ++i)
      out[i] = std::bit_cast<float>(rounding::RoundBitsBFloat16(x[i]));
  }
};

struct NarrowBFloat16 {
  [[gnu::always_inline]] static inline void Run(const float* x, int64_t n,
                                                uint16_t* __restrict out) {
    for (int64_t i = 0; i < n; ++i) {
      out[i] = static_cast<uint16_t>(rounding::RoundBitsBFloat16(x[i]) >> 16);
    }
  }
};

struct RoundFp8 {
  [[gnu::always_inline]] static inline void Run(const float* x, int64_t n, float scale,
                                                float* out) {
    const float inverse = 1.0f / scale;
    for (int64_t i = 0; i < n; ++i) out[i] = rounding::RoundE4M3(x[i] * inverse) * scale;
  }
};

}  // namespace

void RoundActivations(ActivationFormat format, float input_scale, const float* x, int64_t n,
                      float* out) {
  switch (format) {
    case ActivationFormat::kNone:
      std::memmove(out, x, static_cast<size_t>(n) * sizeof(float));
      return;
    case ActivationFormat::kFp8Group:
      for (int64_t i = 0; i < n; i += kFp8GroupSize) {
        const int64_t count = n - i < kFp8GroupSize ? n - i : kFp8GroupSize;
        RunWidest<RoundFp8>(x + i, count, Fp8Scale(x + i, count), out + i);
      }
      return;
    case ActivationFormat::kFp8Token:
      return RunWidest<RoundFp8>(x, n, Fp8Scale(x, n), out);
    case ActivationFormat::kFp8Tensor:
      return RunWidest<RoundFp8>(x, n, input_scale, out);
    case ActivationFormat::kInt8Token:
      return RunWidest<RoundInt8>(x, n, out);
    case ActivationFormat::kBFloat16:
      return RunWidest<RoundBFloat16>(x, n, out);
    case ActivationFormat::kInt8Group:
      for (int64_t i = 0; i < n; i += kInt8GroupSize) {
        RunWidest<RoundInt8>(x + i, n - i < kInt8GroupSize ? n - i : kInt8GroupSize, out + i);
      }
      return;
  }
  CheckFailed(__FILE__, __LINE__, "unknown activation format");
}

void NarrowToBFloat16(const float* x, int64_t n, uint16_t* out) {
  RunWidest<NarrowBFloat16>(x, n, out);
}

Int8Row QuantizeInt8Row(const float* x, int64_t n, int8_t* codes) {
  return RunWidest<EncodeInt8>(x, n, codes);
}

void QuantizeInt8Groups(const float* x, int64_t n, int8_t* codes, float* scales) {
  RunWidest<EncodeInt8Groups>(x, n, codes, scales);
}

}  // namespace switchyard
