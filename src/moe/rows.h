// Token rows in flight: float32 in registers and scratch, the model's dtype in exchange buffers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace switchyard {

// Rows of one task where threads share a loop over rows: some tens of KiB, yet few enough that a
// small decode batch still occupies several threads.
constexpr int64_t kRowGrain = 4;

// Types a row may travel in: float32, bfloat16, float16.
bool IsRowDType(DType dtype);

// row[i] = x[i] rounded to `dtype`, i in [0, n).
void StoreRow(DType dtype, const float* x, int64_t n, std::byte* row);

// x[i] = row[i].
void LoadRow(DType dtype, const std::byte* row, int64_t n, float* x);

// sum[i] += weight · row[i], two roundings (product, then sum), as every combine does it.
void AddWeightedRow(DType dtype, const std::byte* row, float weight, int64_t n, float* sum);

}  // namespace switchyard
