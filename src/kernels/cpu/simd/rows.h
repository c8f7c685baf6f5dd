// Weight rows of each format, read as float32 vectors. At(j) returns columns [j, j + lanes); AtN(j,
// n) the first n of them, then zeros. Panels are converted with the same functions, so direct reads
// and panels feed the products with the same bits.
#pragma once

#include "kernels/cpu/kernel_table.h"

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

// `scales`: one scale per 128 columns, multiplied by 256, because E4M3Over256 divides codes by 256.
// The first block starts `phase` columns before column 0.
template <class V>
struct Fp8Row {
  static constexpr int kBitsPerWeight = 8;
  const char* p;
  const float* scales;
  uint64_t phase;
  typename V::F Scale(int64_t j) const { return V::Set1(scales[(j + phase) / kFp8BlockSize]); }
  typename V::F At(int64_t j) const { return V::Mul(V::E4M3Over256(p + j), Scale(j)); }
  typename V::F AtN(int64_t j, int64_t n) const {
    return V::Mul(V::E4M3Over256N(p + j, n), Scale(j));
  }
};

// `scales`: one scale for the row, multiplied by 256.
template <class V>
struct Fp8ChannelRow {
  static constexpr int kBitsPerWeight = 8;
  const char* p;
  const float* scales;
  typename V::F At(int64_t j) const { return V::Mul(V::E4M3Over256(p + j), V::Set1(*scales)); }
  typename V::F AtN(int64_t j, int64_t n) const {
    return V::Mul(V::E4M3Over256N(p + j, n), V::Set1(*scales));
  }
};

// `scales`: one scale for the row.
template <class V>
struct Int8ChannelRow {
  static constexpr int kBitsPerWeight = 8;
  const char* p;
  const float* scales;
  typename V::F At(int64_t j) const { return V::Mul(V::Int8(p + j), V::Set1(*scales)); }
  typename V::F AtN(int64_t j, int64_t n) const {
    return V::Mul(V::Int8N(p + j, n), V::Set1(*scales));
  }
};

// `scales`: zero point and scale per kInt4Block columns. The first block starts `phase` columns
// before column 0. Groups consist of whole blocks or are whole rows (HasVectorRows); each block of
// a group has a copy of the group's pair.
template <class V>
struct Int4Row {
  static constexpr int kBitsPerWeight = 4;
  const char* p;
  const float* scales;
  uint64_t phase;
  typename V::F Scaled(typename V::F codes, int64_t j) const {
    const float* block = scales + (j + phase) / kInt4Block * 2;
    return V::Mul(V::Sub(codes, V::Set1(block[0])), V::Set1(block[1]));
  }
  typename V::F At(int64_t j) const { return Scaled(V::UInt4(p + j / 2), j); }
  typename V::F AtN(int64_t j, int64_t n) const {
    char codes[V::kLanes / 2] = {};
    __builtin_memcpy(codes, p + j / 2, (n + 1) / 2);
    return V::KeepFirst(Scaled(V::UInt4(codes), j), n, V::Zero());
  }
};

// `scales`: one per kBlock columns. The first block starts `phase` columns before column 0. Stored
// rows consist of whole blocks and vectors do not straddle them, so whole vectors can always be
// loaded.
template <class V, int64_t kBlock>
struct Fp4Row {
  static constexpr int kBitsPerWeight = 4;
  const char* p;
  const float* scales;
  uint64_t phase;
  typename V::F At(int64_t j) const {
    return V::Mul(V::E2M1(p + j / 2), V::Set1(scales[(j + phase) / kBlock]));
  }
  typename V::F AtN(int64_t j, int64_t n) const { return V::KeepFirst(At(j), n, V::Zero()); }
};
template <class V>
using Mxfp4Row = Fp4Row<V, kMxfp4BlockSize>;
template <class V>
using Nvfp4Row = Fp4Row<V, kNvfp4BlockSize>;

// Floats reserved for a row's scales: whole cache lines, so that the following data stays aligned.
// One more line is slack, because MakeRow may write past the end.
template <class V>
constexpr int64_t ScaleFloats(int64_t k) {
  constexpr int64_t kMost = 2;  // floats per kInt4Block columns in kInt4Group and kNvfp4
  return (kMost * (k / kInt4Block + 2) + 2 * kMaxLanes - 1) / kMaxLanes * kMaxLanes;
}

template <class V>
int64_t StoredRow(const WeightRef& w, int64_t row) {
  return w.row0 + row * w.row_step;
}

template <class V>
const char* RowBytes(const WeightRef& w, int64_t row, int bits) {
  const int64_t first = StoredRow<V>(w, row) * w.stored_k + w.col0;
  return static_cast<const char*>(w.data) + first * bits / 8;
}

// Byte stride between rows of the view.
template <class V>
int64_t RowStride(const WeightRef& w, int bits) {
  return w.row_step * w.stored_k * bits / 8;
}

// Offset of the view's first column in its block. Unsigned, so that division by the size is a
// shift.
template <class V>
uint64_t Phase(const WeightRef& w, int64_t size) {
  return static_cast<uint64_t>(w.col0 % size);
}

// Unaligned load of a float32 scale: scales may be in a mapped file.
template <class V>
float StoredScale(const WeightRef& w, int64_t index) {
  float scale;
  __builtin_memcpy(&scale, static_cast<const char*>(w.scales) + index * 4, sizeof(scale));
  return scale;
}

