// Reads e2m1 codes, two per byte, low nibble first, with scales of blocks along k:
//   MXFP4 of gpt-oss: `name`_blocks uint8 [experts, n, k/32, 16], `name`_scales uint8 (e8m0)
//     [experts, n, k/32];
//   MXFP4 of compressed-tensors: weight_packed uint8 [n, k/2], weight_scale uint8 [n, k/32];
//   MXFP4 of DeepSeek-V4: weight int8 or uint8, scale, of the same shapes;
//   NVFP4 of compressed-tensors: weight_packed, weight_scale float8_e4m3 [n, k/16],
//     weight_global_scale [1], by which scales are divided;
//   NVFP4 of ModelOpt: weight uint8 [n, k/2], weight_scale, weight_scale_2 [], by which they are
//     multiplied.
// All of them match in-memory formats. They are packed into panels, or used in place
// (ImpliedFormat).
#include <cstring>
#include <utility>
#include <vector>

#include "core/error.h"
#include "model/weights/checkpoint_reader.h"
#include "model/weights/panel_packing.h"
#include "quant/fp8.h"
#include "quant/panels.h"

namespace switchyard {
namespace {

constexpr uint8_t kE8M0NaN = 255;

void CheckBlockMultiple(const MatrixRequest& r, int64_t block, std::string_view format) {
  if (r.k % block == 0) return;
  throw Invalid("config.json: {} gives tensor \"{}\" {} columns; {} requires a multiple of {}",
                r.keys, r.name, r.k, format, block);
}

// Codes and block scales of this request's matrix, in place.
struct CodesAndScales {
  const StoredTensor* codes = nullptr;
  const StoredTensor* scales = nullptr;
  int64_t block = 0;
};

WeightView InPlace(const MatrixRequest& r, WeightFormat format, const CodesAndScales& p) {
  const uint8_t* data = p.codes->data + r.expert * r.n * (r.k / 2);
  WeightView view = StoredView(r, format, data, BothOwners(p.codes->owner, p.scales->owner));
  view.scales = p.scales->data + r.expert * r.n * (r.k / p.block);
  return view;
}

// Records the bytes of a view that stays in place.
void UseInPlace(CheckpointReader& in, const MatrixRequest& r, int64_t block,
                const WeightView& view) {
  const Range part = {r.cols.begin / block, CeilDiv(r.cols.end, block)};
  in.Use(view, static_cast<const uint8_t*>(view.data), r.k / 2, part.begin * (block / 2),
         part.end * (block / 2));
  in.Use(view, static_cast<const uint8_t*>(view.scales), r.k / block, part.begin, part.end);
}

// Packs the stored view into panels, if the matrix is held as such. Else keeps it in place.
WeightView Hold(CheckpointReader& in, const MatrixRequest& r, int64_t block,
                const WeightView& stored) {
  const WeightFormat format = ImpliedFormat(in.config(), r);
  if (!HasPanels(format)) {
    UseInPlace(in, r, block, stored);
    return stored;
  }
  const auto* codes = static_cast<const uint8_t*>(stored.data);
  const auto* scales = static_cast<const uint8_t*>(stored.scales);
  std::vector<MappedRange> read = {{codes, codes + r.n * (r.k / 2)},
                                   {scales, scales + r.n * (r.k / block)}};
  return PackLater(in,
                   {.format = format,
                    .data = stored.data,
                    .global_scale = stored.global_scale,
                    .activation = stored.activation,
                    .stored_k = stored.k,
                    .n = stored.n,
                    .k = stored.k,
                    .owner = stored.owner},
                   std::move(read), [stored, format](Range rows, uint8_t* panels) {
                     for (int64_t row = rows.begin; row < rows.end; ++row)
                       PutViewRow(stored, row, format, row, panels);
                   });
}

void CheckExponents(const WeightView& v, Range part, int64_t blocks, const MatrixRequest& r,
                    const StoredTensor& s, const std::string& name) {
  for (int64_t i = 0; i < v.n; ++i) {
    const int64_t row = v.row0 + i * v.row_step;
    const uint8_t* first = static_cast<const uint8_t*>(v.scales) + row * blocks + part.begin;
    const void* bad = std::memchr(first, kE8M0NaN, static_cast<size_t>(part.size()));
    if (bad) {
      throw Invalid(
          "{}: tensor \"{}\" has a scale that is NaN at expert {}, row {}, block {}; the file is "
          "damaged",
          s.file, name, r.expert, row, part.begin + (static_cast<const uint8_t*>(bad) - first));
    }
  }
}

WeightView Mxfp4(CheckpointReader& in, const MatrixRequest& r, const CodesAndScales& p,
                 const std::string& scale_name) {
  const WeightView view = InPlace(r, WeightFormat::kMxfp4, p);
  if (in.check_values()) {
    const Range part = {r.cols.begin / p.block, CeilDiv(r.cols.end, p.block)};
    CheckExponents(view, part, r.k / p.block, r, *p.scales, scale_name);
  }
  return Hold(in, r, p.block, view);
}

void CheckBlockScales(const WeightView& v, const StoredTensor& s, const std::string& name) {
  const int64_t blocks = v.stored_k / kNvfp4BlockSize;
  for (int64_t i = 0; i < v.n; ++i) {
    const int64_t row = v.row0 + i * v.row_step;
    const uint8_t* first = static_cast<const uint8_t*>(v.scales) + row * blocks;
    if (HasNanCodes({first, static_cast<size_t>(blocks)})) {
      throw Invalid("{}: tensor \"{}\" has a scale that is NaN in row {}; the file is damaged",
                    s.file, name, row);
    }
  }
}

WeightView FoldInputs(CheckpointReader& in, const MatrixRequest& r, const Tensor& factors,
                      WeightView whole) {
  whole.row0 = whole.col0 = 0;
  whole.row_step = 1;
  whole.n = r.n;
  whole.k = r.k;
  return Expand(in, r, [whole, factors](int64_t row, float* out) {
    DequantizeRow(whole, row, 0, whole.k, out);
    for (int64_t j = 0; j < whole.k; ++j) out[j] *= factors.data<float>()[j];
  });
}

}  // namespace

WeightView ReadMxfp4Blocks(CheckpointReader& in, const MatrixRequest& r) {
  CheckBlockMultiple(r, kMxfp4BlockSize, "MXFP4");
  std::vector<int64_t> shape = {r.n, r.k / kMxfp4BlockSize};
  if (r.experts > 0) shape.insert(shape.begin(), r.experts);
  const std::string scale_name = r.name + "_scales";
  const StoredTensor* s = in.Find(scale_name, DType::kU8, shape, r.keys);
  shape.push_back(kMxfp4BlockSize / 2);
  const StoredTensor* b = in.Find(r.name + "_blocks", DType::kU8, shape, r.keys);
  if (!s || !b) return {};
  return Mxfp4(in, r, {b, s, kMxfp4BlockSize}, scale_name);
}

WeightView ReadMxfp4(CheckpointReader& in, const MatrixRequest& r) {
  RejectStackedExperts(r, nullptr);
  CheckBlockMultiple(r, kMxfp4BlockSize, "MXFP4");
  const std::string module(ModuleOf(r));
  const std::string scale_name = in.EitherName(module + ".weight_scale", module + ".scale");
  const std::string name = in.EitherName(module + ".weight_packed", r.name);
  const std::vector<int64_t> shape = {r.n, r.k / 2};
  const StoredTensor* b = in.Find(name, shape, r.keys);
  const StoredTensor* s = in.Find(scale_name, DType::kU8, {r.n, r.k / kMxfp4BlockSize}, r.keys);
  if (!s || !b) return {};
  if (b->dtype != DType::kI8) b = in.Find(name, DType::kU8, shape, r.keys);
  return Mxfp4(in, r, {b, s, kMxfp4BlockSize}, scale_name);
}

WeightView ReadNvfp4(CheckpointReader& in, const MatrixRequest& r) {
  RejectStackedExperts(r, nullptr);
  CheckBlockMultiple(r, kNvfp4BlockSize, "NVFP4");
  const bool modelopt = r.scheme.packing == Packing::kModelOptNvfp4;
  const std::string module(ModuleOf(r)), scale_name = module + ".weight_scale";
  const StoredTensor* b = in.Find(module + (modelopt ? ".weight" : ".weight_packed"), DType::kU8,
                                  {r.n, r.k / 2}, r.keys);
  const StoredTensor* s = in.Find(scale_name, DType::kF8E4M3, {r.n, r.k / kNvfp4BlockSize}, r.keys);
  const float global = in.Scalar(module + (modelopt ? ".weight_scale_2" : ".weight_global_scale"));
  if (!s || !b) return {};
  WeightView view = InPlace(r, WeightFormat::kNvfp4, {b, s, kNvfp4BlockSize});
  view.global_scale = modelopt ? global : 1.0f / global;
  if (in.check_values()) CheckBlockScales(view, *s, scale_name);
  const auto factors = InputFactors(in, r);
  if (!factors) return Hold(in, r, kNvfp4BlockSize, view);
  UseInPlace(in, r, kNvfp4BlockSize, view);
  return FoldInputs(in, r, *factors, view);
}

}  // namespace switchyard
