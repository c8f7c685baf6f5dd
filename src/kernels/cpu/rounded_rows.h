// Input rows rounded to a weight's activation format, before tasks multiply them.
#pragma once

#include <cstdint>

#include "kernels/cpu/leaves.h"
#include "quant/weight_view.h"

namespace switchyard::kernels::cpu {

// Whether the product runs in int8: codes by codes. Other pairs of formats multiply rounded
// float32.
bool MultipliesInt8(const WeightView& w);

// How a weight takes its rows, on the instruction set in use.
enum class RowForm : uint8_t {
  kAsTheyAre,
  kFloats,  // rounded, as float32
  kCodes,   // int8, for weights that MultipliesInt8
  kHalves,  // bfloat16, for weights in it, where there are products of such pairs
};
RowForm RowFormOf(const WeightView& w);

// The forms that rows are rounded to.
struct RowForms {
  bool floats = false, codes = false, halves = false;

  bool any() const { return floats || codes || halves; }
  void Add(RowForm form);
};

// Whether rows rounded for one weight serve the other.
bool SameInput(const WeightView& a, const WeightView& b);

// Where rounded rows of k elements lie, in some of the forms. Belongs to one call of an op on the
// rank's thread; its tasks write rows and read them.
struct RoundedRows {
  int64_t k = 0;
  float* x = nullptr;  // [rows, ldx]
  int64_t ldx = 0;
  int8_t* codes = nullptr;  // [rows, ldc], zeros from k on
  int64_t ldc = 0;
  Int8Row* int8_rows = nullptr;  // [rows]
  uint16_t* halves = nullptr;    // [rows, ldh], zeros from k on
  int64_t ldh = 0;

  // Rounds x [k] for products with w. `from` may be the row itself.
  void Put(const WeightView& w, int64_t row, const float* from) const;
};

// Runs t, whose weight is w. If that wants its input rounded, rows first + i, or first + ids[i], of
// `input` take the place of t.x.
void RunLinear(const Leaves& leaves, const WeightView& w, const RoundedRows& input, int64_t first,
               const int32_t* ids, LinearTask t);

// Bytes of `rows` rows in these forms; a multiple of 64.
int64_t RoundedBytes(int64_t rows, int64_t k, const RowForms& forms);

// Rows at `memory`, RoundedBytes(…) aligned to 64 bytes.
RoundedRows PlaceRounded(int64_t rows, int64_t k, const RowForms& forms, char* memory);

}  // namespace switchyard::kernels::cpu
