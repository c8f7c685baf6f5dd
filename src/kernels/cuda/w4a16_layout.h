// Weights of 4 bits, multiplied with bfloat16 rows without being expanded in memory (W4A16): where
// each code lies, and the integer half of what is made of it. Host and device share every line, so
// that packing (w4a16_pack.h) and what a thread undoes of it (w4a16_unpack.cuh) are held together
// by tests that need no GPU.
//
// A matrix [n, k] is cut into tiles of 64 rows × 64 columns; those of the same rows follow one
// another along K, an even number of them. What a tile has beyond the matrix is all zero bits,
// which is a weight of zero beyond its rows, and beyond its columns a weight that meets rows of
// zeros. A tile is a record:
//
//   codes   [128 threads of a warpgroup][4 runs of 16 columns] words of eight codes
//   scales  [32 pairs of rows][scales of a row][2 rows]
//   zeros   kInt4 only: bytes in the order of the scales
//
// wgmma has the 64 rows of its first operand in registers: warp w has rows 16w to 16w + 15, a
// thread of it rows lane / 4 and lane / 4 + 8 of those, the pair of rows above; and of 16 columns
// 2 (lane % 4) + {0, 1} and the same + 8. Its four registers are, in this order: the upper row's
// first two columns, the lower row's, the upper row's last two, the lower row's; the lower column
// in the lower half. (PTX ISA, "Register Fragments for wgmma.mma_async.m64nNk16"; mma.sync m16n8k16
// has the same.)
#pragma once

#include <cuda_runtime_api.h>  // __host__, __device__

#include <cstdint>

namespace switchyard::cuda {

enum class W4A16Kind : uint8_t {
  kMxfp4,  // e2m1 codes; scales are bytes, the exponent that bfloat16 has for the scale · 2^126
  kNvfp4,  // e2m1 codes, e4m3 scales, and one float32 for a tile's rows: global scale · 2^126
  kInt4,   // codes 0..15, float32 scales and zero points 0..127
};

struct W4A16Format {
  W4A16Kind kind = W4A16Kind::kMxfp4;
  // Of a row in a tile, one for 64 / scales columns: kMxfp4 2, kNvfp4 4, kInt4 1, 2 or 4.
  int scales = 2;
  bool operator==(const W4A16Format&) const = default;
};

constexpr int kW4A16Tile = 64;  // rows, and columns
constexpr int kW4A16Run = 16;   // columns of a wgmma
constexpr int kW4A16Steps = 2;  // tiles along K that are always there together
constexpr int kW4A16Threads = 128;
constexpr int kW4A16CodeBytes = kW4A16Tile * kW4A16Tile / 2;
constexpr int kW4A16MaxZero = 127;
// e2m1's scales are lifted by 2 to this, as its codes are taken for so much less (W4A16E2M1Pair).
constexpr int kW4A16Lift = 126;

// Bytes of a tile; a multiple of 16, as the copy engine wants it.
__host__ __device__ constexpr int W4A16RecordBytes(W4A16Kind kind, int scales) {
  return kW4A16CodeBytes + kW4A16Tile * scales * (kind == W4A16Kind::kInt4 ? 5 : 1);
}
__host__ __device__ constexpr int W4A16RecordBytes(W4A16Format format) {
  return W4A16RecordBytes(format.kind, format.scales);
}
__host__ __device__ constexpr int64_t W4A16RowTiles(int64_t n) {
  return (n + kW4A16Tile - 1) / kW4A16Tile;
}
__host__ __device__ constexpr int64_t W4A16ColumnTiles(int64_t k) {
  constexpr int64_t kColumns = int64_t{kW4A16Steps} * kW4A16Tile;
  return (k + kColumns - 1) / kColumns * kW4A16Steps;
}

// Where the code of a row and column of a tile lies: bits shift to shift + 3 of word
// 4 · thread + run.
struct W4A16Place {
  int thread, run, shift;
};
__host__ __device__ constexpr W4A16Place W4A16PlaceOf(int row, int column) {
  const int in_run = column % kW4A16Run, slot = row / 8 % 2 + in_run / 8 * 2;
  return {.thread = row / 16 * 32 + row % 8 * 4 + in_run % 8 / 2,
          .run = column / kW4A16Run,
          .shift = 4 * slot + in_run % 2 * 16};
}
// And back: the row of a thread's register, and its lower column in a run.
__host__ __device__ constexpr int W4A16RowOf(int thread, int slot) {
  return thread / 32 * 16 + thread % 32 / 4 + slot % 2 * 8;
}
__host__ __device__ constexpr int W4A16ColumnOf(int thread, int slot) {
  return thread % 4 * 2 + slot / 2 * 8;
}

// The pair of rows that a thread has, and the place of a scale (or zero point) among those of a
// tile: number `index` of row `row`.
__host__ __device__ constexpr int W4A16RowPair(int thread) { return thread / 4; }
__host__ __device__ constexpr int W4A16ScaleAt(int row, int index, int scales) {
  return ((row / 16 * 8 + row % 8) * scales + index) * 2 + row / 8 % 2;
}

// Two codes of a word, of register `slot` (0 to 3), as two bfloat16s.
//
// e2m1: sign, two exponent bits and mantissa put where bfloat16 has its own. Its exponent's bias is
// 1 and bfloat16's 127, so what this is, e2m1's subnormal included, is the code's value · 2^-126.
__host__ __device__ constexpr uint32_t W4A16E2M1Pair(uint32_t word, int slot) {
  const uint32_t magnitudes = slot < 2 ? word << (6 - 4 * slot) : word >> (4 * slot - 6);
  return ((word << (12 - 4 * slot)) & 0x80008000u) | (magnitudes & 0x01c001c0u);
}
// int4: 128 + code. bfloat16 has a mantissa of 7 bits, so the last bits of 128 are those of ones.
__host__ __device__ constexpr uint32_t W4A16Int4Pair(uint32_t word, int slot) {
  return ((word >> (4 * slot)) & 0x000f000fu) | 0x43004300u;
}
// 128 + zero, twice, for zero points of 0..127.
__host__ __device__ constexpr uint32_t W4A16ZeroPair(uint32_t zero) {
  return zero * 0x00010001u + 0x43004300u;
}
// kMxfp4's scale · 2^126, twice: the byte is bfloat16's exponent.
__host__ __device__ constexpr uint32_t W4A16ExponentPair(uint32_t exponent) {
  return exponent * 0x00800080u;
}

}  // namespace switchyard::cuda
