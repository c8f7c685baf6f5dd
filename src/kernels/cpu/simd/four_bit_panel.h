// Panels of 4-bit weights: as many weight rows as a vector has lanes, transposed so that a vector
// has four bytes of each row. A vector's low nibbles are then four columns of each output, and so
// are its high nibbles: dot products of bytes need no reduction across lanes. Nibbles stay packed,
// so a panel of sixteen rows of K = 2048 has 16 KiB and stays in L1. Scales and zero points are
// transposed too.
//
// D, one per instruction set (simd/four_bit.h), also defines:
//   kVectorBytes                 bytes of each row that TransposeCodes transposes: four per lane
//   TransposeCodes(rows, at, count, out)  bytes [at, at + count) of FourBitRows, zeros up to
//                                kVectorBytes; writes kLanes vectors
//   HalvedE8M0(p, n)             2^(code - 128) of n codes: half of e8m0
//   ZeroOperands(p, n)           n zero points: 16 - zero in each byte of a lane, as floats' bits
#pragma once

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/simd/linear.h"
#include "kernels/cpu/simd/rows.h"

namespace switchyard::kernels::cpu::simd {

constexpr int64_t kFourBitChunk = kInt8GroupSize;          // columns
constexpr int64_t kFourBitChunkBytes = kFourBitChunk / 2;  // of a weight row
constexpr int kFourBitVectors = 16;                        // of a chunk of a panel

template <class D>
struct FourBitPanel {
  static constexpr int64_t kVector = D::kLanes * 4;  // bytes

  char* codes;      // [chunks][16][lanes][4]
  float* scales;    // [chunks][blocks][lanes]; zeros beyond the last column
  uint32_t* zeros;  // like scales; 16 - zero point in each byte

  // Divides `memory`, which is aligned to a vector.
  FourBitPanel(char* memory, int64_t chunks, int64_t blocks) {
    codes = memory;
    scales = reinterpret_cast<float*>(codes + chunks * kFourBitVectors * kVector);
    zeros = reinterpret_cast<uint32_t*>(scales + blocks * D::kLanes);
  }
};

// Addresses of a panel's rows.
template <class D>
struct FourBitRows {
  const char* row[D::kLanes];
};

template <class D>
using FourBitPrefetch = PanelPrefetch<typename D::Vec>;

// Prefetch of the panel's rows from row n on. Behind the task's end these are rows of the next
// task.
template <class D>
FourBitPrefetch<D> PrefetchOfPanel(const LinearTask& t, int64_t n) {
  using V = typename D::Vec;
  constexpr int kBits = 4;
  const int64_t stride = RowStride<V>(t.w, kBits), bytes = (t.w.k + 1) / 2, left = t.end - n;
  if (left > 0)
    return {RowBytes<V>(t.w, n, kBits), stride, bytes, left < D::kLanes ? left : D::kLanes};
  return {static_cast<const char*>(t.next), stride, bytes, t.next != nullptr ? D::kLanes : 0};
}

// Copies the codes of rows of `bytes` bytes, with zero nibbles up to a whole chunk. Prefetches
// `lines` lines of `next` per chunk.
template <class D>
void PackFourBitCodes(const FourBitRows<D>& rows, int64_t bytes, char* out,
                      FourBitPrefetch<D>& next, int64_t lines) {
  constexpr int64_t kParts = kFourBitChunkBytes / D::kVectorBytes;
  constexpr int64_t kPart = D::kLanes * FourBitPanel<D>::kVector;  // bytes of a panel
  int64_t k = 0;
  for (; k + kFourBitChunkBytes <= bytes; k += kFourBitChunkBytes) {
    next.Touch(lines);
    for (int64_t part = 0; part < kParts; ++part, out += kPart)
      D::TransposeCodes(rows, k + part * D::kVectorBytes, D::kVectorBytes, out);
  }
  if (k == bytes) return;
  for (int64_t part = 0; part < kParts; ++part, out += kPart, k += D::kVectorBytes) {
    const int64_t left = bytes - k < 0 ? 0 : bytes - k;
    D::TransposeCodes(rows, k, left < D::kVectorBytes ? left : D::kVectorBytes, out);
  }
}

// Transposes `count` numbers of each row: out[j · lanes + r] is number j of row r. load(r, j, n)
// returns numbers j to j + n - 1 of row r, n at most the lanes.
template <class D, class Load>
[[gnu::always_inline]] inline void TransposeNumbers(int64_t count, float* out, const Load& load) {
  using V = typename D::Vec;
  for (int64_t j = 0; j < count; j += D::kLanes) {
    const int64_t n = count - j < D::kLanes ? count - j : D::kLanes;
    typename V::F x[D::kLanes];
#pragma GCC unroll 16
    for (int r = 0; r < D::kLanes; ++r) x[r] = load(r, j, n);
    V::Transpose(x);
    for (int64_t i = 0; i < n; ++i) V::Store(out + (j + i) * D::kLanes, x[i]);
  }
}

// Scales of a view's rows from one row on. Row r has `count` scales of `bytes` bytes, from address
// base + r · stride on.
struct FourBitScales {
  const char* base;
  int64_t stride, bytes, count;
};

// From view row n on. Groups of more than a chunk are not divided.
template <class D>
FourBitScales ScalesFrom(const LinearTask& t, int64_t n) {
  using V = typename D::Vec;
  const WeightRef& w = t.w;
  const bool int4 = w.format == WeightFormat::kInt4Group;
  const int64_t columns = int4 ? w.group_size : t.blocks.block, bytes = int4 ? 4 : 1;
  const Blocks blocks = BlocksOf<V>(w, StoredRow<V>(w, n), columns);
  const int64_t of_row = (w.stored_k + columns - 1) / columns;
  return {static_cast<const char*>(w.scales) + blocks.first * bytes, w.row_step * of_row * bytes,
          bytes, blocks.count};
}

// Prefetches the scales of `rows` rows.
template <class D>
void PrefetchScales(const FourBitScales& scales, int64_t rows) {
  constexpr int64_t kLine = 64;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t at = 0; at < scales.count * scales.bytes; at += kLine)
      __builtin_prefetch(scales.base + r * scales.stride + at, 0, 2);
  }
}

