#include "model/weights/checkpoint_reader.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/error.h"
#include "core/log.h"

namespace switchyard {

namespace {
constexpr size_t kNamedMissing = 5;
constexpr int64_t kExpandedRows = 256;  // rows of one job

}  // namespace

void StoreFloats(std::span<const float> x, DType dtype, uint8_t* out) {
  const auto put = [&](auto convert) {
    for (size_t i = 0; i < x.size(); ++i) {
      const auto value = convert(x[i]);
      std::memcpy(out + i * sizeof value, &value, sizeof value);
    }
  };
  if (dtype == DType::kBF16) return put([](float v) { return ToBF16(v); });
  if (dtype == DType::kF16) return put([](float v) { return ToF16(v); });
  put([](float v) { return v; });
}

Tensor Floats(const StoredTensor& t, int64_t first, int64_t count) {
  Tensor copy = Tensor::Empty(t.dtype, {count});
  std::memcpy(copy.mutable_raw(), t.data + first * SizeOf(t.dtype), copy.num_bytes());
  return t.dtype == DType::kF32 ? copy : copy.ToFloat32();
}

bool IsPlain(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

std::shared_ptr<const void> BothOwners(const std::shared_ptr<const void>& a,
                                       const std::shared_ptr<const void>& b) {
  if (a == b) return a;
  return std::make_shared<
      const std::pair<std::shared_ptr<const void>, std::shared_ptr<const void>>>(a, b);
}

std::vector<int64_t> MatrixShape(const MatrixRequest& r) {
  std::vector<int64_t> shape = {r.n, r.k};
  if (r.transposed) std::swap(shape[0], shape[1]);
  if (r.experts > 0) shape.insert(shape.begin(), r.experts);
  return shape;
}

std::string_view ModuleOf(const MatrixRequest& r) {
  std::string_view name = r.name;
  if (name.ends_with(".weight")) name.remove_suffix(std::string_view(".weight").size());
  return name;
}

WeightView StoredView(const MatrixRequest& r, WeightFormat format, const uint8_t* data,
                      std::shared_ptr<const void> owner) {
  return {.format = format,
          .data = data,
          .activation = r.scheme.activation,
          .stored_k = r.k,
          .row0 = r.row0 + r.rows.begin * r.row_step,
          .row_step = r.row_step,
          .col0 = r.cols.begin,
          .n = r.rows.size(),
          .k = r.cols.size(),
          .owner = std::move(owner)};
}

const StoredTensor* CheckpointReader::Optional(std::string_view name) {
  const StoredTensor* t = checkpoint_.Find(name);
  if (t && options_.found) options_.found->emplace(name);
  return t;
}

void CheckpointReader::RecordMissing(const std::string& name) {
  if (missing_names_.insert(name).second) missing_.push_back(name);
}

const StoredTensor* CheckpointReader::Find(const std::string& name,
                                           const std::vector<int64_t>& shape,
                                           std::string_view keys) {
  const StoredTensor* t = Optional(name);
  if (!t) {
    RecordMissing(name);
    return nullptr;
  }
  if (t->shape != shape) {
    throw Invalid("{}: tensor \"{}\" is {}; config.json requires {} (by {})", t->file, name,
                  ShapeString(t->shape), ShapeString(shape), keys);
  }
  return t;
}

const StoredTensor* CheckpointReader::Find(const std::string& name, DType dtype,
                                           const std::vector<int64_t>& shape,
                                           std::string_view keys) {
  const StoredTensor* t = Find(name, shape, keys);
  if (t && t->dtype != dtype) {
    throw Invalid("{}: tensor \"{}\" is {}; config.json's quantization requires {}", t->file, name,
                  Name(t->dtype), Name(dtype));
  }
  return t;
}

std::optional<float> CheckpointReader::OptionalScalar(const std::string& name) {
  const StoredTensor* t = Optional(name);
  if (!t) return std::nullopt;
  if (!IsPlain(t->dtype) || t->num_bytes != SizeOf(t->dtype)) {
    throw Invalid("{}: tensor \"{}\" is {} {}; want one float32", t->file, name, Name(t->dtype),
                  ShapeString(t->shape));
  }
  if (!options_.read_data) return 1.0f;
  const float value = Floats(*t, 0, 1).data<float>()[0];
  if (check_values() && !(std::isfinite(value) && value > 0)) {
    throw Invalid("{}: tensor \"{}\" is {}; a scale must be positive; the file is damaged", t->file,
                  name, value);
  }
  return value;
}

float CheckpointReader::Scalar(const std::string& name) {
  const auto value = OptionalScalar(name);
  if (!value) RecordMissing(name);
  return value.value_or(1.0f);
}

void CheckpointReader::Use(const WeightView& v, const uint8_t* data, int64_t row_bytes,
                           int64_t first_byte, int64_t end_byte) {
  if (v.n == 0 || v.k == 0) return;
  const int64_t last_row = v.row0 + (v.n - 1) * v.row_step;
  Use(data + v.row0 * row_bytes + first_byte, data + last_row * row_bytes + end_byte);
}

void CheckpointReader::RecordDequantized(std::string_view why) {
  ++expanded_;
  dequantize_reason_ = why;
}

void CheckpointReader::Finish(const LoadJobs::Progress& progress) {
  if (!missing_.empty()) {
    const std::span named(missing_.data(), std::min(missing_.size(), kNamedMissing));
    throw NotFound("{}: {} tensor{} that config.json implies {} missing: {}{}",
                   checkpoint_.dir().string(), missing_.size(), missing_.size() == 1 ? "" : "s",
                   missing_.size() == 1 ? "is" : "are", Joined(named, ", "),
                   missing_.size() > named.size() ? ", ..." : "");
  }
  if (!options_.read_data) return;
  if (expanded_ != 0 && options_.log) {
    LOG_INFO("{}: {} matrices are held as {}: {}", checkpoint_.dir().string(), expanded_,
             Name(config_.dtype), dequantize_reason_);
  }
  size_t mapped = 0;
  Prefault(std::move(used_), [&](size_t done, size_t total) {
    mapped = total;
    if (progress) progress(done, total + jobs_.total());
  });
  if (jobs_.empty()) return;
  jobs_.Run(pool(), mapped, mapped + jobs_.total(), progress);
}

ThreadPool& CheckpointReader::pool() {
  if (!pool_) pool_.emplace(options_.threads);
  return *pool_;
}

void RejectStackedExperts(const MatrixRequest& r, const StoredTensor* t) {
  if (r.experts == 0 && !r.transposed) return;
  throw Invalid("{}: tensor \"{}\": experts stacked in one tensor are not supported in this format",
                t ? t->file : "config.json", r.name);
}

namespace {

// W4AFP8 checkpoints name the input scales of an expert's linears as Mixtral does:
// "….experts.3.w1.input_scale".
std::string OtherInputScale(std::string_view module) {
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"gate_proj", "w1"}, {"down_proj", "w2"}, {"up_proj", "w3"}};
  for (const auto& [name, other] : kNames) {
    if (!module.ends_with(name)) continue;
    module.remove_suffix(name.size());
    return fmt::format("{}{}.input_scale", module, other);
  }
  return {};
}

}  // namespace

