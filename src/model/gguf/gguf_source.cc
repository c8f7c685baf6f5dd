#include "model/gguf/gguf_source.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/parallel.h"
#include "model/gguf/gguf_matrix.h"
#include "model/gguf/gguf_names.h"
#include "model/weights/checkpoint_reader.h"
#include "model/weights/load_jobs.h"
#include "model/weights/prefault.h"
#include "model/weights/slabs.h"
#include "quant/ggml_blocks.h"
#include "quant/ggml_panels.h"

namespace switchyard {
namespace {

constexpr int64_t kRowsOfJob = 256;  // a multiple of the rows of a panel
constexpr size_t kNamedMissing = 5;
constexpr int64_t kPackedBlock = 32;  // columns of a block of Q4_0 and MXFP4
constexpr std::string_view kGateUp = "gate_up_proj";

std::optional<DType> PlainType(const GgmlType& type) {
  if (type.id == kGgmlF32) return DType::kF32;
  if (type.id == kGgmlBF16) return DType::kBF16;
  if (type.id == kGgmlF16) return DType::kF16;
  return std::nullopt;
}

// Repacks Q4_0 or MXFP4 blocks of one row: codes, and float32 or e8m0 scales.
void PackRow(const GgufMatrix& m, int64_t row, Range blocks, uint8_t* codes, uint8_t* scales) {
  const uint8_t* block = m.Row(row) + blocks.begin * m.type->block_bytes;
  const bool int4 = m.type->id == kGgmlQ4_0;
  for (int64_t i = blocks.begin; i < blocks.end; ++i, block += m.type->block_bytes) {
    if (int4) {
      F16 half;
      std::memcpy(&half, block, sizeof half);
      const float scale = ToFloat(half);
      std::memcpy(scales, &scale, sizeof scale);
      scales += sizeof scale;
    } else {
      *scales++ = block[0];
    }
    ReorderGgmlNibbles(block + (int4 ? 2 : 1), codes);
    codes += kPackedBlock / 2;
  }
}

class GgufSource : public WeightSource {
 public:
  GgufSource(const GgufFiles& files, const ModelConfig& config,
             const CheckpointSourceOptions& options)
      : files_(files),
        config_(config),
        options_(options),
        check_(options.read_data && options.check_nan_scales),
        slabs_(options.slab_bytes > 0 ? options.slab_bytes : Slabs::kSlabBytes) {}

  bool Has(const std::string& name) const override {
    // For gpt-oss, requests name the stacked, interleaved tensor of safetensors files. GGUF files
    // store gate and up separately.
    if (name.ends_with("gate_up_proj_blocks")) return config_.quantization.mxfp4_blocks();
    const GgufPlace place = PlaceInGguf(files_, config_, name);
    return !place.tensor.empty() && files_.Find(place.tensor) != nullptr;
  }

  WeightView Matrix(const MatrixRequest& request) override {
    const MatrixRequest r = Separate(request);
    const GgufPlace place = PlaceInGguf(files_, config_, r.name);
    if (place.rows == GgufPlace::Rows::kLatent) return ReadLatent(r, place);
    const auto m = FindMatrix(r, place);
    if (!m) return {};
    const auto plain = PlainType(*m->type);
    if (plain && m->pairs_of == 0 && r.picked.empty()) return InPlace(r, *m, *plain);
    const WeightFormat format = ImpliedFormat(config_, r);
    if (HasPanels(format) && PanelFormatOfGgml(*m->type) == format) return Panels(r, *m, format);
    const bool packed = (format == WeightFormat::kMxfp4 && m->type->id == kGgmlMXFP4) ||
                        (format == WeightFormat::kInt4Group && m->type->id == kGgmlQ4_0);
    if (packed) return Pack(r, *m);
    return Expand(r, plain.value_or(config_.dtype),
                  [m = *m, check = check_](Range rows, float* out) {
                    for (int64_t row = rows.begin; row < rows.end; ++row, out += m.k)
                      m.Read(row, check, out);
                  });
  }

