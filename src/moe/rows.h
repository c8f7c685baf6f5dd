// Conversion and weighted sums of token rows. Rows are float32 in registers and scratch. In
// exchange buffers they have the model's dtype or are FP8. Every function is bit-identical on every
// CPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/dtype.h"

namespace switchyard {

// Rows per work item of parallel loops over rows. This is some µs of work, about the cost of waking
// a thread.
constexpr int64_t kRowGrain = 16;

// Dtypes of rows in exchange buffers: float32, bfloat16, float16.
bool IsRowDType(DType dtype);

// Format of a row of n elements in an exchange buffer. An FP8 row has n e4m3 codes and then,
// aligned to four bytes, one float32 scale per 128 codes (QuantizeFp8Groups in quant/).
struct RowFormat {
  DType dtype = DType::kF32;
  bool fp8 = false;  // if set, `dtype` is the type before quantization

  int64_t Bytes(int64_t n) const;  // a multiple of four for FP8
  // Whether rows are exchanged without conversion, as float32.
  bool plain() const { return dtype == DType::kF32 && !fp8; }
  bool operator==(const RowFormat&) const = default;
};

// row[i] = x[i] rounded to `dtype`, i in [0, n).
void StoreRow(DType dtype, const float* x, int64_t n, std::byte* row);
void StoreRow(RowFormat format, const float* x, int64_t n, std::byte* row);

// x[i] = row[i], converted to float32.
void LoadRow(DType dtype, const std::byte* row, int64_t n, float* x);
void LoadRow(RowFormat format, const std::byte* row, int64_t n, float* x);

// y = LoadRow(StoreRow(x)): applies the rounding of a dispatched row, in one pass.
void RoundRow(RowFormat format, const float* x, int64_t n, float* y);

// The row that the caller reads next. It is prefetched by software, because rows are often far
// apart in memory and the hardware prefetcher stops at page boundaries.
struct NextRow {
  const void* row = nullptr;
  int64_t element_bytes = 0;
};

// y[i] = Σ_j weights[j] · rows[j][i], summed from zero in ascending order of j. Each product and
// each sum is rounded. Bit-identical to zeroing y and calling AddWeightedRow for each row. `next`:
// the rows that the caller sums next, which are prefetched; they are summed to y + n. May be empty.
void SumWeightedRows(DType dtype, std::span<const std::byte* const> rows, const float* weights,
                     int64_t n, float* y, std::span<const std::byte* const> next = {});
// sum[i] += weight · row[i]. Product and sum are rounded separately, as in every combine.
void AddWeightedRow(DType dtype, const std::byte* row, float weight, int64_t n, float* sum,
                    NextRow next = {});
// sum[i] += weight · (x[i] rounded to `dtype`), for a local float32 row. Products and sums are
// rounded as in AddWeightedRow.
void AddWeightedRounded(DType dtype, const float* x, float weight, int64_t n, float* sum,
                        NextRow next = {});

}  // namespace switchyard
