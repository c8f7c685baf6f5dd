#include "moe/rows.h"

#include <algorithm>
#include <bit>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "core/check.h"
#include "quant/formats.h"
#include "quant/fp8.h"
#include "quant/vector_width.h"

namespace switchyard {
namespace {

using vector_width::RunWidest;
using vector_width::Width;

// The following structs convert like core/dtype.h, but without branches, so that loops over them
// vectorize.
struct Float32 {
  using Stored = float;
  [[gnu::always_inline]] static inline float To(float x) { return x; }
  [[gnu::always_inline]] static inline float From(float x) { return x; }
  [[gnu::always_inline]] static inline float Rounded(float x) { return x; }
};

struct BFloat16 {
  using Stored = uint16_t;
  [[gnu::always_inline]] static inline float Rounded(float x) {
    const uint32_t u = std::bit_cast<uint32_t>(x);
    const uint32_t rounded = u + 0x7fffu + ((u >> 16) & 1u);
    const uint32_t quiet = u | 0x400000u;
    return std::bit_cast<float>((x != x ? quiet : rounded) & 0xffff0000u);
  }
  [[gnu::always_inline]] static inline uint16_t To(float x) {
    return static_cast<uint16_t>(std::bit_cast<uint32_t>(Rounded(x)) >> 16);
  }
  [[gnu::always_inline]] static inline float From(uint16_t x) {
    return std::bit_cast<float>(uint32_t{x} << 16);
  }
};

struct Float16 {
  using Stored = uint16_t;
  [[gnu::always_inline]] static inline uint16_t To(float x) {
    const uint32_t u = std::bit_cast<uint32_t>(x);
    const uint32_t magnitude = u & 0x7fffffffu;
    // Magnitudes of 2^16 and above become infinity. Magnitudes that round to 2^16 do too.
    const uint32_t finite = magnitude < 0x47800000u ? magnitude : 0x47800000u;
    const uint32_t normal = (finite + 0xfffu + ((finite >> 13) & 1u) - 0x38000000u) >> 13;
    // Magnitudes below 2^-14 are subnormal in float16. Adding 0.5 rounds them to multiples of
    // 2^-24, which are then in the last bits.
    const uint32_t subnormal =
        std::bit_cast<uint32_t>(std::bit_cast<float>(finite) + 0.5f) - 0x3f000000u;
    uint32_t half = finite < 0x38800000u ? subnormal : normal;
    half = magnitude > 0x7f800000u ? 0x7e00u : half;
    return static_cast<uint16_t>(half | ((u >> 16) & 0x8000u));
  }
  [[gnu::always_inline]] static inline float From(uint16_t x) {
    const uint32_t magnitude = x & 0x7fffu;
    const uint32_t normal = (magnitude << 13) + (112u << 23);
    const uint32_t special = normal + (112u << 23);  // infinity and NaN
    const float subnormal = static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f;
    uint32_t bits = magnitude < 0x400u ? std::bit_cast<uint32_t>(subnormal) : normal;
    bits = magnitude >= 0x7c00u ? special : bits;
    return std::bit_cast<float>(bits | (uint32_t{x} & 0x8000u) << 16);
  }
  [[gnu::always_inline]] static inline float Rounded(float x) { return From(To(x)); }
};

template <typename Type>
struct Store {
  [[gnu::always_inline]] static inline void Run(const float* x, int64_t n,
                                                typename Type::Stored* __restrict row) {
    for (int64_t i = 0; i < n; ++i) row[i] = Type::To(x[i]);
  }
};

#if defined(__x86_64__)
// Converts like Store, but with the hardware instruction, which treats subnormals as zero. If the
// row contains a subnormal, returns false, and the caller uses the loop above instead. n must be a
// multiple of 32.
[[gnu::target("avx512f,avx512dq,avx512bf16")]] bool StoreBFloat16Fast(const float* x, int64_t n,
                                                                      uint16_t* row) {
  constexpr int kSubnormal = 0x20;
  __mmask16 subnormal = 0;
  for (int64_t i = 0; i < n; i += 32) {
    const __m512 low = _mm512_loadu_ps(x + i), high = _mm512_loadu_ps(x + i + 16);
    subnormal |= _mm512_fpclass_ps_mask(low, kSubnormal) | _mm512_fpclass_ps_mask(high, kSubnormal);
    _mm512_storeu_si512(row + i, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
  }
  return subnormal == 0;
}

bool HasBFloat16() {
  static const bool has =
      __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512dq");
  return has;
}
#else
bool StoreBFloat16Fast(const float*, int64_t, uint16_t*) { return false; }
bool HasBFloat16() { return false; }
#endif

template <typename Type>
struct Load {
  [[gnu::always_inline]] static inline void Run(const typename Type::Stored* row, int64_t n,
                                                float* __restrict x) {
    for (int64_t i = 0; i < n; ++i) x[i] = Type::From(row[i]);
  }
};

template <typename Type>
struct Round {
  [[gnu::always_inline]] static inline void Run(const float* x, int64_t n, float* __restrict y) {
    for (int64_t i = 0; i < n; ++i) y[i] = Type::Rounded(x[i]);
  }
};

// Elements per prefetch step. Prefetches are outside the inner loop, because inside it they would
// prevent vectorization.
constexpr int64_t kStride = 64;

// Prefetches elements [i, i + kStride) of `next`.
[[gnu::always_inline]] inline void Prefetch(NextRow next, int64_t i) {
  if (next.row == nullptr) return;
  const auto* begin = static_cast<const std::byte*>(next.row) + i * next.element_bytes;
  for (int64_t line = 0; line < kStride * next.element_bytes; line += 64)
    __builtin_prefetch(begin + line, 0, 2);
}

template <typename Type>
struct AddWeighted {
  [[gnu::always_inline]] static inline void Run(const typename Type::Stored* row, float weight,
                                                int64_t n, float* __restrict sum, NextRow next) {
    int64_t i = 0;
    for (; i + kStride <= n; i += kStride) {
      Prefetch(next, i);
      for (int64_t j = i; j < i + kStride; ++j) sum[j] += weight * Type::From(row[j]);
    }
    for (; i < n; ++i) sum[i] += weight * Type::From(row[i]);
  }
};

#if defined(__x86_64__)
// Accumulates kStride elements of all rows in registers, so that y is written once and never read.
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl")]] void SumBFloat16Fast(
    std::span<const std::byte* const> rows, const float* weights, int64_t n, float* y,
    std::span<const std::byte* const> next) {
  constexpr int kVectors = kStride / 16;
  // Intrinsics without a mask trigger warnings about uninitialized values.
  constexpr __mmask16 kAll = 0xffff;
  for (int64_t i = 0; i < n; i += kStride) {
    for (const std::byte* row : next) Prefetch({row, sizeof(uint16_t)}, i);
    for (int v = 0; !next.empty() && v < kVectors; ++v)
      __builtin_prefetch(y + n + i + 16 * v, /*for writing*/ 1, 3);
    __m512 sum[kVectors];
    for (__m512& s : sum) s = _mm512_setzero_ps();
    for (size_t j = 0; j < rows.size(); ++j) {
      const auto* row = reinterpret_cast<const uint16_t*>(rows[j]) + i;
      const __m512 weight = _mm512_set1_ps(weights[j]);
      for (int v = 0; v < kVectors; ++v) {
        const __m512i bits = _mm512_maskz_cvtepu16_epi32(
            kAll, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + 16 * v)));
        const __m512 x = _mm512_castsi512_ps(_mm512_maskz_slli_epi32(kAll, bits, 16));
        sum[v] = _mm512_add_ps(sum[v], _mm512_mul_ps(weight, x));
      }
    }
    for (int v = 0; v < kVectors; ++v) _mm512_storeu_ps(y + i + 16 * v, sum[v]);
  }
}
#else
void SumBFloat16Fast(std::span<const std::byte* const>, const float*, int64_t, float*,
                     std::span<const std::byte* const>) {}
