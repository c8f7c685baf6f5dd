// Int8 rows for products with 4-bit weights and with panels (quant/panels.h). A row is divided into
// chunks of kInt8GroupSize columns, which have one scale each. A chunk is divided into blocks: the
// columns that share a weight scale.
//
// Layout of a row of k columns, c = ceil(k / kInt8GroupSize) chunks of b blocks:
//   int8 codes [c][128], zeros from column k on. The 64 even columns of a chunk precede the 64
//     odd ones, because low and high nibbles of weight bytes are multiplied separately.
//   float scales [c]
//   int32 starts [c][b]: minus FourBitOffset times the sum of the block's codes. For kQ4KPanels
//     and kQ5KPanels these are float32 numbers.
//
// Kernels multiply unsigned weights, w + offset, with the codes. A sum that begins at `start` is
// then the exact sum of the products of w and codes. An output is
//   Σ over chunks in order: scale of the chunk · Σ over its blocks in order: weight scale · sum
// in float32, with fused multiply-adds from zero on. So it does not depend on the number of rows.
// A block of kQ4KPanels and kQ5KPanels adds two products: scale · sum, where the sum begins at 0,
// then minimum · start.
#pragma once

#include <cstdint>

#include "quant/weight_view.h"

namespace switchyard::kernels::cpu {

// Columns of a block: 16 (kNvfp4 and its panels, kQ6KPanels), 32, 64 or 128; 0 if the view's scales
// do not allow such blocks, or if it begins within a panel.
int64_t Int8BlockColumns(const WeightView& w);

// Whether products with w use these rows: TakesInt8Groups of its format, activation kInt8Group or
// kInt8Token, and Int8BlockColumns over 0.
bool HasInt8Blocks(const WeightView& w);

// Whether rows that were prepared for weight `a` can be multiplied with `b` too. Both have the same
// activation format.
bool SameInt8Blocks(const WeightView& a, const WeightView& b);

// The number that kernels add to weights to make them unsigned: 8 for kInt4Group, or 16 with zero
// points; 12 for e2m1, whose values are doubled to be integers; 32 for Q6_K; 128 for Q8_0 and
// IQ4_XS. Codes of Q4_K and Q5_K are already unsigned. Their offset is 1, so that `starts` are
// minus the sums, which are the factors of minima.
int32_t FourBitOffset(const WeightView& w);

// Bytes of a row of k columns, for any weight.
int64_t Int8BlockRowBytes(int64_t k);

// Writes the row of x [k] for products with w. `row` is aligned to 64 bytes. w has HasInt8Blocks.
void PutInt8BlockRow(const WeightView& w, const float* x, int64_t k, char* row);

}  // namespace switchyard::kernels::cpu
