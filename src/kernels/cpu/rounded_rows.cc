#include "kernels/cpu/rounded_rows.h"

#include <cstring>

#include "core/check.h"
#include "quant/activations.h"

namespace switchyard::kernels::cpu {
namespace {

constexpr int64_t kLine = 64;  // bytes; also the widest vector of codes
constexpr int64_t kFloat = sizeof(float);

int64_t RoundUp(int64_t n) { return CeilDiv(n, kLine) * kLine; }

}  // namespace

bool MultipliesInt8(const WeightView& w) {
  return w.format == WeightFormat::kInt8Channel && w.activation == ActivationFormat::kInt8Token;
}

bool SameInput(const WeightView& a, const WeightView& b) {
  return a.activation == b.activation && MultipliesInt8(a) == MultipliesInt8(b) &&
         (a.activation != ActivationFormat::kFp8Tensor || a.input_scale == b.input_scale);
}

void RoundedRows::Put(const WeightView& w, int64_t row, const float* from) const {
  if (!MultipliesInt8(w)) {
    return RoundActivations(w.activation, w.input_scale, from, k, x + row * ldx);
  }
  int8_t* out = codes + row * ldc;
  int8_rows[row] = QuantizeInt8Row(from, k, out);
  std::memset(out + k, 0, static_cast<size_t>(ldc - k));
}

void RunLinear(const Leaves& leaves, const WeightView& w, const RoundedRows& input, int64_t first,
               const int32_t* ids, LinearTask t) {
  if (MultipliesInt8(w)) {
    t.codes = {input.codes + first * input.ldc, input.ldc, ids, input.int8_rows + first};
    return leaves.linear_int8(t);
  }
  if (w.activation != ActivationFormat::kNone) {
    t.x = {input.x + first * input.ldx, input.ldx, ids};
  }
  leaves.linear(t);
}

int64_t RoundedBytes(int64_t rows, int64_t k, bool floats, bool codes) {
  int64_t bytes = 0;
  if (floats) bytes += rows * RoundUp(k * kFloat);
  if (codes) bytes += rows * RoundUp(k) + RoundUp(rows * static_cast<int64_t>(sizeof(Int8Row)));
  return bytes;
}

RoundedRows PlaceRounded(int64_t rows, int64_t k, bool floats, bool codes, char* memory) {
  RoundedRows out = {.k = k};
  if (floats) {
    out.x = reinterpret_cast<float*>(memory);
    out.ldx = RoundUp(k * kFloat) / kFloat;
    memory += RoundedBytes(rows, k, true, false);
  }
  if (codes) {
    CHECK_LE(k, kInt8MaxDepth);
    out.codes = reinterpret_cast<int8_t*>(memory);
    out.ldc = RoundUp(k);
    out.int8_rows = reinterpret_cast<Int8Row*>(memory + rows * out.ldc);
  }
  return out;
}

}  // namespace switchyard::kernels::cpu
