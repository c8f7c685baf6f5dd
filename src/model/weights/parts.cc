#include "model/weights/parts.h"

#include <algorithm>

namespace switchyard {
namespace {

// Gate and up share their input rows, which are quantized once. If the checkpoint quantizes inputs
// differently for the two (an input scale on one, or one left plain), both get unquantized float32
// rows.
void ShareInput(WeightView& gate, WeightView& up) {
  // Int8 rows for 4-bit weights depend on the scales' columns and on zero points.
  const bool same_groups =
      gate.group_size == up.group_size && (gate.zeros == nullptr) == (up.zeros == nullptr);
  if (gate.activation != up.activation || gate.format != up.format || !same_groups) {
    gate.activation = up.activation = ActivationFormat::kNone;
  }
  gate.input_scale = up.input_scale = gate.activation == ActivationFormat::kFp8Tensor
                                          ? std::max(gate.input_scale, up.input_scale)
                                          : 1.0f;
}

// bfloat16 rows are a default for plain weights, not an input format of the checkpoint.
bool DefinesNoRows(ActivationFormat activation) {
  return activation == ActivationFormat::kNone || activation == ActivationFormat::kBFloat16;
}

// "lm_head" of "lm_head.weight".
std::string_view ModuleOf(std::string_view name) {
  constexpr std::string_view kSuffix = ".weight";
  if (name.ends_with(kSuffix)) name.remove_suffix(kSuffix.size());
  return name;
}

}  // namespace

ExpertPlacement Parts::PlacementOf(int64_t layer) const {
  if (!context_.placements.empty()) return context_.placements[layer];
  return ExpertPlacement::Trivial(config().moe->router.num_experts);
}

WeightView Parts::Matrix(const MatrixRequest& request) {
  WeightView view = source_.Matrix(request);
  const bool fp8 =
      view.format == WeightFormat::kFp8Block || view.format == WeightFormat::kFp8Channel;
  if (fp8 && config().quantization.fp8_bfloat16_rows &&
      view.activation == ActivationFormat::kNone) {
    view.activation = ActivationFormat::kBFloat16;
  }
  if (config().quantization.int8_group_rows && TakesInt8Groups(view.format) &&
      DefinesNoRows(view.activation)) {
    view.activation = ActivationFormat::kInt8Group;
  }
  bytes_ += StoredBytes(view);
  return view;
}

void Parts::Vector(const VectorRequest& request, std::span<float> out) {
  source_.Vector(request, out);
  bytes_ += static_cast<double>(out.size_bytes());
}

Tensor Parts::Vector(const VectorRequest& request) {
  Tensor out = Tensor::Empty(DType::kF32, {request.range.size()});
  Vector(request, {out.data<float>(), static_cast<size_t>(request.range.size())});
  return out;
}

Tensor Parts::Norm(const std::string& name, int64_t n, Range part, std::string_view keys) {
  const bool centred = config().centred_norms;
  Tensor weight = Vector({.name = name, .n = n, .range = part, .norm = !centred, .keys = keys});
  for (int64_t i = 0; centred && i < weight.num_elements(); ++i) weight.data<float>()[i] += 1.0f;
  return weight;
}

WeightView Parts::Plain(const std::string& name, int64_t n, Range rows, std::string_view keys) {
  return Matrix({.name = name,
                 .n = n,
                 .k = config().hidden,
                 .rows = rows,
                 .cols = {0, config().hidden},
                 .keys = keys});
}

WeightView Parts::ReducedHeadRows(const std::string& name, const ReducedHead& head, Range rows) {
  return Matrix({.name = name,
                 .n = config().vocab_size,
                 .k = config().hidden,
                 .rows = rows,
                 .cols = {0, config().hidden},
                 .total_rows = static_cast<int64_t>(head.tokens.size()),
                 .picked = head.tokens,
                 .of_owner = head.owner != nullptr,
                 .scheme = schemes_.OfVocabulary(ModuleOf(name)),
                 .keys = "vocab_size, hidden_size"});
}

WeightView Parts::Vocabulary(const std::string& name, int64_t n, Range rows) {
  return Matrix({.name = name,
                 .n = n,
                 .k = config().hidden,
                 .rows = rows,
                 .cols = {0, config().hidden},
                 .scheme = schemes_.OfVocabulary(ModuleOf(name)),
                 .keys = n == config().vocab_size ? "vocab_size, hidden_size"
                                                  : "draft_vocab_size, hidden_size"});
}

WeightView Parts::RouterMatrix(const std::string& name, int64_t experts) {
  constexpr const char* kScales[] = {".weight_scale", ".weight_scale_inv", ".weight_packed",
                                     ".qweight"};
  constexpr std::string_view kKeys = "num_experts, hidden_size";
  const bool quantized =
      std::ranges::any_of(kScales, [&](const char* suffix) { return Has(name + suffix); });
  if (!quantized) return Plain(name + ".weight", experts, {0, experts}, kKeys);
  LinearScheme scheme = SchemeOf(name);
  scheme.activation = ActivationFormat::kNone;
  WeightView view = Matrix({.name = name + ".weight",
                            .n = experts,
                            .k = config().hidden,
                            .rows = {0, experts},
                            .cols = {0, config().hidden},
                            .scheme = scheme,
                            .keys = kKeys});
  view.activation = ActivationFormat::kNone;
  return view;
}

LinearWeight Parts::Rows(const std::string& name, int64_t n, int64_t k, Range rows, bool bias,
                         std::string_view keys) {
  LinearWeight linear;
  linear.w = Matrix({.name = name + ".weight",
                     .n = n,
                     .k = k,
                     .rows = rows,
                     .cols = {0, k},
                     .scheme = SchemeOf(name),
                     .keys = keys});
  if (bias) linear.bias = Vector({.name = name + ".bias", .n = n, .range = rows, .keys = keys});
  return linear;
}

LinearWeight Parts::Columns(const std::string& name, int64_t n, int64_t k, Range cols, bool bias,
                            std::string_view keys) {
  LinearWeight linear;
  linear.w = Matrix({.name = name + ".weight",
                     .n = n,
                     .k = k,
                     .rows = {0, n},
                     .cols = cols,
                     .scheme = SchemeOf(name),
                     .keys = keys});
  if (bias && mesh().attn_tp_rank() == 0) {
    linear.bias = Vector({.name = name + ".bias", .n = n, .range = {0, n}, .keys = keys});
  }
  return linear;
}

kernels::ExpertWeights Parts::FeedForward(const std::string& gate, const std::string& up,
                                          const std::string& down, int64_t width,
                                          int64_t intermediate, Range part, std::string_view keys) {
  kernels::ExpertWeights w;
  if (config().activation != kernels::Activation::kRelu2)
    w.gate = Rows(gate, intermediate, width, part, false, keys).w;
  w.up = Rows(up, intermediate, width, part, false, keys).w;
  w.down = Columns(down, width, intermediate, part, false, keys).w;
  if (config().activation == kernels::Activation::kRelu2) w.gate = w.up;
  ShareInput(w.gate, w.up);
  return w;
}

}  // namespace switchyard
