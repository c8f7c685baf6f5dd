#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "core/error.h"
#include "model/weights/prefault.h"
#include "model/weights/source.h"

namespace switchyard {
namespace {

constexpr uint8_t kE8M0NaN = 255;
constexpr size_t kNamedMissing = 5;

using Owners = std::pair<std::shared_ptr<const void>, std::shared_ptr<const void>>;

// A copy, or an original, with what keeps it alive.
struct Bytes {
  const uint8_t* data = nullptr;
  std::shared_ptr<const void> owner;
};

Bytes Own(Tensor tensor) {
  const auto owner = std::make_shared<const Tensor>(std::move(tensor));
  return {static_cast<const uint8_t*>(owner->raw()), owner};
}

// Elements [first, first + count) as float32. safetensors does not align tensors: matrices are used
// at any address, but numbers that are read one by one are copied first.
Tensor Floats(const StoredTensor& t, int64_t first, int64_t count) {
  Tensor copy = Tensor::Empty(t.dtype, {count});
  std::memcpy(copy.mutable_raw(), t.data + first * SizeOf(t.dtype), copy.num_bytes());
  return t.dtype == DType::kF32 ? copy : copy.ToFloat32();
}

class CheckpointSource : public WeightSource {
 public:
  CheckpointSource(const Checkpoint& checkpoint, const ModelConfig& config,
                   CheckpointSourceOptions options)
      : checkpoint_(checkpoint), config_(config), options_(options) {}

  bool Has(const std::string& name) const override { return checkpoint_.Find(name) != nullptr; }

  WeightView Matrix(const MatrixRequest& r) override {
    if (r.form == MatrixRequest::Form::kMxfp4) return Mxfp4(r);
    const StoredTensor* t = Find(r.name, MatrixShape(r), r.keys);
    if (!t) return {};
    switch (t->dtype) {
      case DType::kF32:
      case DType::kBF16:
      case DType::kF16:
        return r.transposed ? Transposed(r, *t) : Plain(r, *t);
      case DType::kF8E4M3:
        if (r.form == MatrixRequest::Form::kLinear && !r.transposed) return Fp8(r, *t);
        [[fallthrough]];
      default:
        throw Invalid("{}: tensor \"{}\" is {}; want float32, bfloat16 or float16{}", t->file,
                      r.name, Name(t->dtype),
                      r.form == MatrixRequest::Form::kLinear ? ", or float8_e4m3fn blocks" : "");
    }
  }

  void Vector(const VectorRequest& r, std::span<float> out) override {
    std::vector<int64_t> shape = {r.n};
    if (r.experts > 0) shape.insert(shape.begin(), r.experts);
    const StoredTensor* t = Find(r.name, shape, r.keys);
    if (!t) return;
    if (t->dtype != DType::kF32 && t->dtype != DType::kBF16 && t->dtype != DType::kF16) {
      throw Invalid("{}: tensor \"{}\" is {}; want float32, bfloat16 or float16", t->file, r.name,
                    Name(t->dtype));
    }
    if (!options_.read_data) return;
    const Tensor all = Floats(*t, r.expert * r.n, r.n);
    for (int64_t i = 0; i < r.range.size(); ++i) {
      out[i] = all.data<float>()[r.offset + (r.range.begin + i) * r.step];
    }
  }

  void Finish(const Progress& progress) override {
    if (!missing_.empty()) {
      const std::span named(missing_.data(), std::min(missing_.size(), kNamedMissing));
      throw NotFound("{}: {} tensor{} that config.json implies {} missing: {}{}",
                     checkpoint_.dir().string(), missing_.size(), missing_.size() == 1 ? "" : "s",
                     missing_.size() == 1 ? "is" : "are", fmt::join(named, ", "),
                     missing_.size() > named.size() ? ", ..." : "");
    }
    if (options_.read_data) Prefault(std::move(used_), progress);
  }

 private:
  static std::vector<int64_t> MatrixShape(const MatrixRequest& r) {
    std::vector<int64_t> shape = {r.n, r.k};
    if (r.transposed) std::swap(shape[0], shape[1]);
    if (r.experts > 0) shape.insert(shape.begin(), r.experts);
    return shape;
  }

  // nullptr, and noted, where absent. Error where the shape is not the one config.json implies.
  const StoredTensor* Find(const std::string& name, const std::vector<int64_t>& shape,
                           std::string_view keys) {
    const StoredTensor* t = checkpoint_.Find(name);
    if (!t) {
      if (missing_names_.insert(name).second) missing_.push_back(name);
      return nullptr;
    }
    if (t->shape != shape) {
      throw Invalid("{}: tensor \"{}\" is {}; config.json wants {} (by {})", t->file, name,
                    ShapeString(t->shape), ShapeString(shape), keys);
    }
    return t;
  }

