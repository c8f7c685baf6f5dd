#include "kernels/cpu/rounded_rows.h"

#include <algorithm>
#include <cstring>

#include "core/check.h"
#include "kernels/cpu/driver.h"
#include "kernels/cpu/int8_blocks.h"
#include "quant/activations.h"

namespace switchyard::kernels::cpu {
namespace {

constexpr int64_t kLine = 64;  // bytes; also the widest vector of codes
constexpr int64_t kFloat = sizeof(float), kHalf = sizeof(uint16_t);

// Row stride of int8 and bfloat16 rows: an odd number of cache lines, so that rows multiplied
// together map to different L1 sets.
int64_t RowStride(int64_t bytes) {
  return CeilDiv(bytes, kLine) % 2 == 0 ? RoundUp(bytes, kLine) + kLine : RoundUp(bytes, kLine);
}

}  // namespace

bool UsesInt8Product(const WeightView& w) {
  return w.format == WeightFormat::kInt8Channel && w.activation == ActivationFormat::kInt8Token;
}

InputRowFormat InputRowFormatOf(const WeightView& w) {
  if (w.activation == ActivationFormat::kNone) return InputRowFormat::kUnrounded;
  if (UsesInt8Product(w)) return InputRowFormat::kInt8Codes;
  const KernelTable* kernels = ActiveKernels();
  if (HasInt8Blocks(w) && kernels != nullptr) return InputRowFormat::kInt8Blocks;
  if (w.activation != ActivationFormat::kBFloat16 || kernels == nullptr)
    return InputRowFormat::kFloat32Rows;
  // A block of a view that begins within a block of the matrix would have two scales.
  const bool whole = w.format == WeightFormat::kFp8Channel ||
                     (w.format == WeightFormat::kFp8Block && w.col0 % kFp8BlockSize == 0);
  const bool bf16_rows = (w.format == WeightFormat::kBF16 && kernels->linear_bf16 != nullptr) ||
                         (whole && kernels->linear_fp8 != nullptr);
  return bf16_rows ? InputRowFormat::kBFloat16Rows : InputRowFormat::kFloat32Rows;
}

void InputRowFormats::Add(InputRowFormat form) {
  floats = floats || form == InputRowFormat::kFloat32Rows;
  codes = codes || form == InputRowFormat::kInt8Codes;
  bf16_rows = bf16_rows || form == InputRowFormat::kBFloat16Rows;
  blocks = blocks || form == InputRowFormat::kInt8Blocks;
}

bool SameInput(const WeightView& a, const WeightView& b) {
  const InputRowFormat form = InputRowFormatOf(a);
  return a.activation == b.activation && form == InputRowFormatOf(b) &&
         (form != InputRowFormat::kInt8Blocks || SameInt8Blocks(a, b)) &&
         (a.activation != ActivationFormat::kFp8Tensor || a.input_scale == b.input_scale);
}

void RoundedRows::Put(const WeightView& w, int64_t row, const float* from) const {
  switch (InputRowFormatOf(w)) {
    case InputRowFormat::kUnrounded:
      return;
    case InputRowFormat::kFloat32Rows:
      return RoundActivations(w.activation, w.input_scale, from, k, x + row * ldx);
    case InputRowFormat::kInt8Codes: {
      int8_t* out = codes + row * ldc;
      int8_rows[row] = QuantizeInt8Row(from, k, out);
      std::memset(out + k, 0, static_cast<size_t>(ldc - k));
      return;
    }
    case InputRowFormat::kBFloat16Rows: {
      uint16_t* out = bf16_rows + row * ldh;
      NarrowToBFloat16(from, k, out);
      std::fill(out + k, out + ldh, uint16_t{0});
      return;
    }
    case InputRowFormat::kInt8Blocks:
      return PutInt8BlockRow(w, from, k, blocks + row * ldb);
  }
}

void RunLinear(const KernelTable& kernels, const WeightView& w, const RoundedRows& input,
               int64_t first, const int32_t* ids, LinearTask t) {
  switch (InputRowFormatOf(w)) {
    case InputRowFormat::kUnrounded:
      break;
    case InputRowFormat::kFloat32Rows:
      t.x = {input.x + first * input.ldx, input.ldx, ids};
      break;
    case InputRowFormat::kInt8Codes:
      t.codes = {input.codes + first * input.ldc, input.ldc, ids, input.int8_rows + first};
      return kernels.linear_int8(t);
    case InputRowFormat::kBFloat16Rows:
      t.bf16_rows = {input.bf16_rows + first * input.ldh, input.ldh, ids};
      return w.format == WeightFormat::kBF16 ? kernels.linear_bf16(t) : kernels.linear_fp8(t);
    case InputRowFormat::kInt8Blocks:
      t.blocks = {input.blocks + first * input.ldb, input.ldb, ids, Int8BlockColumns(w)};
      return kernels.linear_four_bit(t);
  }
  kernels.linear(t);
}

int64_t RoundedBytes(int64_t rows, int64_t k, const InputRowFormats& forms) {
  int64_t bytes = 0;
  if (forms.floats) bytes += rows * RoundUp(k * kFloat, kLine);
  if (forms.codes) {
    bytes += rows * RowStride(k) + RoundUp(rows * static_cast<int64_t>(sizeof(Int8Row)), kLine);
  }
  if (forms.bf16_rows) bytes += rows * RowStride(k * kHalf);
  if (forms.blocks) bytes += rows * RowStride(Int8BlockRowBytes(k));
  return bytes;
}

RoundedRows AssignRoundedBuffers(int64_t rows, int64_t k, const InputRowFormats& forms,
                                 char* memory) {
  RoundedRows out = {.k = k};
  if (forms.floats) {
    out.x = reinterpret_cast<float*>(memory);
    out.ldx = RoundUp(k * kFloat, kLine) / kFloat;
    memory += RoundedBytes(rows, k, {.floats = true});
  }
  if (forms.codes) {
    CHECK_LE(k, kInt8MaxDepth);
    out.codes = reinterpret_cast<int8_t*>(memory);
    out.ldc = RowStride(k);
    out.int8_rows = reinterpret_cast<Int8Row*>(memory + rows * out.ldc);
    memory += RoundedBytes(rows, k, {.codes = true});
  }
  if (forms.bf16_rows) {
    out.bf16_rows = reinterpret_cast<uint16_t*>(memory);
    out.ldh = RowStride(k * kHalf) / kHalf;
    memory += RoundedBytes(rows, k, {.bf16_rows = true});
  }
  if (forms.blocks) {
    out.blocks = memory;
    out.ldb = RowStride(Int8BlockRowBytes(k));
  }
  return out;
}

}  // namespace switchyard::kernels::cpu
