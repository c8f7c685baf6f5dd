// Panels of 4-bit weights: as many weight rows as a vector has lanes, transposed so that a vector
// has four bytes of each row. A vector's low nibbles are then four columns of each output, and so
// are its high nibbles: dot products of bytes need no reduction across lanes. Nibbles stay packed,
// so a panel of sixteen rows of K = 2048 has 16 KiB and stays in L1. Scales and zero points are
// transposed too.
// D: four_bit_ops.h.
#pragma once

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/simd/four_bit_ops.h"
#include "kernels/cpu/simd/linear.h"
#include "kernels/cpu/simd/rows.h"

namespace switchyard::kernels::cpu::simd {

constexpr int64_t kFourBitChunk = kInt8GroupSize;          // columns of a chunk
constexpr int64_t kFourBitChunkBytes = kFourBitChunk / 2;  // bytes of a chunk of a weight row
constexpr int kFourBitVectors = 16;                        // vectors of a chunk of a panel

template <class D>
struct FourBitPanel {
  static constexpr int64_t kVector = D::kLanes * 4;  // bytes

  const char* codes;     // first chunk
  int64_t step, stride;  // bytes between vectors, and between chunks
  char* packed;          // memory for codes: [chunks][16][lanes][4]
  float* scales;         // [chunks][blocks][lanes]; zeros beyond the last column
  uint32_t* zeros;       // like scales; 16 - zero point in each byte
  float* minima;         // like scales

  // Places the arrays of the panel in `memory`, which is aligned to a vector.
  FourBitPanel(char* memory, int64_t chunks, int64_t blocks) {
    codes = packed = memory;
    step = kVector;
    stride = kFourBitVectors * kVector;
    scales = reinterpret_cast<float*>(packed + chunks * stride);
    zeros = reinterpret_cast<uint32_t*>(scales + blocks * D::kLanes);
    minima = reinterpret_cast<float*>(zeros + blocks * D::kLanes);
  }
};

// Addresses of rows [n, n + count) of a task. If there are fewer rows than lanes, the last one is
// repeated.
template <class D>
FourBitRows<D::kLanes> CodeRows(const LinearTask& t, int64_t n, int64_t count) {
  FourBitRows<D::kLanes> rows;
  for (int r = 0; r < D::kLanes; ++r)
    rows.row[r] = RowBytes<typename D::Vec>(t.w, n + (r < count ? r : count - 1), 4);
  return rows;
}

// The rows of the panel that begins at row n, to prefetch. At the end of the task these are the
// rows of the next task. If the next task is unknown, returns `now`, because a prefetch of lines
// that are in cache costs little.
template <class D>
FourBitRows<D::kLanes> RowsAhead(const LinearTask& t, int64_t n,
                                 const FourBitRows<D::kLanes>& now) {
  const int64_t left = t.end - n;
  if (left > 0) return CodeRows<D>(t, n, left < D::kLanes ? left : D::kLanes);
  if (t.next == nullptr) return now;
  FourBitRows<D::kLanes> rows;
  for (int r = 0; r < D::kLanes; ++r)
    rows.row[r] = static_cast<const char*>(t.next) + r * RowStride<typename D::Vec>(t.w, 4);
  return rows;
}

// Prefetches chunk `chunk` of rows [first, last). The lines of a panel are requested at an even
// rate while the previous panel is packed and multiplied.
template <class D>
[[gnu::always_inline]] inline void PrefetchChunk(const FourBitRows<D::kLanes>& ahead, int64_t chunk,
                                                 int64_t first, int64_t last) {
  for (int64_t r = first; r < last; ++r)
    __builtin_prefetch(ahead.row[r] + chunk * kFourBitChunkBytes, 0, 2);
}

// The part of the next panel that a tile prefetches while it processes a chunk. For weights in
// rows: the same chunk of rows [first, last). For stored panels: lines [first, last) of the chunk's
// `stride` bytes.
template <class D>
struct FourBitAhead {
  const FourBitRows<D::kLanes>* rows;  // null: `stored`
  int64_t first, last;
  const char* stored;
  int64_t stride;

