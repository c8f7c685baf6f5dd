// Activation quantization of a CPU op: input rows rounded to the weight's activation format before
// its tasks run.
#pragma once

#include <cstdint>

#include "kernels/cpu/kernel_table.h"
#include "quant/weight_view.h"

namespace switchyard::kernels::cpu {

// Whether the product runs in int8 (int8 rows by int8 weights). Other format pairs multiply rounded
// float32, or bfloat16.
bool UsesInt8Product(const WeightView& w);

// Input row format of a weight, for the active instruction set.
enum class InputRowFormat : uint8_t {
  kUnrounded,    // not rounded
  kFloat32Rows,  // rounded, as float32
  kInt8Codes,    // int8, for weights with UsesInt8Product
  // bfloat16, for bfloat16 and FP8 weights if the instruction set has such products. FP8 blocks
  // must be whole.
  kBFloat16Rows,
  kInt8Blocks,  // int8 for 4-bit weights (int8_blocks.h)
};
InputRowFormat InputRowFormatOf(const WeightView& w);

// The set of formats that rows are rounded to.
struct InputRowFormats {
  bool floats = false, codes = false, bf16_rows = false, blocks = false;

  bool any() const { return floats || codes || bf16_rows || blocks; }
  void Add(InputRowFormat form);
};

// Whether the rounded rows of one weight can be reused for the other.
bool SameInput(const WeightView& a, const WeightView& b);

// Buffers of rounded rows of k elements, in one or more formats. Owned by one call of an op on the
// rank's thread; its tasks write and read the rows.
struct RoundedRows {
  int64_t k = 0;
  float* x = nullptr;  // [rows, ldx]
  int64_t ldx = 0;
  int8_t* codes = nullptr;  // [rows, ldc], zeros from k on
  int64_t ldc = 0;
  Int8Row* int8_rows = nullptr;   // [rows]
  uint16_t* bf16_rows = nullptr;  // [rows, ldh], zeros from k on
  int64_t ldh = 0;
  char* blocks = nullptr;  // [rows, ldb] bytes
  int64_t ldb = 0;

  // Rounds x [k] for products with w. `from` may be the destination row.
  void Put(const WeightView& w, int64_t row, const float* from) const;
};

// Runs t, whose weight is w. If w needs rounded inputs, rows first + i, or first + ids[i], of
// `input` replace t.x.
void RunLinear(const KernelTable& kernels, const WeightView& w, const RoundedRows& input,
               int64_t first, const int32_t* ids, LinearTask t);

// Bytes of `rows` rows in these formats; a multiple of 64.
int64_t RoundedBytes(int64_t rows, int64_t k, const InputRowFormats& forms);

// Assigns the buffers in `memory`: RoundedBytes(…) bytes, aligned to 64.
RoundedRows AssignRoundedBuffers(int64_t rows, int64_t k, const InputRowFormats& forms,
                                 char* memory);

}  // namespace switchyard::kernels::cpu