  static WeightView ViewOf(const MatrixRequest& r, WeightFormat format, const uint8_t* data,
                           std::shared_ptr<const void> owner) {
    return {.format = format,
            .data = data,
            .stored_k = r.k,
            .row0 = r.row0 + r.rows.begin * r.row_step,
            .row_step = r.row_step,
            .col0 = r.cols.begin,
            .n = r.rows.size(),
            .k = r.cols.size(),
            .owner = std::move(owner)};
  }

  // Bytes of stored rows that the view reads, from its first element to its last.
  void Use(const WeightView& v, const uint8_t* data, int64_t row_bytes, int64_t first_byte,
           int64_t end_byte) {
    if (v.n == 0 || v.k == 0) return;
    const int64_t last_row = v.row0 + (v.n - 1) * v.row_step;
    used_.push_back(
        {data + v.row0 * row_bytes + first_byte, data + last_row * row_bytes + end_byte});
  }

  WeightView Plain(const MatrixRequest& r, const StoredTensor& t) {
    const WeightFormat format = PlainFormat(t.dtype);
    const auto size = static_cast<int64_t>(SizeOf(t.dtype));
    const uint8_t* data = t.data + r.expert * r.n * r.k * size;
    WeightView view = ViewOf(r, format, data, t.owner);
    Use(view, data, r.k * size, r.cols.begin * size, r.cols.end * size);
    return view;
  }

  // Kernels read rows along k; a checkpoint that stores [k, n] (gpt-oss in bfloat16) is turned
  // once, this rank's part of it alone.
  WeightView Transposed(const MatrixRequest& r, const StoredTensor& t) {
    MatrixRequest part = r;
    part.rows = {0, r.rows.size()};
    part.cols = {0, r.cols.size()};
    part.k = r.cols.size();
    part.row0 = 0;
    part.row_step = 1;
    const WeightFormat format = PlainFormat(t.dtype);
    if (!options_.read_data) return ViewOf(part, format, t.data, t.owner);
    const size_t size = SizeOf(t.dtype);
    Tensor turned = Tensor::Empty(t.dtype, {r.rows.size(), r.cols.size()});
    auto* to = static_cast<uint8_t*>(turned.mutable_raw());
    const uint8_t* from = t.data + r.expert * r.n * r.k * size;
    for (int64_t row = r.rows.begin; row < r.rows.end; ++row) {
      const int64_t stored_row = r.row0 + row * r.row_step;
      for (int64_t col = r.cols.begin; col < r.cols.end; ++col, to += size) {
        std::memcpy(to, from + (col * r.n + stored_row) * size, size);
      }
    }
    Bytes bytes = Own(std::move(turned));
    return ViewOf(part, format, bytes.data, bytes.owner);
  }

  WeightView Fp8(const MatrixRequest& r, const StoredTensor& t) {
    if (config_.quantization != ModelConfig::Quantization::kFp8Block) {
      throw Invalid("{}: tensor \"{}\" is float8 but config.json has no quantization_config of fp8",
                    t.file, r.name);
    }
    const int64_t block_rows = CeilDiv(r.n, kFp8BlockSize);
    const int64_t block_cols = CeilDiv(r.k, kFp8BlockSize);
    std::vector<int64_t> shape = {block_rows, block_cols};
    if (r.experts > 0) shape.insert(shape.begin(), r.experts);
    const std::string scale_name = r.name + "_scale_inv";
    const StoredTensor* s = Find(scale_name, shape, "weight_block_size");
    if (!s) return {};
    const uint8_t* data = t.data + r.expert * r.n * r.k;
    WeightView view = ViewOf(r, WeightFormat::kFp8Block, data, t.owner);
    Use(view, data, r.k, r.cols.begin, r.cols.end);
    if (!options_.read_data) return view;
    const int64_t blocks = block_rows * block_cols;
    const Bytes scales = FloatScales(*s, scale_name, r.expert * blocks, blocks);
    view.scales = scales.data;
    view.owner = std::make_shared<const Owners>(t.owner, scales.owner);
    if (options_.check_nan_scales) CheckFloatScales(view, block_cols, *s, scale_name);
    return view;
  }

