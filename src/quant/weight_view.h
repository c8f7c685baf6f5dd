// View of a linear layer's weight in the checkpoint's layout: format, data, scales, and the part
// that this rank uses.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "quant/formats.h"

namespace switchyard {

std::string_view Name(WeightFormat format);
std::string_view Name(ActivationFormat format);
// Whether rows are stored as four-bit codes.
constexpr bool HasFourBitCodes(WeightFormat format) {
  return format == WeightFormat::kInt4Group || format == WeightFormat::kMxfp4 ||
         format == WeightFormat::kNvfp4;
}
// Whether CPUs multiply the format with int8 rows of kInt8Group.
constexpr bool TakesInt8Groups(WeightFormat format) {
  return HasFourBitCodes(format) || HasPanels(format);
}
// Stored bytes per weight, including scales and zero points, but not scales of whole rows.
// `group_size` is used by kInt4Group and its panels only.
double BytesPerWeight(WeightFormat format, int64_t group_size = 128);

// Row i and column j of this view are row row0 + i·row_step and column col0 + j of the stored
// matrix. A view never copies: tensor-parallel shards, interleaved gate/up rows and single experts
// are all views of one stored tensor. A view keeps the stored matrix's origin, from which it
// addresses block scales.
struct WeightView {
  WeightFormat format = WeightFormat::kF32;
  const void* data = nullptr;    // element (0, 0) of the stored matrix, or of the expert's matrix
  const void* scales = nullptr;  // scales of the stored matrix; null for plain formats
  const void* zeros = nullptr;   // kInt4Group: zero points; null: 8
  int32_t group_size = 0;        // kInt4Group and its panels: columns that share a scale
  float global_scale = 1.0f;     // kNvfp4
  ActivationFormat activation = ActivationFormat::kNone;  // format of its input rows
  float input_scale = 1.0f;                               // scale of kFp8Tensor
  int64_t stored_k = 0;                                   // columns of the stored matrix
  int64_t row0 = 0, row_step = 1, col0 = 0;
  int64_t n = 0, k = 0;
  std::shared_ptr<const void> owner;  // keeps the mapping or allocation of data and scales alive

  bool defined() const { return data != nullptr; }
  WeightView Rows(int64_t begin, int64_t end) const {
    WeightView v = *this;
    v.row0 += begin * row_step;
    v.n = end - begin;
    return v;
  }
  WeightView Cols(int64_t begin, int64_t end) const {
    WeightView v = *this;
    v.col0 += begin;
    v.k = end - begin;
    return v;
  }
};

// Bytes of the weights of a view, with the scales of groups. Panels are counted with their padding,
// as if the view were a matrix of its own. `w.data` is not read.
double StoredBytes(const WeightView& w);

// Dequantizes columns [col_begin, col_end) of row `row` of the view to float32. Products of codes
// and scales are rounded to float32. Reference for the tests of all kernels.
void DequantizeRow(const WeightView& w, int64_t row, int64_t col_begin, int64_t col_end,
                   float* out);

}  // namespace switchyard