#endif

template <typename Type>
struct AddRounded {
  [[gnu::always_inline]] static inline void Run(const float* x, float weight, int64_t n,
                                                float* __restrict sum, NextRow next) {
    int64_t i = 0;
    for (; i + kStride <= n; i += kStride) {
      Prefetch(next, i);
      for (int64_t j = i; j < i + kStride; ++j) sum[j] += weight * Type::Rounded(x[j]);
    }
    for (; i < n; ++i) sum[i] += weight * Type::Rounded(x[i]);
  }
};

// Calls body with the conversion struct of the dtype.
template <typename Body>
void WithType(DType dtype, const Body& body) {
  CHECK(IsRowDType(dtype));
  if (dtype == DType::kF32) {
    body(Float32());
  } else if (dtype == DType::kBF16) {
    body(BFloat16());
  } else {
    body(Float16());
  }
}

// Byte offset of the scales in an FP8 row of n codes.
int64_t ScalesBegin(int64_t n) { return (n + 3) / 4 * 4; }

}  // namespace

bool IsRowDType(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

int64_t RowFormat::Bytes(int64_t n) const {
  if (!fp8) return n * static_cast<int64_t>(SizeOf(dtype));
  return ScalesBegin(n) + CeilDiv(n, kFp8GroupSize) * static_cast<int64_t>(sizeof(float));
}

void StoreRow(DType dtype, const float* x, int64_t n, std::byte* row) {
  if (dtype == DType::kBF16 && n % 32 == 0 && HasBFloat16() &&
      StoreBFloat16Fast(x, n, reinterpret_cast<uint16_t*>(row)))
    return;
  WithType(dtype, [&]<typename Type>(Type) {
    RunWidest<Store<Type>>(x, n, reinterpret_cast<typename Type::Stored*>(row));
  });
}

void LoadRow(DType dtype, const std::byte* row, int64_t n, float* x) {
  WithType(dtype, [&]<typename Type>(Type) {
    RunWidest<Load<Type>>(reinterpret_cast<const typename Type::Stored*>(row), n, x);
  });
}

void AddWeightedRow(DType dtype, const std::byte* row, float weight, int64_t n, float* sum,
                    NextRow next) {
  WithType(dtype, [&]<typename Type>(Type) {
    RunWidest<AddWeighted<Type>>(reinterpret_cast<const typename Type::Stored*>(row), weight, n,
                                 sum, next);
  });
}

void SumWeightedRows(DType dtype, std::span<const std::byte* const> rows, const float* weights,
                     int64_t n, float* y, std::span<const std::byte* const> next) {
  if (dtype == DType::kBF16 && n % kStride == 0 && vector_width::WidthOfCpu() == Width::kAvx512)
    return SumBFloat16Fast(rows, weights, n, y, next);
  std::fill_n(y, n, 0.0f);
  for (size_t j = 0; j < rows.size(); ++j)
    AddWeightedRow(
        dtype, rows[j], weights[j], n, y,
        {j + 1 < rows.size() ? rows[j + 1] : nullptr, static_cast<int64_t>(SizeOf(dtype))});
}

void AddWeightedRounded(DType dtype, const float* x, float weight, int64_t n, float* sum,
                        NextRow next) {
  WithType(dtype,
           [&]<typename Type>(Type) { RunWidest<AddRounded<Type>>(x, weight, n, sum, next); });
}

void StoreRow(RowFormat format, const float* x, int64_t n, std::byte* row) {
  if (!format.fp8) return StoreRow(format.dtype, x, n, row);
  QuantizeFp8Groups(x, n, reinterpret_cast<uint8_t*>(row),
                    reinterpret_cast<float*>(row + ScalesBegin(n)));
}

void LoadRow(RowFormat format, const std::byte* row, int64_t n, float* x) {
  if (!format.fp8) return LoadRow(format.dtype, row, n, x);
  DequantizeFp8Groups(reinterpret_cast<const uint8_t*>(row),
                      reinterpret_cast<const float*>(row + ScalesBegin(n)), n, x);
}

void RoundRow(RowFormat format, const float* x, int64_t n, float* y) {
  if (!format.fp8) {
    WithType(format.dtype, [&]<typename Type>(Type) { RunWidest<Round<Type>>(x, n, y); });
    return;
  }
  for (int64_t i = 0; i < n; i += kFp8GroupSize) {
    uint8_t codes[kFp8GroupSize];
    float scale;
    const int64_t count = n - i < kFp8GroupSize ? n - i : kFp8GroupSize;
    QuantizeFp8Groups(x + i, count, codes, &scale);
    DequantizeFp8Groups(codes, &scale, count, y + i);
  }
}

}  // namespace switchyard
