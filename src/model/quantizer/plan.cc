#include "model/quantizer/plan.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <utility>

#include "comm/mesh.h"
#include "core/check.h"
#include "core/error.h"
#include "model/families/family.h"
#include "model/quantizer/rules.h"

namespace switchyard {
namespace {

using Requests = std::map<std::string, std::vector<MatrixRequest>, std::less<>>;

std::string_view WithoutWeight(std::string_view name) {
  constexpr std::string_view kWeight = ".weight";
  if (name.ends_with(kWeight)) name.remove_suffix(kWeight.size());
  return name;
}

// The name of the module that a request is for. For stacked experts: ….experts.E.gate_proj.
std::string ModuleOf(const MatrixRequest& r, const TensorNames& names) {
  if (r.experts == 0) return std::string(WithoutWeight(r.name));
  const size_t end = r.name.rfind('.') + 1;
  const bool gate_up = r.name.ends_with("gate_up_proj");
  const std::string& own = !gate_up      ? names.expert_down
                           : r.row0 == 0 ? names.expert_gate
                                         : names.expert_up;
  return fmt::format("{}{}.{}", r.name.substr(0, end), r.expert, own);
}

void CheckFits(const MatrixRequest& r, const std::string& module, const TensorNames& names) {
  if (r.transposed && names.interleaved_experts) {
    throw Invalid(
        "{}: its experts are stacked and interleaved, which compressed-tensors cannot store; serve "
        "this model with --quantization, or use its MXFP4 checkpoint",
        r.name);
  }
  const int64_t n = r.rows.size(), k = r.cols.size();
  const auto refuse = [&](std::string_view what, int64_t unit) {
    throw Invalid("{} [{}, {}]: {} is not a multiple of {}, as {} needs; add --ignore {}{}", module,
                  n, k, what, unit, Name(r.scheme.format), module,
                  r.scheme.format == WeightFormat::kInt4Group ? ", or another --group-size" : "");
  };
  switch (r.scheme.format) {
    case WeightFormat::kInt4Group:
      if (k % r.scheme.group_size != 0) refuse("the number of columns", r.scheme.group_size);
      if (n % 8 != 0) refuse("the number of rows", 8);
      return;
    case WeightFormat::kMxfp4:
      if (k % kMxfp4BlockSize != 0) refuse("the number of columns", kMxfp4BlockSize);
      return;
    case WeightFormat::kNvfp4:
      if (k % kNvfp4BlockSize != 0) refuse("the number of columns", kNvfp4BlockSize);
      return;
    default:
      return;
  }
}

// Forwards requests to a source that reads no data, and records the matrices that rules select.
class RecordingSource : public WeightSource {
 public:
  RecordingSource(std::unique_ptr<WeightSource> from, const TensorNames& names, Requests* requests)
      : from_(std::move(from)), names_(names), requests_(requests) {}

  bool Has(const std::string& name) const override { return from_->Has(name); }
  WeightView Matrix(const MatrixRequest& r) override {
    if (r.scheme.packing == Packing::kWhileLoading) {
      CheckFits(r, ModuleOf(r, names_), names_);
      (*requests_)[r.name].push_back(r);
    }
    return from_->Matrix(r);
  }
  void Vector(const VectorRequest& r, std::span<float> out) override { from_->Vector(r, out); }
  void Finish(const Progress& progress) override { from_->Finish(progress); }

