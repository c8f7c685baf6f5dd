// Memory layout of 4-bit weights that are multiplied with bfloat16 rows without expansion in memory
// (W4A16), and the integer part of their unpacking. Host and device share this code, so tests
// without a GPU cover both packing (w4a16_gemm.h) and a thread's unpacking (w4a16_unpack.cuh).
//
// A matrix [n, k] is partitioned into tiles of 64 rows × 64 columns. Tiles of the same rows are
// consecutive along K, padded to an even number. Padding beyond the matrix is all zero bits. In
// padding rows these are weights of zero. Weights in padding columns are multiplied with
// activations of zero. A tile is stored as a record:
//
//   codes   [128 threads of a warpgroup][4 runs of 16 columns] words of eight codes
//   scales  [32 pairs of rows][scales of a row][2 rows]
//   zeros   kInt4 only: bytes in the order of the scales
//
// wgmma takes the 64 rows of its first operand from registers. Warp w has rows 16w to 16w + 15. A
// thread has two of these rows, lane / 4 (upper) and lane / 4 + 8 (lower), which are a pair in the
// record. In a run of 16 columns it has columns c, c + 1, c + 8 and c + 9, where c = 2 (lane % 4).
// Each of its four registers has two columns, the lower column in the lower half:
//
//   register 0  upper row, columns c and c + 1
//   register 1  lower row, columns c and c + 1
//   register 2  upper row, columns c + 8 and c + 9
//   register 3  lower row, columns c + 8 and c + 9
//
// (PTX ISA, "Register Fragments for wgmma.mma_async.m64nNk16"; mma.sync m16n8k16 has the same
// layout.)
#pragma once

#include <cuda_runtime_api.h>  // __host__, __device__

#include <cstdint>

namespace switchyard::cuda {

enum class W4A16Kind : uint8_t {
  kMxfp4,  // e2m1 codes; scales are bytes: the bfloat16 exponent of scale · 2^126
  kNvfp4,  // e2m1 codes, e4m3 scales, and one float32 per 64 rows: global scale · 2^126
  kInt4,   // codes 0..15, float32 scales and zero points 0..127
};

struct W4A16Format {
  W4A16Kind kind = W4A16Kind::kMxfp4;
  // Scales per row of a tile, one for each 64 / scales columns. kMxfp4: 2; kNvfp4: 4; kInt4: 1, 2
  // or 4.
  int scales = 2;
  bool operator==(const W4A16Format&) const = default;
};

constexpr int kW4A16Tile = 64;  // rows, and columns
constexpr int kW4A16Run = 16;   // columns per wgmma
constexpr int kW4A16Steps = 2;  // tiles along K per pipeline stage
constexpr int kW4A16Threads = 128;
constexpr int kW4A16CodeBytes = kW4A16Tile * kW4A16Tile / 2;
constexpr int kW4A16MaxZero = 127;
// Scales of e2m1 formats are multiplied by 2^126, because W4A16E2M1Pair yields codes · 2^-126.
constexpr int kW4A16ScaleShift = 126;

// Bytes of a tile's record; a multiple of 16, as TMA requires.
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

// Where a tile stores the 4-bit code of a row and column: in bits shift to shift + 3 of word
// 4 · thread + run.
struct W4A16Position {
  int thread, run, shift;
};
__host__ __device__ constexpr W4A16Position W4A16CodePosition(int row, int column) {
  const int in_run = column % kW4A16Run, slot = row / 8 % 2 + in_run / 8 * 2;
  return {.thread = row / 16 * 32 + row % 8 * 4 + in_run % 8 / 2,
          .run = column / kW4A16Run,
          .shift = 4 * slot + in_run % 2 * 16};
}
// The inverse of W4A16CodePosition: the row of a thread's register `slot`, and the lower one of its
// two columns within a run.
__host__ __device__ constexpr int W4A16RowOf(int thread, int slot) {
  return thread / 32 * 16 + thread % 32 / 4 + slot % 2 * 8;
}
__host__ __device__ constexpr int W4A16ColumnOf(int thread, int slot) {
  return thread % 4 * 2 + slot / 2 * 8;
}

// The thread's pair of rows, and the index of scale (or zero point) `index` of row `row` in a
// tile's record.
__host__ __device__ constexpr int W4A16RowPair(int thread) { return thread / 4; }
__host__ __device__ constexpr int W4A16ScaleAt(int row, int index, int scales) {
  return ((row / 16 * 8 + row % 8) * scales + index) * 2 + row / 8 % 2;
}

// Unpacks two codes of a word, for register `slot` (0 to 3), to two bfloat16s.
//
// e2m1: moves sign, the two exponent bits and the mantissa to their bfloat16 positions. The
// exponent bias is 1 for e2m1 and 127 for bfloat16, so the result, including e2m1's subnormal, is
// the code's value · 2^-126.
__host__ __device__ constexpr uint32_t W4A16E2M1Pair(uint32_t word, int slot) {
  const uint32_t magnitudes = slot < 2 ? word << (6 - 4 * slot) : word >> (4 * slot - 6);
  return ((word << (12 - 4 * slot)) & 0x80008000u) | (magnitudes & 0x01c001c0u);
}
// int4: 128 + code. bfloat16 has a mantissa of 7 bits, so at 128 the last bit is worth one.
__host__ __device__ constexpr uint32_t W4A16Int4Pair(uint32_t word, int slot) {
  return ((word >> (4 * slot)) & 0x000f000fu) | 0x43004300u;
}
// 128 + zero, twice, for zero points of 0..127.
__host__ __device__ constexpr uint32_t W4A16ZeroPair(uint32_t zero) {
  return zero * 0x00010001u + 0x43004300u;
}
// kMxfp4's scale · 2^126, twice: the byte is the bfloat16 exponent.
__host__ __device__ constexpr uint32_t W4A16ExponentPair(uint32_t exponent) {
  return exponent * 0x00800080u;
}

}  // namespace switchyard::cuda