// Range of scales for the view's columns in row `scale_row` of the stored scales, one per `size`
// columns.
struct Blocks {
  int64_t first, count;
};
template <class V>
Blocks BlocksOf(const WeightRef& w, int64_t scale_row, int64_t size) {
  const int64_t first = w.col0 / size;
  return {scale_row * ((w.stored_k + size - 1) / size) + first,
          (w.col0 + w.k + size - 1) / size - first};
}

// Makes row `row` of the view. `scales`: buffer of ScaleFloats(k) floats that the row keeps using.
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
  const Blocks b = BlocksOf<V>(w, StoredRow<V>(w, row) / kFp8BlockSize, kFp8BlockSize);
  for (int64_t i = 0; i < b.count; ++i) scales[i] = StoredScale<V>(w, b.first + i) * 256.0f;
  *out = {RowBytes<V>(w, row, 8), scales, Phase<V>(w, kFp8BlockSize)};
}
template <class V>
void MakeRow(const WeightRef& w, int64_t row, float* scales, Fp8ChannelRow<V>* out) {
  *scales = StoredScale<V>(w, StoredRow<V>(w, row)) * 256.0f;
  *out = {RowBytes<V>(w, row, 8), scales};
}
template <class V>
void MakeRow(const WeightRef& w, int64_t row, float* scales, Int8ChannelRow<V>* out) {
  *scales = StoredScale<V>(w, StoredRow<V>(w, row));
  *out = {RowBytes<V>(w, row, 8), scales};
}
template <class V>
void MakeRow(const WeightRef& w, int64_t row, float* scales, Int4Row<V>* out) {
  const auto* zeros = static_cast<const uint8_t*>(w.zeros);
  const Blocks groups = BlocksOf<V>(w, StoredRow<V>(w, row), w.group_size);
  const int64_t end = w.col0 + w.k;
  int64_t column = w.col0 / kInt4Block * kInt4Block;
  int64_t group_end = w.col0 / w.group_size * w.group_size;
  float* to = scales;
  for (int64_t i = groups.first; i < groups.first + groups.count; ++i) {
    group_end += w.group_size;
    const int64_t last = group_end < end ? group_end : end;
    const auto zero = static_cast<float>(zeros != nullptr ? zeros[i] : kInt4Zero);
    const auto pairs = V::Pairs(zero, StoredScale<V>(w, i));
    const int64_t blocks = (last - column + kInt4Block - 1) / kInt4Block;
    for (int64_t b = 0; b < blocks; b += V::kLanes / 2) V::Store(to + 2 * b, pairs);
    column += blocks * kInt4Block;
    to += 2 * blocks;
  }
  *out = {RowBytes<V>(w, row, 4), scales, Phase<V>(w, kInt4Block)};
}
template <class V>
void MakeRow(const WeightRef& w, int64_t row, float* scales, Mxfp4Row<V>* out) {
  const Blocks b = BlocksOf<V>(w, StoredRow<V>(w, row), kMxfp4BlockSize);
  const auto* stored = static_cast<const uint8_t*>(w.scales) + b.first;
  for (int64_t i = 0; i < b.count; ++i) {
    uint32_t bits = uint32_t{stored[i]} << 23;
    if (stored[i] == 0) bits = 0x00400000u;
    if (stored[i] == 255) bits = 0x7fc00000u;
    __builtin_memcpy(&scales[i], &bits, sizeof(float));
  }
  *out = {RowBytes<V>(w, row, 4), scales, Phase<V>(w, kMxfp4BlockSize)};
}
template <class V>
void MakeRow(const WeightRef& w, int64_t row, float* scales, Nvfp4Row<V>* out) {
  const Blocks b = BlocksOf<V>(w, StoredRow<V>(w, row), kNvfp4BlockSize);
  const char* stored = static_cast<const char*>(w.scales) + b.first;
  const auto global = V::Set1(w.global_scale * 256.0f);
  for (int64_t i = 0; i < b.count; i += V::kLanes) {
    const int64_t left = b.count - i;
    V::Store(scales + i, V::Mul(left < V::kLanes ? V::E4M3Over256N(stored + i, left)
                                                 : V::E4M3Over256(stored + i),
                                global));
  }
  *out = {RowBytes<V>(w, row, 4), scales, Phase<V>(w, kNvfp4BlockSize)};
}

// Whether vectors of the view never straddle two scales and start on a byte boundary.
template <class V>
bool HasVectorRows(const WeightRef& w) {
  switch (w.format) {
    case WeightFormat::kFp8Block:
    case WeightFormat::kMxfp4:
    case WeightFormat::kNvfp4:
      return w.col0 % V::kLanes == 0;
    case WeightFormat::kInt4Group:
      return w.col0 % V::kLanes == 0 &&
             (w.group_size % kInt4Block == 0 || w.group_size >= w.stored_k);
    default:
      return w.panel_scales == 0;  // panels interleave rows
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

// Calls f.template operator()<Row>() with the row type of the format. Panels have none.
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
    case WeightFormat::kFp8Channel:
      return f.template operator()<Fp8ChannelRow<V>>();
    case WeightFormat::kInt8Channel:
      return f.template operator()<Int8ChannelRow<V>>();
    case WeightFormat::kInt4Group:
      return f.template operator()<Int4Row<V>>();
    case WeightFormat::kMxfp4:
      return f.template operator()<Mxfp4Row<V>>();
    case WeightFormat::kNvfp4:
      return f.template operator()<Nvfp4Row<V>>();
    default:
      return;
  }
}

// Writes `count` rows of the view from `row` on to out with stride `stride` floats, each
// zero-padded to a whole vector. `scales`: buffer of ScaleFloats(k) floats.
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