  // Some checkpoints keep block scales in bfloat16; kernels want float32.
  static Bytes FloatScales(const StoredTensor& s, const std::string& name, int64_t first,
                           int64_t count) {
    if (s.dtype == DType::kF32) return {s.data + first * sizeof(float), s.owner};
    if (s.dtype != DType::kBF16 && s.dtype != DType::kF16) {
      throw Invalid("{}: tensor \"{}\" is {}; want float32 scales", s.file, name, Name(s.dtype));
    }
    return Own(Floats(s, first, count));
  }

  static void CheckFloatScales(const WeightView& v, int64_t block_cols, const StoredTensor& s,
                               const std::string& name) {
    if (v.n == 0 || v.k == 0) return;
    const int64_t last_row = v.row0 + (v.n - 1) * v.row_step;
    const auto* scales = static_cast<const uint8_t*>(v.scales);
    for (int64_t i = v.row0 / kFp8BlockSize; i <= last_row / kFp8BlockSize; ++i) {
      for (int64_t j = v.col0 / kFp8BlockSize; j <= (v.col0 + v.k - 1) / kFp8BlockSize; ++j) {
        float scale;
        std::memcpy(&scale, scales + (i * block_cols + j) * sizeof scale, sizeof scale);
        if (!std::isfinite(scale)) {
          throw Invalid(
              "{}: tensor \"{}\" has a scale that is {} at block [{}, {}]; the file is "
              "damaged",
              s.file, name, scale, i, j);
        }
      }
    }
  }

  WeightView Mxfp4(const MatrixRequest& r) {
    if (r.k % kMxfp4BlockSize != 0) {
      throw Invalid("config.json: {} gives tensor \"{}\" {} columns; MXFP4 wants a multiple of {}",
                    r.keys, r.name, r.k, kMxfp4BlockSize);
    }
    const int64_t blocks = r.k / kMxfp4BlockSize;
    std::vector<int64_t> shape = {r.n, blocks};
    if (r.experts > 0) shape.insert(shape.begin(), r.experts);
    const StoredTensor* s = Find(r.name + "_scales", shape, r.keys);
    shape.push_back(kMxfp4BlockSize / 2);
    const StoredTensor* b = Find(r.name + "_blocks", shape, r.keys);
    if (!s || !b) return {};
    for (const StoredTensor* t : {s, b}) {
      if (t->dtype != DType::kU8) {
        throw Invalid("{}: tensor \"{}\" is {} where MXFP4 wants uint8", t->file, r.name,
                      Name(t->dtype));
      }
    }
    const int64_t row_bytes = r.k / 2;
    const uint8_t* data = b->data + r.expert * r.n * row_bytes;
    const uint8_t* scales = s->data + r.expert * r.n * blocks;
    WeightView view = ViewOf(r, WeightFormat::kMxfp4, data, b->owner);
    view.scales = scales;
    if (s->owner != b->owner) {
      view.owner = std::make_shared<const Owners>(b->owner, s->owner);
    }
    const Range part = {r.cols.begin / kMxfp4BlockSize, CeilDiv(r.cols.end, kMxfp4BlockSize)};
    Use(view, data, row_bytes, part.begin * (kMxfp4BlockSize / 2),
        part.end * (kMxfp4BlockSize / 2));
    Use(view, scales, blocks, part.begin, part.end);
    if (options_.read_data && options_.check_nan_scales)
      CheckExponents(view, scales, blocks, part, *s, r);
    return view;
  }

  static void CheckExponents(const WeightView& v, const uint8_t* scales, int64_t blocks, Range part,
                             const StoredTensor& s, const MatrixRequest& r) {
    for (int64_t i = 0; i < v.n; ++i) {
      const int64_t row = v.row0 + i * v.row_step;
      const uint8_t* first = scales + row * blocks + part.begin;
      const void* bad = std::memchr(first, kE8M0NaN, static_cast<size_t>(part.size()));
      if (bad) {
        throw Invalid(
            "{}: tensor \"{}_scales\" has a scale that is NaN at expert {}, row {}, "
            "block {}; the file is damaged",
            s.file, r.name, r.expert, row, part.begin + (static_cast<const uint8_t*>(bad) - first));
      }
    }
  }

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  const CheckpointSourceOptions options_;
  std::vector<std::string> missing_;  // in the order of requests
  std::set<std::string> missing_names_;
  std::vector<ByteRange> used_;
};

}  // namespace

std::unique_ptr<WeightSource> MakeCheckpointSource(const Checkpoint& checkpoint,
                                                   const ModelConfig& config,
                                                   CheckpointSourceOptions options) {
  return std::make_unique<CheckpointSource>(checkpoint, config, options);
}

}  // namespace switchyard
