// Reads `weight` in float8_e4m3 or int8 with separate scales:
//   weight_scale_inv (DeepSeek) or weight_scale, [ceil(n / 128), ceil(k / 128)]: FP8 blocks;
//   scale (DeepSeek-V4) of the same shape, uint8: their exponents (e8m0);
//   weight_scale, [n] or [n, 1]: one for each row;
//   weight_scale, [] or [1]: one for the tensor;
//   input_scale: one for all inputs, if activations are static.
// Used by Hugging Face's fp8, compressed-tensors' float-quantized and int-quantized, and ModelOpt's
// FP8.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/error.h"
#include "core/format.h"
#include "model/weights/checkpoint_reader.h"
#include "quant/formats.h"
#include "quant/fp8.h"

namespace switchyard {
namespace {

constexpr int64_t kCheckedRows = 1024;  // rows of one job

// Some checkpoints store scales in bfloat16, or as exponents; kernels need float32.
Bytes FloatScales(const StoredTensor& s, const std::string& name, int64_t first, int64_t count) {
  if (s.dtype == DType::kF32) return {s.data + first * sizeof(float), s.owner};
  if (s.dtype == DType::kU8) {
    auto floats = std::make_shared<Tensor>(Tensor::Empty(DType::kF32, {count}));
    for (int64_t i = 0; i < count; ++i) floats->data<float>()[i] = FromE8M0(s.data[first + i]);
    return {static_cast<const uint8_t*>(floats->raw()), floats};
  }
  if (!IsPlain(s.dtype)) {
    throw Invalid("{}: tensor \"{}\" is {}; want float32 scales", s.file, name, Name(s.dtype));
  }
  const auto owner = std::make_shared<const Tensor>(Floats(s, first, count));
  return {static_cast<const uint8_t*>(owner->raw()), owner};
}

[[noreturn]] void RefuseScale(const StoredTensor& s, const std::string& name, float scale,
                              const std::string& where) {
  throw Invalid("{}: tensor \"{}\" has a scale that is {} at {}; the file is damaged", s.file, name,
                scale, where);
}

float FloatAt(const void* scales, int64_t i) {
  float scale;
  std::memcpy(&scale, static_cast<const uint8_t*>(scales) + i * sizeof scale, sizeof scale);
  return scale;
}

void CheckBlockScales(const WeightView& v, int64_t block_cols, const StoredTensor& s,
                      const std::string& name) {
  if (v.n == 0 || v.k == 0) return;
  const int64_t last_row = v.row0 + (v.n - 1) * v.row_step;
  for (int64_t i = v.row0 / kFp8BlockSize; i <= last_row / kFp8BlockSize; ++i) {
    for (int64_t j = v.col0 / kFp8BlockSize; j <= (v.col0 + v.k - 1) / kFp8BlockSize; ++j) {
      const float scale = FloatAt(v.scales, i * block_cols + j);
      if (!std::isfinite(scale)) {
        RefuseScale(s, name, scale, fmt::format("block [{}, {}]", i, j));
      }
    }
  }
}

void AddBlockScales(CheckpointReader& in, const MatrixRequest& r, WeightView* view) {
  const int64_t block_rows = CeilDiv(r.n, kFp8BlockSize);
  const int64_t block_cols = CeilDiv(r.k, kFp8BlockSize);
  std::vector<int64_t> shape = {block_rows, block_cols};
  if (r.experts > 0) shape.insert(shape.begin(), r.experts);
  const std::string name =
      in.EitherName(r.name + "_scale_inv",
                    in.EitherName(r.name + "_scale", fmt::format("{}.scale", ModuleOf(r))));
  const StoredTensor* s = in.Find(name, shape, "weight_block_size");
  if (!s || !in.read_data()) return;
  const int64_t blocks = block_rows * block_cols;
  const Bytes scales = FloatScales(*s, name, r.expert * blocks, blocks);
  view->scales = scales.data;
  view->owner = BothOwners(view->owner, scales.owner);
  if (in.check_values()) CheckBlockScales(*view, block_cols, *s, name);
}

// The scales of all rows, float32 [n].
Bytes RowScales(CheckpointReader& in, const StoredTensor& s, const std::string& name, int64_t n) {
  const bool of_rows = s.shape == std::vector<int64_t>{n} || s.shape == std::vector<int64_t>{n, 1};
  const bool of_tensor = s.num_bytes == SizeOf(s.dtype);
  if (!of_rows && !of_tensor) {
    throw Invalid("{}: tensor \"{}\" is {}; want a scale for each of {} rows, or one", s.file, name,
                  ShapeString(s.shape), n);
  }
  if (!in.read_data()) return {};
  if (of_rows && s.dtype == DType::kF32) return FloatScales(s, name, 0, n);
  Bytes& scales = in.Converted(name);
  if (scales.data) return scales;
  scales = FloatScales(s, name, 0, of_rows ? n : 1);
  if (!of_rows) {
    auto spread = std::make_shared<Tensor>(Tensor::Empty(DType::kF32, {n}));
    std::fill_n(spread->data<float>(), n, FloatAt(scales.data, 0));
    scales = {static_cast<const uint8_t*>(spread->raw()), spread};
  }
  return scales;
}

void AddRowScales(CheckpointReader& in, const MatrixRequest& r, WeightView* view) {
  const std::string name = in.EitherName(r.name + "_scale", r.name + "_scale_inv");
  const StoredTensor* s = in.Optional(name);
  if (!s) return in.RecordMissing(name);
  const Bytes scales = RowScales(in, *s, name, r.n);
  if (!in.read_data()) return;
  view->scales = scales.data;
  view->owner = BothOwners(view->owner, scales.owner);
  if (!in.check_values()) return;
  for (int64_t i = 0; i < view->n; ++i) {
    const int64_t row = view->row0 + i * view->row_step;
    const float scale = FloatAt(scales.data, row);
    if (!std::isfinite(scale)) RefuseScale(*s, name, scale, fmt::format("row {}", row));
  }
}

// Defers a check for NaN codes, since kernels decode the NaN code as 480.
void DeferCodeCheck(CheckpointReader& in, const WeightView& v, const StoredTensor& t,
                    const std::string& name) {
  for (int64_t first = 0; first < v.n; first += kCheckedRows) {
    const int64_t end = std::min(v.n, first + kCheckedRows);
    in.Later(0, [v, first, end, &t, name] {
      for (int64_t i = first; i < end; ++i) {
        const int64_t row = v.row0 + i * v.row_step;
        const uint8_t* codes = static_cast<const uint8_t*>(v.data) + row * v.stored_k + v.col0;
        if (HasNanCodes({codes, static_cast<size_t>(v.k)})) {
          throw Invalid("{}: tensor \"{}\" has a weight that is NaN in row {}; the file is damaged",
                        t.file, name, row);
        }
      }
    });
  }
}

}  // namespace

WeightView ReadFp8(CheckpointReader& in, const MatrixRequest& r) {
  const StoredTensor* t = in.Find(r.name, DType::kF8E4M3, MatrixShape(r), r.keys);
  if (!t) return {};
  const bool blocks = r.scheme.format == WeightFormat::kFp8Block;
  if (!blocks || r.transposed) RejectStackedExperts(r, t);
  const uint8_t* data = t->data + r.expert * r.n * r.k;
  WeightView view = StoredView(r, r.scheme.format, data, t->owner);
  in.Use(view, data, r.k, r.cols.begin, r.cols.end);
  blocks ? AddBlockScales(in, r, &view) : AddRowScales(in, r, &view);
  AddInputScale(in, r, &view);
  if (in.check_values()) DeferCodeCheck(in, view, *t, r.name);
  return view;
}

WeightView ReadInt8(CheckpointReader& in, const MatrixRequest& r) {
  const StoredTensor* t = in.Find(r.name, DType::kI8, MatrixShape(r), r.keys);
  if (!t) return {};
  RejectStackedExperts(r, t);
  WeightView view = StoredView(r, WeightFormat::kInt8Channel, t->data, t->owner);
  in.Use(view, t->data, r.k, r.cols.begin, r.cols.end);
  AddRowScales(in, r, &view);
  return view;
}

}  // namespace switchyard
