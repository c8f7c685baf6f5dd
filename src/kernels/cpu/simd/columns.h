// x · W with W as stored, one block of columns at a time: converts the block's rows once, then
// accumulates them weighted by x.
#pragma once

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/simd/rows.h"
#include "kernels/cpu/simd/weighted_rows.h"

namespace switchyard::kernels::cpu::simd {

template <class V>
void Columns(const ColumnsTask& t) {
  const int64_t width = t.end - t.begin;
  float* panel = t.scratch;                           // [kColumnDepth, kColumnBlock]
  float* acc = panel + kColumnDepth * kColumnBlock;   // [kColumnBatch, kColumnBlock]
  float* scales = acc + kColumnBatch * kColumnBlock;  // ScaleFloats(kColumnBlock)
  const float* rows[kColumnDepth];
  for (int64_t r = 0; r < kColumnDepth; ++r) rows[r] = panel + r * kColumnBlock;
  WeightRef part = t.w;
  part.col0 += t.begin;
  part.skip = t.begin;
  part.k = width;
  const int64_t padded = (width + V::kLanes - 1) / V::kLanes * V::kLanes;
  for (int64_t i = 0; i < t.m; i += kColumnBatch) {
    const int64_t m = t.m - i < kColumnBatch ? t.m - i : kColumnBatch;
    for (int64_t c = 0; c < m * kColumnBlock; c += V::kLanes) V::Store(acc + c, V::Zero());
    for (int64_t r = 0; r < t.w.n; r += kColumnDepth) {
      const int64_t depth = t.w.n - r < kColumnDepth ? t.w.n - r : kColumnDepth;
      ConvertRows<V>(part, r, depth, scales, kColumnBlock, panel);
      RowPrefetch none;
      AddWeightedRows<V>(t.x + i * t.ldx + r, t.ldx, rows, 0, depth, padded, m, acc, kColumnBlock,
                         none);
    }
    for (int64_t row = 0; row < m; ++row) {
      for (int64_t c = 0; c < width; ++c) {
        t.y[(i + row) * t.ldy + t.begin + c] = acc[row * kColumnBlock + c];
      }
    }
  }
}

}  // namespace switchyard::kernels::cpu::simd