// Repeats the numbers of groups that span several chunks, one vector per chunk, in place.
template <class D>
void SpreadOverChunks(const WeightRef& w, int64_t chunks, void* panel) {
  constexpr int64_t kVector = FourBitPanel<D>::kVector;
  if (w.format != WeightFormat::kInt4Group || w.group_size <= kFourBitChunk) return;
  auto* vectors = static_cast<char*>(panel);
  for (int64_t c = chunks - 1; c > 0; --c) {
    const int64_t first = w.col0 % w.group_size + c * kFourBitChunk;
    const int64_t group = w.group_size >= w.stored_k ? 0 : first / w.group_size;
    if (group != c) __builtin_memcpy(vectors + c * kVector, vectors + group * kVector, kVector);
  }
}

// Fills the scales of the panel. `from`: the first of `count` scales of each row.
template <class D>
void PackFourBitScales(const WeightRef& w, const FourBitRows<D>& from, int64_t count, float* out) {
  using V = typename D::Vec;
  const auto& row = from.row;
  switch (w.format) {
    case WeightFormat::kMxfp4:
      return TransposeNumbers<D>(
          count, out, [&](int r, int64_t j, int64_t n) __attribute__((always_inline)) {
            return D::HalvedE8M0(row[r] + j, n);
          });
    case WeightFormat::kNvfp4: {
      // E4M3Over256 divides by 256; the codes of e2m1 are doubled.
      const auto factor = V::Set1(w.global_scale * 128.0f);
      return TransposeNumbers<D>(
          count, out, [&](int r, int64_t j, int64_t n) __attribute__((always_inline)) {
            return V::Mul(V::E4M3Over256N(row[r] + j, n), factor);
          });
    }
    default:
      return TransposeNumbers<D>(
          count, out, [&](int r, int64_t j, int64_t n) __attribute__((always_inline)) {
            return V::LoadN(reinterpret_cast<const float*>(row[r]) + j, n);
          });
  }
}

// Fills the panel with weight rows [n, n + lanes), of which `count` exist; missing ones repeat the
// last. Prefetches the scales of the next rows, and `lines` lines of `next` per chunk.
template <class D, bool kZeros, int kBlocks>
void PackFourBitPanel(const LinearTask& t, int64_t n, int64_t count, int64_t chunks,
                      const FourBitPanel<D>& panel, FourBitPrefetch<D>& next, int64_t lines) {
  using V = typename D::Vec;
  constexpr int kLanes = D::kLanes;
  const FourBitScales scales = ScalesFrom<D>(t, n);
  FourBitRows<D> codes, scale_rows;
  for (int r = 0; r < kLanes; ++r) {
    const int64_t row = r < count ? r : count - 1;
    codes.row[r] = RowBytes<V>(t.w, n + row, 4);
    scale_rows.row[r] = scales.base + row * scales.stride;
  }
  if (n + kLanes < t.end) {
    const int64_t left = t.end - n - kLanes;
    FourBitScales later = scales;
    later.base += kLanes * scales.stride;
    PrefetchScales<D>(later, left < kLanes ? left : kLanes);
  }
  PackFourBitScales<D>(t.w, scale_rows, scales.count, panel.scales);
  SpreadOverChunks<D>(t.w, chunks, panel.scales);
  const int64_t blocks = (t.w.k + t.blocks.block - 1) / t.blocks.block;
  for (int64_t j = blocks; j < chunks * kBlocks; ++j)
    V::Store(panel.scales + j * kLanes, V::Zero());
  if constexpr (kZeros) {
    const auto* zeros = static_cast<const char*>(t.w.zeros) +
                        (scales.base - static_cast<const char*>(t.w.scales)) / scales.bytes;
    const int64_t stride = scales.stride / scales.bytes;
    TransposeNumbers<D>(
        scales.count, reinterpret_cast<float*>(panel.zeros),
        [&](int r, int64_t j, int64_t n) __attribute__((always_inline)) {
          return D::ZeroOperands(zeros + (r < count ? r : count - 1) * stride + j, n);
        });
    SpreadOverChunks<D>(t.w, chunks, panel.zeros);
  }
  PackFourBitCodes<D>(codes, (t.w.k + 1) / 2, panel.codes, next, lines);
}

}  // namespace switchyard::kernels::cpu::simd