  void Vector(const VectorRequest& request, std::span<float> out) override {
    VectorRequest r = request;
    // GGUF files store gpt-oss's gate_up_proj_bias as two tensors.
    if (const size_t at = r.name.find(kGateUp); at != std::string::npos) {
      r.name.replace(at, kGateUp.size(), r.offset % 2 == 0 ? "gate_proj" : "up_proj");
      r.n /= 2;
      r.offset = 0;
      r.step = 1;
    }
    const GgufPlace place = PlaceInGguf(files_, config_, r.name);
    std::vector<int64_t> shape = {r.n};
    if (r.experts > 1) shape.insert(shape.begin(), r.experts);
    const GgufFiles::Tensor* t = Find(r.name, place.tensor, shape, r.keys);
    if (t == nullptr || !options_.read_data) return;
    const GgufMatrix stored{.type = t->type, .data = t->data, .k = r.n};
    std::vector<float> all(static_cast<size_t>(r.n));
    DequantizeGgml(*t->type, stored.Row(r.experts > 1 ? r.expert : 0), r.n, all.data());
    const GgufMatrix order{.n = r.n, .pairs_of = place.pairs_of};
    for (int64_t i = 0; i < r.range.size(); ++i)
      out[i] = all[order.StoredRow(r.offset + (r.range.begin + i) * r.step)];
  }

  void Finish(const Progress& progress) override {
    if (!missing_.empty()) {
      const std::span named(missing_.data(), std::min(missing_.size(), kNamedMissing));
      throw NotFound("{}: {} tensor{} that the metadata implies {} missing: {}{}", files_.name(),
                     missing_.size(), missing_.size() == 1 ? "" : "s",
                     missing_.size() == 1 ? "is" : "are", Joined(named, ", "),
                     missing_.size() > named.size() ? ", ..." : "");
    }
    if (!options_.read_data) return;
    size_t mapped = 0;
    Prefault(std::move(used_), [&](size_t done, size_t total) {
      mapped = total;
      if (progress) progress(done, total + jobs_.total());
    });
    if (jobs_.empty()) return;
    ThreadPool pool(options_.threads);
    jobs_.Run(pool, mapped, mapped + jobs_.total(), progress);
  }

 private:
  // Converts a request for gpt-oss's interleaved, stacked experts to one for a single matrix of an
  // expert.
  static MatrixRequest Separate(MatrixRequest r) {
    if (r.experts == 0) return r;
    const size_t at = r.name.rfind('.') + 1;
    std::string part = r.name.substr(at);
    if (part == kGateUp) {
      part = r.row0 % 2 == 0 ? "gate_proj" : "up_proj";
      r.n /= 2;
      r.row0 = 0;
      r.row_step = 1;
    }
    r.name = fmt::format("{}{}.{}.weight", r.name.substr(0, at), r.expert, part);
    r.experts = 0;
    r.transposed = false;
    return r;
  }

  // Error if the shape differs from `shape`; leading dimensions of 1 do not count. If absent,
  // records it and returns nullptr.
  const GgufFiles::Tensor* Find(const std::string& name, const std::string& tensor,
                                const std::vector<int64_t>& shape, std::string_view keys) {
    const GgufFiles::Tensor* t = files_.Find(tensor);
    if (t == nullptr) {
      const std::string& shown = tensor.empty() ? name : tensor;
      if (missing_names_.insert(shown).second) missing_.push_back(shown);
      return nullptr;
    }
    if (options_.found) options_.found->insert(tensor);
    const auto significant = [](const std::vector<int64_t>& sizes) {
      const auto first = std::ranges::find_if(sizes, [](int64_t size) { return size != 1; });
      return std::vector<int64_t>(first, sizes.end());
    };
    if (significant(t->shape) != significant(shape))
      throw Invalid("{}: tensor \"{}\" is {}; the metadata requires {} (by {})", t->file->name,
                    tensor, ShapeString(t->shape), ShapeString(shape), keys);
    return t;
  }

  std::optional<GgufMatrix> FindMatrix(const MatrixRequest& r, const GgufPlace& place) {
    std::vector<int64_t> shape = {r.n * place.part_count, r.k};
    if (place.expert >= 0) shape.insert(shape.begin(), config_.moe->router.num_experts);
    const GgufFiles::Tensor* t = Find(r.name, place.tensor, shape, r.keys);
    if (t == nullptr) return std::nullopt;
    GgufMatrix m{.type = t->type,
                 .data = t->data,
                 .k = r.k,
                 .n = r.n,
                 .pairs_of = place.pairs_of,
                 .name = place.tensor,
                 .file = t->file};
    const int64_t first = std::max<int64_t>(place.expert, 0) * place.part_count + place.part_index;
    m.data += first * r.n * m.row_bytes();
    return m;
  }

