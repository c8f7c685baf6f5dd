// A linear layer's weight as it lies in the checkpoint: format, bytes, scales, and the part of it
// that one rank uses.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "quant/formats.h"

namespace switchyard {

std::string_view Name(WeightFormat format);
std::string_view Name(ActivationFormat format);
// Scales and zero points included, but for those of one a row. `group_size` is kInt4Group's.
double BytesPerWeight(WeightFormat format, int64_t group_size = 128);

// Rows [0, n) and columns [0, k) of this view are rows row0 + i·row_step and columns col0 + j of
// the stored matrix. A view never copies: tensor-parallel shards, interleaved gate/up rows and
// single experts are all views of one stored tensor, and block scales stay addressable because the
// origin is kept.
struct WeightView {
  WeightFormat format = WeightFormat::kF32;
  const void* data = nullptr;    // element (0, 0) of the stored matrix (of this expert's matrix)
  const void* scales = nullptr;  // of the stored matrix; null for plain formats
  const void* zeros = nullptr;   // kInt4Group: zero points; null: 8
  int32_t group_size = 0;        // kInt4Group: columns that share a scale
  float global_scale = 1.0f;     // kNvfp4
  ActivationFormat activation = ActivationFormat::kNone;  // of the rows it is multiplied with
  float input_scale = 1.0f;                               // of kFp8Tensor
  int64_t stored_k = 0;                                   // columns of the stored matrix
  int64_t row0 = 0, row_step = 1, col0 = 0;
  int64_t n = 0, k = 0;
  std::shared_ptr<const void> owner;  // the mapping or allocation behind data and scales

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

// Writes columns [col_begin, col_end) of row `row` of the view as float32: the reference that every
// kernel is held against, exact for every format.
void DequantizeRow(const WeightView& w, int64_t row, int64_t col_begin, int64_t col_end,
                   float* out);

}  // namespace switchyard
