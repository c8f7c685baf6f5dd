// Weight panels: sixteen rows of a quantized matrix, interleaved for products of bytes. One load of
// a vector has four bytes of each row, and all bytes of a panel are in the order in which kernels
// read them, so that a matrix is one stream of memory.
//
// A panel of a matrix [N, K] has ceil(K / 128) parts of 128 columns. First come the scales of all
// parts, padded to whole cache lines, then the codes of all parts: kernels convert a panel's scales
// before they read its codes. Rows and columns that the matrix does not have are zeros.
//
//   Codes, as pieces [pieces][16 rows][4 bytes]:
//     4 bits     16 pieces: byte b of piece v has columns 8v + 2b (low nibble) and 8v + 2b + 1
//     kQ5KPanels the low four bits as above; then 4 pieces with the fifth bits: byte b of piece
//                h has those of columns 32h + 8i + 2b and 32h + 8i + 2b + 1 in bits 2i and
//                2i + 1, i < 4
//     kQ6KPanels the low four bits as above; then 8 pieces with the high two bits: byte b of
//                piece h has those of columns 16h + 2b, 16h + 2b + 1, 16h + 2b + 8 and
//                16h + 2b + 9, from the lowest bits on
//     kQ8_0Panels 32 pieces of code + 128: byte b of piece 2v has column 8v + 2b, byte b of piece
//                2v + 1 has column 8v + 2b + 1
//   Scales, as arrays [count][16 rows], in this order:
//     kInt4Panels, kInt4ZeroPanels  bfloat16 of each group, uint8 zero point of each group
//                  w = (code - zero) · scale; zero is 8 in kInt4Panels; groups of 32, 64 or 128
//     kInt4HalfPanels, kInt4HalfZeroPanels  the same with float16 scales
//     kMxfp4Panels e8m0 of each 32 columns              w = e2m1 · 2^(e - 127)
//     kNvfp4Panels e4m3 of each 16 columns              w = e2m1 · (scale · global_scale)
//     kQ4_0Panels  float16 of each 32 columns           w = d · (code - 8)
//     kQ8_0Panels  float16 of each 32 columns           w = d · code
//     kQ4KPanels, kQ5KPanels  uint8 s and uint8 m of each 32 columns, float16 d, float16 dmin
//                                                       w = d s code - dmin m
//     kQ6KPanels   int8 s of each 16 columns, float16 d w = d s (code - 32)
//     kIQ4XSPanels int8 s of each 32 columns, float16 d w = d s t[code], t = kNonLinear4
//   d and dmin belong to ggml's block of 256 columns, so both parts of a block store them.
//
// A view of panels begins at a row that is a multiple of 16 and a column that is a multiple of 128,
// or kernels convert it to float32.
#pragma once

#include <cstdint>
#include <span>

#include "quant/weight_view.h"

namespace switchyard {

constexpr int64_t kPanelHeight = 16;    // rows
constexpr int64_t kPanelColumns = 128;  // columns of a part

// One row of a part: its codes, and its scales in the order of the arrays.
struct PanelRow {
  uint8_t codes[kPanelColumns];
  uint8_t scales[16];
};

// Bytes of a part with all of its 16 rows. `group_size` is used by IsInt4Panels only, and divides
// 128.
struct PanelLayout {
  int64_t code_bytes = 0;
  int64_t scale_bytes = 0;
};
PanelLayout PanelLayoutOf(WeightFormat format, int64_t group_size);

// Sizes in bytes: the scales of a panel of k columns, the whole panel, and a matrix of n rows.
int64_t PanelScaleBytes(WeightFormat format, int64_t group_size, int64_t k);
int64_t PanelBytes(WeightFormat format, int64_t group_size, int64_t k);
int64_t PanelMatrixBytes(WeightFormat format, int64_t group_size, int64_t n, int64_t k);
// Bytes per weight of a matrix that consists of whole panels and parts.
double PanelBytesPerWeight(WeightFormat format, int64_t group_size);

// Writes or reads the columns of part `part` (column / 128) of row `row`. `panels`: all panels of a
// matrix of k columns. Rows may be written by several threads.
void PutPanelRow(WeightFormat format, int64_t group_size, int64_t k, int64_t row, int64_t part,
                 const PanelRow& from, uint8_t* panels);
PanelRow GetPanelRow(WeightFormat format, int64_t group_size, int64_t k, int64_t row, int64_t part,
                     const uint8_t* panels);

// The panel format of kMxfp4 and kNvfp4, and of kInt4Group with bfloat16 scales if its groups have
// 32, 64 or 128 columns. For any other weight, `format` itself.
WeightFormat PanelFormatOf(WeightFormat format, int64_t group_size, bool zeros);
// kInt4HalfPanels or kInt4HalfZeroPanels for kInt4Panels or kInt4ZeroPanels.
WeightFormat WithHalfScales(WeightFormat int4_panels);

// Converts a row of a view to row `to_row` of panels of `format`, the PanelFormatOf the view.
// Column 0 of the panels is the view's first column, which must begin a group. The scales of
// kInt4Group must be representable in bfloat16 (CHECK). The global scale of kNvfp4 is not stored.
void PutViewRow(const WeightView& from, int64_t row, WeightFormat format, int64_t to_row,
                uint8_t* panels);

// DequantizeRow for views of panels. `row`, `begin` and `end` refer to the stored matrix, not to
// the view.
void DequantizePanels(const WeightView& w, int64_t row, int64_t begin, int64_t end, float* out);

}  // namespace switchyard