  WeightView InPlace(const MatrixRequest& r, const GgufMatrix& m, DType dtype) {
    MatrixRequest plain = r;
    const bool halves = dtype == DType::kBF16 && r.scheme.activation == ActivationFormat::kBFloat16;
    plain.scheme.activation = halves ? ActivationFormat::kBFloat16 : ActivationFormat::kNone;
    WeightView view = StoredView(plain, PlainFormat(dtype), m.data, m.file);
    if (view.n != 0 && view.k != 0) {
      const uint8_t* begin = m.data + view.row0 * m.row_bytes();
      used_.push_back({begin, begin + ((view.n - 1) * view.row_step + 1) * m.row_bytes()});
    }
    return view;
  }

  // Panels that begin at the first requested row and column.
  WeightView Panels(const MatrixRequest& r, const GgufMatrix& m, WeightFormat format) {
    WeightView view{.format = format,
                    .data = m.data,
                    .activation = r.scheme.activation,
                    .stored_k = r.cols.size(),
                    .n = r.rows.size(),
                    .k = r.cols.size(),
                    .owner = m.file};
    if (!options_.read_data || view.n == 0 || view.k == 0) return view;
    const Slabs::Piece piece =
        slabs_.Allocate(static_cast<size_t>(PanelMatrixBytes(format, 0, view.n, view.k)));
    view.data = piece.data;
    view.owner = piece.owner;
    const auto row_bytes = static_cast<size_t>(PanelBytes(format, 0, view.k) / kPanelHeight);
    const auto stored = [=](int64_t i) { return r.StoredRow(r.rows.begin + i); };
    const auto convert = [=, check = check_, out = piece.data](int64_t i) {
      if (check) {
        std::vector<float> values(static_cast<size_t>(m.k));
        m.Read(stored(i), check, values.data());
      }
      for (int64_t begin = r.cols.begin, part = 0; begin < r.cols.end;
           begin += kPanelColumns, ++part) {
        PutPanelRow(format, 0, view.k, i, part,
                    PanelRowOfGgml(*m.type, m.Row(stored(i)), begin, r.cols.end), out);
      }
    };
    // The packed copy remains the only one in memory.
    AddJobs(view.n, row_bytes, convert, [=](int64_t first, int64_t end) {
      if (m.pairs_of == 0 && r.picked.empty())
        DropPages({m.Row(stored(first)), m.Row(stored(end - 1)) + m.row_bytes()});
    });
    return view;
  }

  WeightView Pack(const MatrixRequest& r, const GgufMatrix& m) {
    const bool int4 = m.type->id == kGgmlQ4_0;
    const Range blocks = {r.cols.begin / kPackedBlock, CeilDiv(r.cols.end, kPackedBlock)};
    const Range cols = blocks * kPackedBlock;
    WeightView view{.format = int4 ? WeightFormat::kInt4Group : WeightFormat::kMxfp4,
                    .data = m.data,
                    .scales = m.data,
                    .group_size = int4 ? static_cast<int32_t>(kPackedBlock) : 0,
                    .activation = r.scheme.activation,
                    .stored_k = cols.size(),
                    .col0 = r.cols.begin - cols.begin,
                    .n = r.rows.size(),
                    .k = r.cols.size(),
                    .owner = m.file};
    if (!options_.read_data || view.n == 0 || view.k == 0) return view;
    const auto row_codes = static_cast<size_t>(cols.size() / 2);
    const auto row_scales = static_cast<size_t>(blocks.size()) * (int4 ? sizeof(float) : 1);
    const auto rows = static_cast<size_t>(view.n);
    const size_t code_bytes = Slabs::Align(rows * row_codes);
    const Slabs::Piece piece = slabs_.Allocate(code_bytes + rows * row_scales);
    view.data = piece.data;
    view.scales = piece.data + code_bytes;
    view.owner = piece.owner;
    const auto convert = [=, check = check_](int64_t i) {
      const int64_t row = r.StoredRow(r.rows.begin + i);
      if (check) {
        std::vector<float> values(static_cast<size_t>(m.k));
        m.Read(row, check, values.data());
      }
      PackRow(m, row, blocks, piece.data + static_cast<size_t>(i) * row_codes,
              piece.data + code_bytes + static_cast<size_t>(i) * row_scales);
    };
    AddJobs(view.n, row_codes + row_scales, convert, [](int64_t, int64_t) {});
    return view;
  }