  [[gnu::always_inline]] void Prefetch(int64_t chunk) const {
    if (rows != nullptr) return PrefetchChunk<D>(*rows, chunk, first, last);
    constexpr int64_t kLine = 64;
    for (int64_t line = first; line < last; ++line)
      __builtin_prefetch(stored + chunk * stride + line * kLine, 0, 2);
  }
};

// Transposes the codes of rows of `bytes` bytes to a panel, with zero nibbles up to a whole chunk.
// Prefetches the first half of the rows in `ahead`.
template <class D>
void PackFourBitCodes(const FourBitRows<D::kLanes>& rows, int64_t bytes, char* out,
                      const FourBitRows<D::kLanes>& ahead) {
  constexpr int64_t kParts = kFourBitChunkBytes / D::kVectorBytes;
  constexpr int64_t kPart = D::kLanes * FourBitPanel<D>::kVector;  // bytes of a part of a panel
  int64_t k = 0;
  for (; k + kFourBitChunkBytes <= bytes; k += kFourBitChunkBytes) {
    PrefetchChunk<D>(ahead, k / kFourBitChunkBytes, 0, D::kLanes / 2);
    for (int64_t part = 0; part < kParts; ++part, out += kPart)
      D::TransposeCodes(rows, k + part * D::kVectorBytes, D::kVectorBytes, out);
  }
  if (k == bytes) return;
  for (int64_t part = 0; part < kParts; ++part, out += kPart, k += D::kVectorBytes) {
    const int64_t left = bytes - k < 0 ? 0 : bytes - k;
    D::TransposeCodes(rows, k, left < D::kVectorBytes ? left : D::kVectorBytes, out);
  }
}

// Transposes `count` bytes of each row. Calls convert(j, bytes) for each byte j; lane r of `bytes`
// is byte j of row r.
template <class D, class Convert>
[[gnu::always_inline]] inline void TransposeBytes(const FourBitRows<D::kLanes>& from, int64_t count,
                                                  const Convert& convert) {
  constexpr int64_t kVector = FourBitPanel<D>::kVector;
  alignas(64) char tile[D::kLanes * kVector];
  for (int64_t j = 0; j < count; j += D::kVectorBytes) {
    const int64_t n = count - j < D::kVectorBytes ? count - j : D::kVectorBytes;
    D::TransposeCodes(from, j, n, tile);
    for (int64_t i = 0; i < n; i += 4) {
      const auto four = D::Load(tile + i / 4 * kVector);
      convert(j + i, D::template Byte<0>(four));
      if (i + 1 < n) convert(j + i + 1, D::template Byte<1>(four));
      if (i + 2 < n) convert(j + i + 2, D::template Byte<2>(four));
      if (i + 3 < n) convert(j + i + 3, D::template Byte<3>(four));
    }
  }
}

// Location of the scales of consecutive rows of a view. Row r has `count` scales of `bytes` bytes
// each, which begin at address base + r · stride.
struct FourBitScales {
  const char* base;
  int64_t stride, bytes, count;
};

// The scales from view row n on. A group that is longer than a chunk has one scale here.
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

// Copies the scales or zero points of groups that span several chunks, so that every chunk has a
// vector. In place.
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

// Converts `count` scales of each row to float32, transposed to [count][lanes]. from.row[r]: the
// address of the first scale of row r.
template <class D>
void PackFourBitScales(const WeightRef& w, const FourBitRows<D::kLanes>& from, int64_t count,
                       float* out) {
  using V = typename D::Vec;
  using I = typename D::I;
  if (w.format == WeightFormat::kInt4Group) {
    constexpr int64_t kVector = FourBitPanel<D>::kVector;
    alignas(64) char tile[D::kLanes * kVector];
    const int64_t bytes = count * 4;
    for (int64_t at = 0; at < bytes; at += D::kVectorBytes, out += D::kLanes * D::kLanes) {
      const int64_t n = bytes - at < D::kVectorBytes ? bytes - at : D::kVectorBytes;
      D::TransposeCodes(from, at, n, tile);
      __builtin_memcpy(out, tile, n / 4 * kVector);
    }
    return;
  }
  if (w.format == WeightFormat::kMxfp4) {
    return TransposeBytes<D>(
        from, count, [out](int64_t j, I codes) __attribute__((always_inline)) {
          V::Store(out + j * D::kLanes, D::HalvedE8M0(codes));
        });
  }
  // 128 = 256 / 2: E4M3Over256 returns scales divided by 256, and operands of e2m1 are doubled
  // values.
  const auto factor = V::Set1(w.global_scale * 128.0f);
  TransposeBytes<D>(
      from, count, [ out, factor ](int64_t j, I codes) __attribute__((always_inline)) {
        alignas(64) char bytes[D::kLanes];
        D::StoreBytes(codes, bytes);
        V::Store(out + j * D::kLanes, V::Mul(V::E4M3Over256(bytes), factor));
      });
}

// Fills the scales and zero points of the panel of weight rows [n, n + lanes), of which `count`
// exist. Prefetches the scales of the next rows.
template <class D, bool kZeros, int kBlocks>
void PackFourBitNumbers(const LinearTask& t, int64_t n, int64_t count, int64_t chunks,
                        const FourBitPanel<D>& panel) {
  using V = typename D::Vec;
  constexpr int kLanes = D::kLanes;
  const FourBitScales scales = ScalesFrom<D>(t, n);
  const auto rows_from = [&](const char* base, int64_t stride) {
    FourBitRows<D::kLanes> rows;
    for (int r = 0; r < kLanes; ++r) rows.row[r] = base + (r < count ? r : count - 1) * stride;
    return rows;
  };
  if (n + kLanes < t.end) {
    const int64_t left = t.end - n - kLanes;
    FourBitScales later = scales;
    later.base += kLanes * scales.stride;
    PrefetchScales<D>(later, left < kLanes ? left : kLanes);
  }
  PackFourBitScales<D>(t.w, rows_from(scales.base, scales.stride), scales.count, panel.scales);
  SpreadOverChunks<D>(t.w, chunks, panel.scales);
  const int64_t blocks = (t.w.k + t.blocks.block - 1) / t.blocks.block;
  for (int64_t j = blocks; j < chunks * kBlocks; ++j)
    V::Store(panel.scales + j * kLanes, V::Zero());
  if constexpr (kZeros) {
    const auto* zeros = static_cast<const char*>(t.w.zeros) +
                        (scales.base - static_cast<const char*>(t.w.scales)) / scales.bytes;
    TransposeBytes<D>(
        rows_from(zeros, scales.stride / scales.bytes),
        scales.count, [&](int64_t j, typename D::I zero) __attribute__((always_inline)) {
          D::Store(panel.zeros + j * kLanes, D::ZeroOperands(zero));
        });
    SpreadOverChunks<D>(t.w, chunks, panel.zeros);
  }
}

}  // namespace switchyard::kernels::cpu::simd
