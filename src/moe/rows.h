// Token rows in flight: float32 in registers and scratch, the model's dtype or FP8 in exchange
// buffers. Every function gives the same bits on every CPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/dtype.h"

namespace switchyard {

// Rows of one task where threads share a loop over rows: some µs of work, which is what waking a
// thread costs.
constexpr int64_t kRowGrain = 16;

// Types a row may travel in: float32, bfloat16, float16.
bool IsRowDType(DType dtype);

// How a row of n elements lies in an exchange buffer. FP8: n e4m3 codes, then, on the next multiple
// of four bytes, one float32 scale for each 128 of them (quant's QuantizeFp8Groups).
struct RowFormat {
  DType dtype = DType::kF32;
  bool fp8 = false;  // `dtype` is then that of the rows before they are quantized

  int64_t Bytes(int64_t n) const;  // a multiple of four for FP8
  // Whether rows travel as they are computed with: float32.
  bool plain() const { return dtype == DType::kF32 && !fp8; }
  bool operator==(const RowFormat&) const = default;
};

// row[i] = x[i] rounded to `dtype`, i in [0, n).
void StoreRow(DType dtype, const float* x, int64_t n, std::byte* row);
void StoreRow(RowFormat format, const float* x, int64_t n, std::byte* row);

// x[i] = row[i].
void LoadRow(DType dtype, const std::byte* row, int64_t n, float* x);
void LoadRow(RowFormat format, const std::byte* row, int64_t n, float* x);

// y = x as it is after it has travelled: what StoreRow and LoadRow make of it, in one go.
void RoundRow(RowFormat format, const float* x, int64_t n, float* y);

// The row that a caller reads after this one, to be brought closer meanwhile: rows often lie far
// from one another, and hardware looks ahead within a page only.
struct NextRow {
  const void* row = nullptr;
  int64_t element_bytes = 0;
};

// y[i] = Σ_j weights[j] · rows[j][i], from zero, j ascending, each product and each sum rounded:
// the same bits as zeros and AddWeightedRow for one row after the other. `next`: rows that
// the caller sums after these, to y + n; or none.
void SumWeightedRows(DType dtype, std::span<const std::byte* const> rows, const float* weights,
                     int64_t n, float* y, std::span<const std::byte* const> next = {});
// sum[i] += weight · row[i], two roundings (product, then sum), as every combine does it.
void AddWeightedRow(DType dtype, const std::byte* row, float weight, int64_t n, float* sum,
                    NextRow next = {});
// The same for a row that did not travel: row[i] is x[i] rounded to `dtype`.
void AddWeightedRounded(DType dtype, const float* x, float weight, int64_t n, float* sum,
                        NextRow next = {});

}  // namespace switchyard
