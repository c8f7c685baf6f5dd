// Storage format of a KV cache row: one token of one KV head, or one token of the latent.
//
//   kF32, kBF16, kF16   the elements
//   kF8E4M3             codes of the elements divided by a scale, which is not stored: that of the
//                       tensor or of the head, from the checkpoint, or 1. Quotients over 448
//                       saturate
//   kI8                 codes -127 to 127, then their scale: a float32 at any alignment, the row's
//                       largest magnitude / 127
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace switchyard::kernels {

struct StoreKvParams;  // kernels/ops.h

bool IsCacheType(DType dtype);
// Whether each row has its own scale. Heads are then stored separately: StoreKv is called with one
// row per head.
constexpr bool HasPerRowScale(DType dtype) { return dtype == DType::kI8; }
// Bytes of a row of n elements.
int64_t CacheRowBytes(DType dtype, int64_t n);
// Encode x [n] to a row and decode a row to float32, bit-identical on every CPU. The scale of
// kF8E4M3 is 1. ReadCacheRow decodes NaN codes to NaN; attention decodes them to ±480.
void WriteCacheRow(DType dtype, const float* x, int64_t n, void* row);
void ReadCacheRow(DType dtype, const void* row, int64_t n, float* x);
// Encodes row t of p.x to its slot, with p.scales.
void WriteCacheRow(const StoreKvParams& p, int64_t t);

}  // namespace switchyard::kernels
