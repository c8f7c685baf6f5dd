#include "kernels/cpu/rounded_rows.h"

#include <algorithm>
#include <cstring>

#include "core/check.h"
#include "kernels/cpu/driver.h"
#include "quant/activations.h"

namespace switchyard::kernels::cpu {
namespace {

constexpr int64_t kLine = 64;  // bytes; also the widest vector of codes
constexpr int64_t kFloat = sizeof(float), kHalf = sizeof(uint16_t);

int64_t RoundUp(int64_t n) { return CeilDiv(n, kLine) * kLine; }

// Row stride of int8 and bfloat16 rows: an odd number of cache lines, so that rows multiplied
// together map to different L1 sets.
int64_t RowStride(int64_t bytes) {
  return CeilDiv(bytes, kLine) % 2 == 0 ? RoundUp(bytes) + kLine : RoundUp(bytes);
}

}  // namespace

bool MultipliesInt8(const WeightView& w) {
  return w.format == WeightFormat::kInt8Channel && w.activation == ActivationFormat::kInt8Token;
}

RowForm RowFormOf(const WeightView& w) {
  if (w.activation == ActivationFormat::kNone) return RowForm::kAsTheyAre;
  if (MultipliesInt8(w)) return RowForm::kCodes;
  const bool pairs = w.format == WeightFormat::kBF16 && w.activation == ActivationFormat::kBFloat16;
  const Leaves* leaves = ActiveLeaves();
  const bool halves = pairs && leaves != nullptr && leaves->linear_bf16 != nullptr;
  return halves ? RowForm::kHalves : RowForm::kFloats;
}

void RowForms::Add(RowForm form) {
  floats = floats || form == RowForm::kFloats;
  codes = codes || form == RowForm::kCodes;
  halves = halves || form == RowForm::kHalves;
}

bool SameInput(const WeightView& a, const WeightView& b) {
  return a.activation == b.activation && RowFormOf(a) == RowFormOf(b) &&
         (a.activation != ActivationFormat::kFp8Tensor || a.input_scale == b.input_scale);
}

void RoundedRows::Put(const WeightView& w, int64_t row, const float* from) const {
  switch (RowFormOf(w)) {
    case RowForm::kAsTheyAre:
      return;
    case RowForm::kFloats:
      return RoundActivations(w.activation, w.input_scale, from, k, x + row * ldx);
    case RowForm::kCodes: {
      int8_t* out = codes + row * ldc;
      int8_rows[row] = QuantizeInt8Row(from, k, out);
      std::memset(out + k, 0, static_cast<size_t>(ldc - k));
      return;
    }
    case RowForm::kHalves: {
      uint16_t* out = halves + row * ldh;
      NarrowToBFloat16(from, k, out);
      std::fill(out + k, out + ldh, uint16_t{0});
      return;
    }
  }
}

void RunLinear(const Leaves& leaves, const WeightView& w, const RoundedRows& input, int64_t first,
               const int32_t* ids, LinearTask t) {
  switch (RowFormOf(w)) {
    case RowForm::kAsTheyAre:
      break;
    case RowForm::kFloats:
      t.x = {input.x + first * input.ldx, input.ldx, ids};
      break;
    case RowForm::kCodes:
      t.codes = {input.codes + first * input.ldc, input.ldc, ids, input.int8_rows + first};
      return leaves.linear_int8(t);
    case RowForm::kHalves:
      t.halves = {input.halves + first * input.ldh, input.ldh, ids};
      return leaves.linear_bf16(t);
  }
  leaves.linear(t);
}

int64_t RoundedBytes(int64_t rows, int64_t k, const RowForms& forms) {
  int64_t bytes = 0;
  if (forms.floats) bytes += rows * RoundUp(k * kFloat);
  if (forms.codes) {
    bytes += rows * RowStride(k) + RoundUp(rows * static_cast<int64_t>(sizeof(Int8Row)));
  }
  if (forms.halves) bytes += rows * RowStride(k * kHalf);
  return bytes;
}

RoundedRows PlaceRounded(int64_t rows, int64_t k, const RowForms& forms, char* memory) {
  RoundedRows out = {.k = k};
  if (forms.floats) {
    out.x = reinterpret_cast<float*>(memory);
    out.ldx = RoundUp(k * kFloat) / kFloat;
    memory += RoundedBytes(rows, k, {.floats = true});
  }
  if (forms.codes) {
    CHECK_LE(k, kInt8MaxDepth);
    out.codes = reinterpret_cast<int8_t*>(memory);
    out.ldc = RowStride(k);
    out.int8_rows = reinterpret_cast<Int8Row*>(memory + rows * out.ldc);
    memory += RoundedBytes(rows, k, {.codes = true});
  }
  if (forms.halves) {
    out.halves = reinterpret_cast<uint16_t*>(memory);
    out.ldh = RowStride(k * kHalf) / kHalf;
  }
  return out;
}

}  // namespace switchyard::kernels::cpu
