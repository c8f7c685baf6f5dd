// Input rows rounded to a weight's activation format, before tasks multiply them.
#pragma once

#include <cstdint>

#include "kernels/cpu/leaves.h"
#include "quant/weight_view.h"

namespace switchyard::kernels::cpu {

// Whether the product runs in int8: codes by codes. Other pairs of formats multiply rounded
// float32.
bool MultipliesInt8(const WeightView& w);

// Whether rows rounded for one weight serve the other.
bool SameInput(const WeightView& a, const WeightView& b);

// Where rounded rows of k elements lie: as float32, or as int8 codes for weights that
// MultipliesInt8. Belongs to one call of an op on the rank's thread; its tasks write rows and read
// them.
struct RoundedRows {
  int64_t k = 0;
  float* x = nullptr;  // [rows, ldx]
  int64_t ldx = 0;
  int8_t* codes = nullptr;  // [rows, ldc], zeros from k on
  int64_t ldc = 0;
  Int8Row* int8_rows = nullptr;  // [rows]

  // Rounds x [k] for products with w. `from` may be the row itself.
  void Put(const WeightView& w, int64_t row, const float* from) const;
};

// Runs t, whose weight is w. If that wants its input rounded, rows first + i, or first + ids[i], of
// `input` take the place of t.x.
void RunLinear(const Leaves& leaves, const WeightView& w, const RoundedRows& input, int64_t first,
               const int32_t* ids, LinearTask t);

// Bytes of `rows` rows as float32, as codes, or both; a multiple of 64.
int64_t RoundedBytes(int64_t rows, int64_t k, bool floats, bool codes);

// Rows at `memory`, RoundedBytes(…) aligned to 64 bytes.
RoundedRows PlaceRounded(int64_t rows, int64_t k, bool floats, bool codes, char* memory);

}  // namespace switchyard::kernels::cpu
