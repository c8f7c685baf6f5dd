#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/error.h"
#include "model/weights/checkpoint_reader.h"
#include "model/weights/source.h"

namespace switchyard {
namespace {

class CheckpointSource : public WeightSource {
 public:
  CheckpointSource(const Checkpoint& checkpoint, const ModelConfig& config,
                   const CheckpointSourceOptions& options)
      : in_(checkpoint, config, options) {}

  bool Has(const std::string& name) const override { return in_.Has(name); }

  WeightView Matrix(const MatrixRequest& r) override {
    if (r.mxfp4_blocks) return ReadMxfp4Blocks(in_, r);
    const Packing packing = StoredPacking(r);
    if (!r.picked.empty() && (IsQuantized(packing) || IsStoredQuantized(r)))
      throw Invalid(
          "--speculative-token-map: tensor \"{}\" is quantized in the checkpoint; want a head in "
          "float32, bfloat16 or float16, or leave the flag out",
          r.name);
    switch (packing) {
      case Packing::kPlain:
        return ReadPlain(in_, r);
      case Packing::kFp8:
        return ReadFp8(in_, r);
      case Packing::kInt8:
        return ReadInt8(in_, r);
      case Packing::kMxfp4:
        return ReadMxfp4(in_, r);
      case Packing::kNvfp4:
      case Packing::kModelOptNvfp4:
        return ReadNvfp4(in_, r);
      case Packing::kWhileLoading:
        return ReadAndPack(in_, r);
      case Packing::kPackedInt4:
      case Packing::kGptq:
      case Packing::kAwq:
      case Packing::kSignedInt4:
      case Packing::kModelOptInt4:
        return ReadInt4(in_, r);
      case Packing::kGguf:
        break;
    }
    CheckFailed(__FILE__, __LINE__, "unknown packing");
  }

  void Vector(const VectorRequest& r, std::span<float> out) override {
    if (r.scales) return Scales(r, out);
    std::vector<int64_t> shape = {r.n};
    if (r.experts > 0) shape.insert(shape.begin(), r.experts);
    if (r.kernel > 0) shape = {r.n / r.kernel, 1, r.kernel};
    if (r.of_heads) shape = {1, 1, r.n, 1};
    if (r.columns > 0) shape = {r.n / r.columns, r.columns};
    const StoredTensor* t = in_.Find(r.name, shape, r.keys);
    if (!t) return;
    if (r.below > 0) return Integers(*t, r, out);
    RequirePlain(*t, r.name);
    if (!in_.read_data()) return;
    const Tensor all = Floats(*t, r.expert * r.n, r.n);
    for (int64_t i = 0; i < r.range.size(); ++i) {
      out[i] = all.data<float>()[r.offset + (r.range.begin + i) * r.step];
    }
  }

  void Finish(const Progress& progress) override { in_.Finish(progress); }

 private:
  void Scales(const VectorRequest& r, std::span<float> out) {
    const StoredTensor* const t = in_.Optional(r.name);
    if (t == nullptr) return in_.RecordMissing(r.name);
    int64_t count = 1;
    for (const int64_t size : t->shape) count *= size;
    const bool one_dimension =
        std::ranges::count_if(t->shape, [](int64_t size) { return size != 1; }) <= 1;
    if (!one_dimension || (count != 1 && count != r.n))
      throw Invalid("{}: tensor \"{}\" has shape [{}]; want one scale, or {} ({})", t->file, r.name,
                    Joined(t->shape, ", "), r.n, r.keys);
    RequirePlain(*t, r.name);
    if (!in_.read_data()) return;
    const Tensor all = Floats(*t, 0, count);
    for (int64_t i = 0; i < r.range.size(); ++i) {
      const float scale = all.data<float>()[count == 1 ? 0 : r.range.begin + i];
      if (!(scale > 0.0f && std::isfinite(scale)))
        throw Invalid("{}: tensor \"{}\" holds {}; want positive scales", t->file, r.name, scale);
      out[i] = scale;
    }
  }

  static void RequirePlain(const StoredTensor& t, const std::string& name) {
    if (IsPlain(t.dtype)) return;
    throw Invalid("{}: tensor \"{}\" is {}; want float32, bfloat16 or float16", t.file, name,
                  Name(t.dtype));
  }

  void Integers(const StoredTensor& t, const VectorRequest& r, std::span<float> out) const {
    if (t.dtype != DType::kI64 && t.dtype != DType::kI32)
      throw Invalid("{}: tensor \"{}\" is {}; want int64 or int32", t.file, r.name, Name(t.dtype));
    if (!in_.read_data()) return;
    for (int64_t i = 0; i < r.range.size(); ++i) {
      const int64_t at = r.offset + (r.range.begin + i) * r.step;
      int64_t wide = 0;  // little-endian, at any alignment
      int32_t narrow = 0;
      if (t.dtype == DType::kI64) {
        std::memcpy(&wide, t.data + at * SizeOf(t.dtype), sizeof(wide));
      } else {
        std::memcpy(&narrow, t.data + at * SizeOf(t.dtype), sizeof(narrow));
        wide = narrow;
      }
      if (wide < 0 || wide >= r.below)
        throw Invalid("{}: tensor \"{}\" holds {}; want 0 to {}", t.file, r.name, wide,
                      r.below - 1);
      out[i] = static_cast<float>(wide);
      const std::span row = out.subspan(i - i % r.columns, i % r.columns);
      if (std::ranges::find(row, out[i]) != row.end())
        throw Invalid("{}: tensor \"{}\" holds {} twice in row {}", t.file, r.name, wide,
                      i / r.columns);
    }
  }

  static bool IsQuantized(Packing packing) {
    return packing != Packing::kPlain && packing != Packing::kWhileLoading;
  }

  // Whether the files have codes of the matrix, whatever config.json says about it.
  bool IsStoredQuantized(const MatrixRequest& r) {
    if (const StoredTensor* t = in_.Optional(r.name)) return !IsPlain(t->dtype);
    const std::string module(ModuleOf(r));
    return in_.Has(module + ".weight_packed") || in_.Has(module + ".qweight");
  }

  // A module that is missing from a checkpoint's ignore list may still be stored unquantized.
  Packing StoredPacking(const MatrixRequest& r) {
    if (r.scheme.packing == Packing::kWhileLoading) return r.scheme.packing;
    if (!in_.Has(r.name)) return r.scheme.packing;
    return IsPlain(in_.Optional(r.name)->dtype) ? Packing::kPlain : r.scheme.packing;
  }

  CheckpointReader in_;
};

}  // namespace

std::unique_ptr<WeightSource> MakeCheckpointSource(const Checkpoint& checkpoint,
                                                   const ModelConfig& config,
                                                   const CheckpointSourceOptions& options) {
  return std::make_unique<CheckpointSource>(checkpoint, config, options);
}

}  // namespace switchyard