  // `read` writes whole rows of the checkpoint's matrix.
  WeightView Expand(const MatrixRequest& r, DType dtype,
                    const std::function<void(Range rows, float* out)>& read) {
    const auto row_bytes = static_cast<size_t>(r.cols.size()) * SizeOf(dtype);
    const bool halves = dtype == DType::kBF16 && r.scheme.activation == ActivationFormat::kBFloat16;
    WeightView view{.format = PlainFormat(dtype),
                    .activation = halves ? ActivationFormat::kBFloat16 : ActivationFormat::kNone,
                    .stored_k = r.cols.size(),
                    .n = r.rows.size(),
                    .k = r.cols.size()};
    // If data is only checked, the view has no memory, but its data pointer must not be null.
    static constexpr uint8_t kNothing = 0;
    view.data = &kNothing;
    if (!options_.read_data || view.n == 0 || view.k == 0) return view;
    const Slabs::Piece piece = slabs_.Allocate(row_bytes * static_cast<size_t>(view.n));
    view.data = piece.data;
    view.owner = piece.owner;
    for (int64_t first = 0; first < view.n; first += kRowsOfJob) {
      const Range part = {first, std::min(view.n, first + kRowsOfJob)};
      jobs_.Add(row_bytes * static_cast<size_t>(part.size()), [=] {
        std::vector<float> values(static_cast<size_t>(part.size() * r.k));
        if (r.picked.empty()) {
          const int64_t first_row = r.row0 + r.rows.begin;
          read({first_row + part.begin, first_row + part.end}, values.data());
        }
        for (int64_t i = part.begin; i < part.end && !r.picked.empty(); ++i) {
          const int64_t row = r.StoredRow(r.rows.begin + i);
          read({row, row + 1}, values.data() + (i - part.begin) * r.k);
        }
        for (int64_t i = 0; i < part.size(); ++i)
          StoreFloats({values.data() + i * r.k + r.cols.begin, static_cast<size_t>(r.cols.size())},
                      dtype, piece.data + static_cast<size_t>(part.begin + i) * row_bytes);
      });
    }
    return view;
  }

  WeightView ReadLatent(const MatrixRequest& r, const GgufPlace& place) {
    const AttentionConfig& a = config_.attention;
    const std::string values = place.tensor.substr(0, place.tensor.size() - 10) + "v_b.weight";
    const auto* k =
        Find(r.name, place.tensor, {a.heads, a.kv_lora_rank, a.qk_nope_head_dim}, r.keys);
    const auto* v = Find(r.name, values, {a.heads, a.v_head_dim, a.kv_lora_rank}, r.keys);
    if (k == nullptr || v == nullptr) return {};
    const GgufLatent latent{.keys = {.type = k->type,
                                     .data = k->data,
                                     .k = a.qk_nope_head_dim,
                                     .n = a.heads * a.kv_lora_rank,
                                     .name = place.tensor,
                                     .file = k->file},
                            .values = {.type = v->type,
                                       .data = v->data,
                                       .k = a.kv_lora_rank,
                                       .n = a.heads * a.v_head_dim,
                                       .name = values,
                                       .file = v->file},
                            .nope = a.qk_nope_head_dim,
                            .v = a.v_head_dim,
                            .rank = a.kv_lora_rank};
    const DType dtype =
        k->type == v->type ? PlainType(*k->type).value_or(config_.dtype) : config_.dtype;
    return Expand(r, dtype, [latent, check = check_](Range rows, float* out) {
      latent.Read(rows, check, out);
    });
  }

  // Adds jobs that call work(row) for each row in [0, rows). A job calls after(first, end) when its
  // rows [first, end) are done.
  template <typename F, typename After>
  void AddJobs(int64_t rows, size_t row_bytes, F work, After after) {
    for (int64_t first = 0; first < rows; first += kRowsOfJob) {
      const int64_t end = std::min(rows, first + kRowsOfJob);
      jobs_.Add(row_bytes * static_cast<size_t>(end - first), [=] {
        for (int64_t i = first; i < end; ++i) work(i);
        after(first, end);
      });
    }
  }

  const GgufFiles& files_;
  const ModelConfig& config_;
  const CheckpointSourceOptions options_;
  const bool check_;
  Slabs slabs_;
  LoadJobs jobs_;
  std::vector<MappedRange> used_;
  std::vector<std::string> missing_;  // names in the order of requests
  std::set<std::string> missing_names_;
};

}  // namespace

std::unique_ptr<WeightSource> MakeGgufSource(const GgufFiles& files, const ModelConfig& config,
                                             const CheckpointSourceOptions& options) {
  return std::make_unique<GgufSource>(files, config, options);
}

}  // namespace switchyard
