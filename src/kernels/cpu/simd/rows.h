// One row of a weight in each format, read as vectors of float32. A Row's At(j) gives columns
// [j, j + lanes), AtN(j, n) the first n of them and zeros. Conversions are exact, so that a row
// read here, or converted beforehand into a panel, enters the products with the same bits.
#pragma once

#include "kernels/cpu/leaves.h"

namespace switchyard::kernels::cpu::simd {

template <class V>
struct F32Row {
  static constexpr int kBitsPerWeight = 32;
  const char* p;
  typename V::F At(int64_t j) const { return V::Load(reinterpret_cast<const float*>(p) + j); }
  typename V::F AtN(int64_t j, int64_t n) const {
    return V::LoadN(reinterpret_cast<const float*>(p) + j, n);
  }
};

template <class V>
struct BF16Row {
  static constexpr int kBitsPerWeight = 16;
  const char* p;
  typename V::F At(int64_t j) const { return V::BF16(p + 2 * j); }
  typename V::F AtN(int64_t j, int64_t n) const { return V::BF16N(p + 2 * j, n); }
};

template <class V>
struct F16Row {
  static constexpr int kBitsPerWeight = 16;
  const char* p;
  typename V::F At(int64_t j) const { return V::F16(p + 2 * j); }
  typename V::F AtN(int64_t j, int64_t n) const { return V::F16N(p + 2 * j, n); }
};

// `scales`: one for each 128 columns counted from `phase` before column 0, times 256.
template <class V>
struct Fp8Row {
  static constexpr int kBitsPerWeight = 8;
  const char* p;
  const float* scales;
  int64_t phase;
  typename V::F Scale(int64_t j) const { return V::Set1(scales[(j + phase) / kFp8BlockSize]); }
  typename V::F At(int64_t j) const { return V::Mul(V::E4M3Over256(p + j), Scale(j)); }
  typename V::F AtN(int64_t j, int64_t n) const {
    return V::Mul(V::E4M3Over256N(p + j, n), Scale(j));
  }
};

// `scales`: one for each 32 columns. Column 0 starts a block, so whole vectors can always be read.
template <class V>
struct Fp4Row {
  static constexpr int kBitsPerWeight = 4;
  const char* p;
  const float* scales;
  typename V::F At(int64_t j) const {
    return V::Mul(V::E2M1(p + j / 2), V::Set1(scales[j / kMxfp4BlockSize]));
  }
  typename V::F AtN(int64_t j, int64_t n) const { return V::KeepFirst(At(j), n, V::Zero()); }
};

// Floats kept for a row's scales: whole cache lines, so that what follows stays aligned.
template <class V>
constexpr int64_t ScaleFloats(int64_t k) {
  return (k / kMxfp4BlockSize + 2 + kMaxLanes - 1) / kMaxLanes * kMaxLanes;
}

template <class V>
const char* RowBytes(const WeightRef& w, int64_t row, int bits) {
  const int64_t first = (w.row0 + row * w.row_step) * w.stored_k + w.col0;
  return static_cast<const char*>(w.data) + first * bits / 8;
}

// Bytes from one row of the view to the next.
template <class V>
int64_t RowStride(const WeightRef& w, int bits) {
  return w.row_step * w.stored_k * bits / 8;
}

// Makes row `row` of the view; `scales` is room for ScaleFloats(k) floats that the row keeps
// using.
template <class V>
void MakeRow(const WeightRef& w, int64_t row, float*, F32Row<V>* out) {
  out->p = RowBytes<V>(w, row, 32);
}
template <class V>
void MakeRow(const WeightRef& w, int64_t row, float*, BF16Row<V>* out) {
  out->p = RowBytes<V>(w, row, 16);
}
template <class V>
void MakeRow(const WeightRef& w, int64_t row, float*, F16Row<V>* out) {
  out->p = RowBytes<V>(w, row, 16);
}
template <class V>
void MakeRow(const WeightRef& w, int64_t row, float* scales, Fp8Row<V>* out) {
  const int64_t stored_row = w.row0 + row * w.row_step;
  const int64_t stored_blocks = (w.stored_k + kFp8BlockSize - 1) / kFp8BlockSize;
  const int64_t first = w.col0 / kFp8BlockSize;
  const int64_t count = (w.col0 + w.k + kFp8BlockSize - 1) / kFp8BlockSize - first;
  const char* stored = static_cast<const char*>(w.scales) +
                       (stored_row / kFp8BlockSize * stored_blocks + first) * sizeof(float);
  for (int64_t i = 0; i < count; ++i) {
    float scale;
    __builtin_memcpy(&scale, stored + i * sizeof(float), sizeof(float));
    scales[i] = scale * 256.0f;
  }
  *out = {RowBytes<V>(w, row, 8), scales, w.col0 % kFp8BlockSize};
}
template <class V>
void MakeRow(const WeightRef& w, int64_t row, float* scales, Fp4Row<V>* out) {
  const int64_t stored_row = w.row0 + row * w.row_step;
  const int64_t count = (w.k + kMxfp4BlockSize - 1) / kMxfp4BlockSize;
  const auto* stored =
      static_cast<const uint8_t*>(w.scales) + (stored_row * w.stored_k + w.col0) / kMxfp4BlockSize;
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits = uint32_t{stored[i]} << 23;
    if (stored[i] == 0) bits = 0x00400000u;
    if (stored[i] == 255) bits = 0x7fc00000u;
    __builtin_memcpy(&scales[i], &bits, sizeof(float));
  }
  *out = {RowBytes<V>(w, row, 4), scales};
}

