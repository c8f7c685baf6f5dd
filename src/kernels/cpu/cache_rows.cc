#include "kernels/cache_rows.h"

#include <cstring>

#include "core/check.h"
#include "kernels/ops.h"
#include "quant/activations.h"
#include "quant/fp8.h"

namespace switchyard::kernels {
namespace {

template <typename T, typename Convert>
void Write(const float* x, int64_t n, void* row, const Convert& convert) {
  T* out = static_cast<T*>(row);
  for (int64_t i = 0; i < n; ++i) out[i] = convert(x[i]);
}

template <typename T>
void Read(const void* row, int64_t n, float* x) {
  const T* in = static_cast<const T*>(row);
  for (int64_t i = 0; i < n; ++i) x[i] = ToFloat(in[i]);
}

[[noreturn]] void NoCacheType() {
  CheckFailed(__FILE__, __LINE__,
              "KV cache dtype must be float32, bfloat16, float16, float8_e4m3 or int8");
}

}  // namespace

bool IsCacheType(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16 ||
         dtype == DType::kF8E4M3 || dtype == DType::kI8;
}

int64_t CacheRowBytes(DType dtype, int64_t n) {
  const auto scale = HasPerRowScale(dtype) ? static_cast<int64_t>(sizeof(float)) : 0;
  return n * static_cast<int64_t>(SizeOf(dtype)) + scale;
}

void WriteCacheRow(DType dtype, const float* x, int64_t n, void* row) {
  switch (dtype) {
    case DType::kF32:
      std::memcpy(row, x, static_cast<size_t>(n) * sizeof(float));
      return;
    case DType::kBF16:
      return Write<BF16>(x, n, row, ToBF16);
    case DType::kF16:
      return Write<F16>(x, n, row, ToF16);
    case DType::kF8E4M3:
      return EncodeFp8(x, n, 1.0f, static_cast<uint8_t*>(row));
    case DType::kI8: {
      const Int8Row coded = QuantizeInt8Row(x, n, static_cast<int8_t*>(row));
      std::memcpy(static_cast<int8_t*>(row) + n, &coded.scale, sizeof coded.scale);
      return;
    }
    default:
      NoCacheType();
  }
}

void WriteCacheRow(const StoreKvParams& p, int64_t t) {
  const float* const x = p.x + t * p.ldx;
  void* const row = static_cast<char*>(p.cache) + p.slots[t] * CacheRowBytes(p.dtype, p.n);
  if (p.scales == nullptr) return WriteCacheRow(p.dtype, x, p.n, row);
  CHECK(p.dtype == DType::kF8E4M3 && p.n % p.heads == 0);
  const int64_t width = p.n / p.heads;
  for (int64_t h = 0; h < p.heads; ++h)
    EncodeFp8(x + h * width, width, p.scales[h], static_cast<uint8_t*>(row) + h * width);
}

void ReadCacheRow(DType dtype, const void* row, int64_t n, float* x) {
  switch (dtype) {
    case DType::kF32:
      std::memcpy(x, row, static_cast<size_t>(n) * sizeof(float));
      return;
    case DType::kBF16:
      return Read<BF16>(row, n, x);
    case DType::kF16:
      return Read<F16>(row, n, x);
    case DType::kF8E4M3:
      return DecodeFp8(static_cast<const uint8_t*>(row), n, 1.0f, x);
    case DType::kI8: {
      const auto* codes = static_cast<const int8_t*>(row);
      float scale;
      std::memcpy(&scale, codes + n, sizeof scale);
      for (int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(codes[i]) * scale;
      return;
    }
    default:
      NoCacheType();
  }
}

}  // namespace switchyard::kernels
