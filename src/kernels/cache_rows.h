// How a row of the KV cache is stored: what one token has of one KV head, or of the latent.
//
//   kF32, kBF16, kF16   the elements
//   kF8E4M3             codes of scale 1, as SGLang's `fp8_e4m3` has them without calibration;
//   larger
//                       magnitudes than 448 saturate
//   kI8                 codes -127 to 127, then their scale, a float32 at any address: the row's
//                       largest magnitude / 127
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace switchyard::kernels {

bool IsCacheType(DType dtype);
// Whether a row has a scale of its own, so that heads are stored one by one: StoreKv is then called
// with a row for each head.
constexpr bool HasRowScales(DType dtype) { return dtype == DType::kI8; }
// Bytes of a row of n elements.
int64_t CacheRowBytes(DType dtype, int64_t n);
// x [n] becomes a row, and a row [n] float32 again; the same bits on every CPU. Codes that are NaN
// come back as NaN from ReadCacheRow, and as ±480 in attention.
void WriteCacheRow(DType dtype, const float* x, int64_t n, void* row);
void ReadCacheRow(DType dtype, const void* row, int64_t n, float* x);

}  // namespace switchyard::kernels