void AddInputScale(CheckpointReader& in, const MatrixRequest& r, WeightView* view) {
  if (view->activation != ActivationFormat::kFp8Tensor) return;
  const std::string_view module = ModuleOf(r);
  auto scale = in.OptionalScalar(fmt::format("{}.input_scale", module));
  if (!scale) scale = in.OptionalScalar(OtherInputScale(module));
  view->input_scale = scale.value_or(1.0f);
  if (!scale) view->activation = ActivationFormat::kFp8Token;
}

std::optional<Tensor> InputFactors(CheckpointReader& in, const MatrixRequest& r) {
  const std::string name = fmt::format("{}.pre_quant_scale", ModuleOf(r));
  if (!in.Has(name)) return std::nullopt;
  const StoredTensor* t = in.Find(name, {r.k}, r.keys);
  if (!IsPlain(t->dtype)) {
    throw Invalid("{}: tensor \"{}\" is {}; want float32, bfloat16 or float16", t->file, name,
                  Name(t->dtype));
  }
  in.RecordDequantized("their inputs have scales by column (pre_quant_scale)");
  if (!in.read_data()) return Tensor();
  Tensor factors = Floats(*t, 0, r.k);
  const std::span<const float> values(factors.data<float>(), static_cast<size_t>(r.k));
  const auto bad = std::ranges::find_if_not(values, [](float x) { return std::isfinite(x); });
  if (in.check_values() && bad != values.end()) {
    throw Invalid("{}: tensor \"{}\" has a scale that is {} at column {}; the file is damaged",
                  t->file, name, *bad, bad - values.begin());
  }
  return factors;
}

WeightView Expand(CheckpointReader& in, const MatrixRequest& r,
                  const std::function<void(int64_t row, float* out)>& read_row) {
  const DType dtype = in.config().dtype;
  const auto row_bytes = static_cast<size_t>(r.cols.size()) * SizeOf(dtype);
  WeightView view{.format = PlainFormat(dtype),
                  .stored_k = r.cols.size(),
                  .n = r.rows.size(),
                  .k = r.cols.size()};
  const Slabs::Piece piece =
      in.read_data() ? in.slabs().Allocate(row_bytes * view.n) : Slabs::Piece{};
  // If data is only checked, the view has no memory, but its data pointer must not be null.
  static constexpr uint8_t kNothing = 0;
  view.data = piece.data ? piece.data : &kNothing;
  view.owner = piece.owner;
  if (!in.read_data()) return view;
  for (int64_t first = 0; first < view.n; first += kExpandedRows) {
    const int64_t end = std::min(view.n, first + kExpandedRows);
    in.Later(row_bytes * static_cast<size_t>(end - first), [=] {
      std::vector<float> row(static_cast<size_t>(r.k));
      for (int64_t i = first; i < end; ++i) {
        read_row(r.StoredRow(r.rows.begin + i), row.data());
        StoreFloats({row.data() + r.cols.begin, static_cast<size_t>(r.cols.size())}, dtype,
                    piece.data + static_cast<size_t>(i) * row_bytes);
      }
    });
  }
  return view;
}

}  // namespace switchyard