 private:
  const std::unique_ptr<WeightSource> from_;
  const TensorNames names_;
  Requests* const requests_;
};

void Record(const Checkpoint& checkpoint, const ModelConfig& config, Requests* requests) {
  RecordingSource source(MakeCheckpointSource(checkpoint, config, {.read_data = false}),
                         NamesOf(config), requests);
  BuildWeights(config, Mesh(), {}, source);
  source.Finish({});
}

Requests RequestsOf(const Checkpoint& checkpoint, const ModelConfig& config) {
  Requests requests;
  Record(checkpoint, config, &requests);
  const Family* family = FindFamily(config.architecture);
  if (config.mtp_layers > 0 && family->mtp && !config.pooling) {
    ModelConfig mtp = MtpConfigOf(config, /*by_depth=*/true);
    // Some exporters drop MTP layers but keep their number in config.json.
    const auto has = [&](int64_t depth) {
      const std::string prefix = LayerPrefix(NamesOf(mtp), mtp.first_layer + depth);
      const auto first = checkpoint.tensors().lower_bound(prefix);
      return first != checkpoint.tensors().end() && first->first.starts_with(prefix);
    };
    while (mtp.mtp_depths > 1 && !has(mtp.mtp_depths - 1)) {
      --mtp.mtp_depths;
      mtp.layers.pop_back();
    }
    if (has(0)) Record(checkpoint, mtp, &requests);
  }
  return requests;
}

// Whether the pattern matches one of the names.
bool MatchesAny(const ModulePattern& pattern, const std::vector<std::string>& names) {
  const LinearScheme found{.packing = Packing::kWhileLoading};
  const LinearSchemes schemes({.rules = {{found, {pattern}}}});
  return std::ranges::any_of(names, [&](const auto& name) { return schemes.Of(name) == found; });
}

// A pattern that matches nothing is a mistake: the user expects an effect.
void CheckPatterns(const Checkpoint& checkpoint, const ModelConfig& config,
                   const Requests& requests, const TensorNames& names) {
  std::vector<std::string> packed, all;
  for (const auto& [name, of_tensor] : requests) {
    for (const MatrixRequest& r : of_tensor) packed.push_back(ModuleOf(r, names));
  }
  all = packed;
  for (const auto& [name, tensor] : checkpoint.tensors()) all.emplace_back(WithoutWeight(name));
  for (const SchemeRule& rule : config.quantization.rules) {
    const bool plain = rule.scheme.packing == Packing::kPlain;
    for (const ModulePattern& target : rule.targets) {
      if (plain && std::ranges::count(kLatentProjections, target.text) != 0) continue;
      if (MatchesAny(target, plain ? all : packed)) continue;
      throw Invalid(
          "--config: the target \"{}\" selects no linear that can be packed; correct or remove it",
          target.text);
    }
  }
  for (const ModulePattern& pattern : config.quantization.ignored) {
    if (pattern.kind == ModulePattern::Kind::kName &&
        (pattern.text == kPlainMtpProjection ||
         std::ranges::count(kPlainProjections, pattern.text) != 0))
      continue;
    if (!MatchesAny(pattern, all)) {
      throw Invalid("--ignore {}: matches no tensor of {}; correct or remove the pattern",
                    pattern.text, checkpoint.dir().string());
    }
  }
}

std::vector<PlannedPart> PartsOf(const std::string& name, const StoredTensor& t,
                                 const Requests& requests, const TensorNames& names) {
  std::vector<PlannedPart> parts;
  const auto found = requests.find(name);
  if (found == requests.end()) {
    parts.push_back({.source = &t, .out = {{.name = name, .dtype = t.dtype, .shape = t.shape}}});
    return parts;
  }
  std::set<std::string> modules;
  for (const MatrixRequest& r : found->second) {
    std::string module = ModuleOf(r, names);
    if (!modules.insert(module).second)
      throw Invalid(
          "{}: has several matrices in one tensor, which compressed-tensors cannot store; add "
          "--ignore {}, or serve this model with --quantization",
          name, WithoutWeight(name));
    auto out = TensorsOf(module, r.scheme, r.rows.size(), r.cols.size());
    parts.push_back({.source = &t,
                     .packed = true,
                     .module = std::move(module),
                     .request = r,
                     .out = std::move(out)});
  }
  return parts;
}

// Readers of safetensors need tensors at multiples of their elements' size. So tensors with wide
// elements come first. Tensors with equally wide elements keep the order of the parts.
void PlaceTensors(PlannedShard* shard) {
  std::vector<PlannedTensor*> tensors;
  for (PlannedPart& part : shard->parts) {
    for (PlannedTensor& t : part.out) tensors.push_back(&t);
  }
  std::ranges::stable_sort(tensors, std::greater(),
                           [](const PlannedTensor* t) { return SizeOf(t->dtype); });
  for (PlannedTensor* t : tensors) {
    t->offset = shard->bytes;
    shard->bytes += t->bytes();
  }
}

std::vector<PlannedShard> Divide(std::vector<PlannedPart> parts, uint64_t shard_bytes) {
  std::vector<PlannedShard> shards;
  uint64_t bytes = 0;
  for (PlannedPart& part : parts) {
    if (shards.empty() || (bytes > 0 && bytes + part.bytes() > shard_bytes)) {
      shards.emplace_back();
      bytes = 0;
    }
    bytes += part.bytes();
    shards.back().parts.push_back(std::move(part));
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    shards[i].file = shards.size() == 1
                         ? "model.safetensors"
                         : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    PlaceTensors(&shards[i]);
  }
  return shards;
}

}  // namespace

uint64_t PlannedTensor::bytes() const {
  return SizeOf(dtype) * static_cast<uint64_t>(std::accumulate(shape.begin(), shape.end(),
                                                               int64_t{1}, std::multiplies<>()));
}

uint64_t PlannedPart::bytes() const {
  uint64_t sum = 0;
  for (const PlannedTensor& t : out) sum += t.bytes();
  return sum;
}

uint64_t PlannedPart::source_bytes() const {
  if (!packed) return source->num_bytes;
  return SizeOf(source->dtype) * static_cast<uint64_t>(request.rows.size() * request.cols.size());
}

std::vector<PlannedTensor> TensorsOf(const std::string& module, const LinearScheme& scheme,
                                     int64_t n, int64_t k) {
  const std::string weight = module + ".weight", packed = weight + "_packed",
                    scale = weight + "_scale";
  switch (scheme.format) {
    case WeightFormat::kInt4Group: {
      const int64_t groups = k / scheme.group_size;
      std::vector<PlannedTensor> out{{packed, DType::kI32, {n, k / 8}},
                                     {scale, DType::kBF16, {n, groups}},
                                     {weight + "_shape", DType::kI64, {2}}};
      if (scheme.zeros) out.push_back({weight + "_zero_point", DType::kI32, {n / 8, groups}});
      return out;
    }
    case WeightFormat::kInt8Channel:
      return {{weight, DType::kI8, {n, k}}, {scale, DType::kF32, {n, 1}}};
    case WeightFormat::kFp8Channel:
      return {{weight, DType::kF8E4M3, {n, k}}, {scale, DType::kF32, {n, 1}}};
    case WeightFormat::kFp8Block:
      return {{weight, DType::kF8E4M3, {n, k}},
              {scale, DType::kF32, {CeilDiv(n, kFp8BlockSize), CeilDiv(k, kFp8BlockSize)}}};
    case WeightFormat::kMxfp4:
      return {{packed, DType::kU8, {n, k / 2}}, {scale, DType::kU8, {n, k / kMxfp4BlockSize}}};
    case WeightFormat::kNvfp4:
      return {{packed, DType::kU8, {n, k / 2}},
              {scale, DType::kF8E4M3, {n, k / kNvfp4BlockSize}},
              {weight + "_global_scale", DType::kF32, {1}}};
    default:
      CheckFailed(__FILE__, __LINE__, "not a packed format");
  }
}

QuantizePlan PlanQuantization(const Checkpoint& checkpoint, const ModelConfig& config,
                              uint64_t shard_bytes) {
  const Requests requests = RequestsOf(checkpoint, config);
  if (requests.empty()) {
    throw Invalid("{}: the format and the patterns select none of its linears",
                  checkpoint.dir().string());
  }
  const TensorNames names = NamesOf(config);
  CheckPatterns(checkpoint, config, requests, names);
  using Entry = std::pair<const std::string, StoredTensor>;
  std::vector<const Entry*> entries;
  for (const Entry& entry : checkpoint.tensors()) entries.push_back(&entry);
  std::ranges::stable_sort(entries, [](const Entry* a, const Entry* b) {
    return std::pair(a->second.file, a->second.data) < std::pair(b->second.file, b->second.data);
  });
  QuantizePlan plan{.config = config};
  std::vector<PlannedPart> parts;
  for (const Entry* entry : entries) {
    const auto& [name, tensor] = *entry;
    for (PlannedPart& part : PartsOf(name, tensor, requests, names)) {
      plan.source_bytes += part.source_bytes();
      plan.output_bytes += part.bytes();
      parts.push_back(std::move(part));
    }
    const bool linear = tensor.shape.size() == 2 && name.ends_with(".weight") &&
                        !name.ends_with("embed_tokens.weight");
    if (linear && !requests.contains(name)) plan.plain.emplace_back(WithoutWeight(name));
  }
  // The head has this name also if it is tied to the embedding and not stored.
  if (!std::ranges::count(plan.plain, "lm_head")) plan.plain.emplace_back("lm_head");
  plan.shards = Divide(std::move(parts), shard_bytes);
  return plan;
}

}  // namespace switchyard
