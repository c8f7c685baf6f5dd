// FP8 products of linear layers, and the quantization of their operands: e4m3 codes with float32
// scales, which are powers of two (train/device/plain_fp8.h). Needs a Hopper GPU; else the
// functions throw Error kInvalid.
#pragma once

#include <cstdint>

#include "train/cuda/products.h"

namespace switchyard::train::gpu {

constexpr int64_t kScaleBlock = 128;  // elements that share a scale, in each direction

struct Fp8Operand {
  const uint8_t* codes = nullptr;
  const float* scales = nullptr;
};
struct Fp8Array {
  uint8_t* codes = nullptr;
  float* scales = nullptr;
  operator Fp8Operand() const { return {codes, scales}; }  // NOLINT(google-explicit-constructor)
};

// Rows x [rows, width] with a scale for each 128 elements. width is a multiple of 128.
struct Fp8Rows {
  int64_t rows = 0, width = 0;
  // Only the first *valid_rows rows are quantized, a number in device memory; null: all.
  const int32_t* valid_rows = nullptr;
};
// Codes [rows, width], scales [width / 128, Fp8RowStride(rows)]: operands of Fp8Product.
constexpr int64_t Fp8RowStride(int64_t rows) { return (rows + 3) / 4 * 4; }
void QuantizeRows(const Fp8Rows& s, const BF16* x, const Fp8Array& out, Stream stream);
// Codes [rows, width], scales [rows, width / 128], and the decoded rows.
void QuantizeTransitRows(const Fp8Rows& s, const BF16* x, const Fp8Array& out, Stream stream);
void DecodeTransitRows(const Fp8Rows& s, const Fp8Operand& rows, BF16* x, Stream stream);

// Rows x [shape.rows, width], transposed, with a scale for each 128 rows of a group in a column:
// operands of Fp8WeightGradient. Each group begins at a multiple of 128 of the padded rows; what a
// group leaves of its last 128 are zeros. Codes [width, Fp8PaddedRows], scales [Fp8PaddedRows /
// 128, width]. width is a multiple of 128. Of `shape`, only rows, groups and begins are read.
constexpr int64_t Fp8PaddedRows(int64_t rows, int64_t groups) {
  return (rows + (kScaleBlock - 1) * groups) / kScaleBlock * kScaleBlock;
}
void QuantizeColumns(const ProductShape& shape, const BF16* x, int64_t width, const Fp8Array& out,
                     Stream stream);

// Weights w [groups, n, k] with a scale for each block of 128 × 128, and their transposes.
// Codes [groups, n, k], scales [groups, n / 128, k / 128]; codes [groups, k, n], scales [groups,
// k / 128, n / 128]. Of `shape`, groups, n and k are read.
void QuantizeBlocks(const ProductShape& shape, const BF16* w, const Fp8Array& out,
                    const Fp8Array& transposed, Stream stream);

// y[r] (+)= x[r] · W[g(r)]ᵀ, with x of QuantizeRows and W of QuantizeBlocks. For input gradients, x
// is dy, W are the transposes, and n and k are exchanged. Rows of no group are not written. n and k
// are multiples of 128; all arrays are dense. Only float32 sums accumulate. A row's bits do not
// depend on other rows.
void Fp8Product(const ProductShape& shape, const Fp8Operand& x, const Fp8Operand& w, Array y,
                bool accumulate, Stream stream);
// dW[g] += Σ dy[r]ᵀ · x[r] over the rows r of group g, with dy [n] and x [k] of QuantizeColumns.
void Fp8WeightGradient(const ProductShape& shape, const Fp8Operand& dy, const Fp8Operand& x,
                       float* dw, Stream stream);

}  // namespace switchyard::train::gpu