// Whether vectors of the view never straddle two scales, and start on a whole byte.
template <class V>
bool HasVectorRows(const WeightRef& w) {
  switch (w.format) {
    case WeightFormat::kFp8Block:
      return w.col0 % V::kLanes == 0;
    case WeightFormat::kMxfp4:
      return w.col0 % kMxfp4BlockSize == 0;
    default:
      return true;
  }
}

// Writes columns [0, k) of `row` to out, then zeros up to `padded`, a multiple of the lanes.
template <class V, class Row>
void ConvertRow(const Row& row, int64_t k, int64_t padded, float* out) {
  int64_t j = 0;
  for (; j + V::kLanes <= k; j += V::kLanes) V::Store(out + j, row.At(j));
  if (j < k) {
    V::Store(out + j, row.AtN(j, k - j));
    j += V::kLanes;
  }
  for (; j < padded; j += V::kLanes) V::Store(out + j, V::Zero());
}

// Calls f.template operator()<Row>() with the row type of the view's format.
template <class V, class Function>
void ForFormat(WeightFormat format, const Function& f) {
  switch (format) {
    case WeightFormat::kF32:
      return f.template operator()<F32Row<V>>();
    case WeightFormat::kBF16:
      return f.template operator()<BF16Row<V>>();
    case WeightFormat::kF16:
      return f.template operator()<F16Row<V>>();
    case WeightFormat::kFp8Block:
      return f.template operator()<Fp8Row<V>>();
    case WeightFormat::kMxfp4:
      return f.template operator()<Fp4Row<V>>();
  }
}

// Writes `count` rows of the view from `row` on to out, `stride` floats apart, each padded with
// zeros to a whole vector. `scales`: room for ScaleFloats(k).
template <class V>
void ConvertRows(const WeightRef& w, int64_t row, int64_t count, float* scales, int64_t stride,
                 float* out) {
  const int64_t padded = (w.k + V::kLanes - 1) / V::kLanes * V::kLanes;
  if (!HasVectorRows<V>(w)) {
    for (int64_t i = 0; i < count; ++i, out += stride) {
      w.convert(w.view, row + i, w.skip, w.skip + w.k, out);
      for (int64_t j = w.k; j < padded; ++j) out[j] = 0.0f;
    }
    return;
  }
  ForFormat<V>(w.format, [&]<class Row>() {
    for (int64_t i = 0; i < count; ++i, out += stride) {
      Row r;
      MakeRow(w, row + i, scales, &r);
      ConvertRow<V>(r, w.k, padded, out);
    }
  });
}

}  // namespace switchyard::kernels::cpu::simd
