#include <cmath>
#include <optional>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "model/families/common.h"

namespace switchyard {
namespace {

constexpr double kMaxFactor = 1e6;

void ReadYarn(const ConfigReader& scaling, int64_t max_position, RopeConfig* rope) {
  rope->original_max_position =
      scaling.IntOr({"original_max_position_embeddings"}, max_position, 1, kMaxPosition);
  const double ratio =
      static_cast<double>(max_position) / static_cast<double>(rope->original_max_position);
  rope->factor = scaling.DoubleOr({"factor"}, ratio, 1e-6, kMaxFactor);
  rope->beta_fast = scaling.DoubleOr({"beta_fast"}, 32.0, 0.0, kMaxFactor);
  rope->beta_slow = scaling.DoubleOr({"beta_slow"}, 1.0, 0.0, kMaxFactor);
  if (rope->beta_fast == 0.0) rope->beta_fast = 32.0;  // transformers treats 0 as absent
  if (rope->beta_slow == 0.0) rope->beta_slow = 1.0;
  rope->mscale = scaling.DoubleOr({"mscale"}, 0.0, 0.0, kMaxFactor);
  rope->mscale_all_dim = scaling.DoubleOr({"mscale_all_dim"}, 0.0, 0.0, kMaxFactor);
  if (scaling.Has("attention_factor")) {
    rope->attention_factor = scaling.Double({"attention_factor"}, 0.0, kMaxFactor);
  }
  rope->truncate = scaling.BoolOr("truncate", true);
}

void ReadLlama3(const ConfigReader& scaling, RopeConfig* rope) {
  rope->factor = scaling.Double({"factor"}, 1e-6, kMaxFactor);
  rope->low_freq_factor = scaling.Double({"low_freq_factor"}, 1e-6, kMaxFactor);
  rope->high_freq_factor = scaling.Double({"high_freq_factor"}, 1e-6, kMaxFactor);
  rope->original_max_position = scaling.Int({"original_max_position_embeddings"}, 1, kMaxPosition);
  if (rope->high_freq_factor < rope->low_freq_factor) {
    throw Invalid("{} is {}; want at least low_freq_factor {}", scaling.Where("high_freq_factor"),
                  rope->high_freq_factor, rope->low_freq_factor);
  }
}

// Ding et al., "LongRoPE" (https://arxiv.org/abs/2402.13753), with the keys of Phi-3's checkpoints.
void ReadLongRope(const ConfigReader& reader, const ConfigReader& scaling, int64_t max_position,
                  RopeConfig* rope) {
  const ConfigReader& with_original =
      scaling.Has("original_max_position_embeddings") ? scaling : reader;
  rope->original_max_position =
      with_original.IntOr({"original_max_position_embeddings"}, max_position, 1, kMaxPosition);
  const double ratio =
      static_cast<double>(max_position) / static_cast<double>(rope->original_max_position);
  rope->factor = scaling.DoubleOr({"factor"}, ratio, 1e-6, kMaxFactor);
  if (scaling.Has("attention_factor")) {
    rope->attention_factor = scaling.Double({"attention_factor"}, 0.0, kMaxFactor);
  }
  if (scaling.Has("short_mscale") || scaling.Has("long_mscale")) {
    rope->attention_factor = scaling.Double({"short_mscale"}, 0.0, kMaxFactor);
    rope->long_attention_factor = scaling.Double({"long_mscale"}, 0.0, kMaxFactor);
  }
  const auto half = static_cast<size_t>(rope->rotary_dim / 2);
  for (auto [key, factors] : {std::pair{"short_factor", &rope->short_factor},
                              std::pair{"long_factor", &rope->long_factor}}) {
    *factors = scaling.Floats(key, 1e-6, kMaxFactor);
    if (factors->size() != half) {
      throw Invalid("{} has {} numbers; want one for each of {} rotated pairs", scaling.Where(key),
                    factors->size(), half);
    }
  }
}

// `parameters`: the object rope_parameters, or that of one layer type, or null. `scaling`: the
// object rope_scaling, if there are no parameters, or null. Keys that these objects may lack are
// read from `reader`.
RopeConfig ReadOne(const ConfigReader& reader, const ConfigReader* parameters,
                   const ConfigReader* scaling, const RopeDefaults& defaults, int64_t head_dim,
                   int64_t max_position) {
  RopeConfig rope;
  const ConfigReader& with_theta =
      parameters && parameters->Has(defaults.theta_key) ? *parameters : reader;
  rope.theta = with_theta.DoubleOr({defaults.theta_key}, defaults.theta, 1.0, 1e15);

  const std::string dtype = reader.StringOr({"rope_frequency_dtype"}, "float32");
  const std::optional<DType> frequency_dtype = ParseDType(dtype);
  if (frequency_dtype != DType::kF32 && frequency_dtype != DType::kBF16) {
    throw Invalid("{} is \"{}\"; want float32 or bfloat16", reader.Where("rope_frequency_dtype"),
                  dtype);
  }
  rope.frequency_dtype = *frequency_dtype;

  const ConfigReader& with_part =
      parameters && parameters->Has("partial_rotary_factor") ? *parameters : reader;
  const double part = with_part.DoubleOr({"partial_rotary_factor"}, defaults.part, 0.0, 1.0);
  const auto rotated = static_cast<int64_t>(static_cast<double>(head_dim) * part);
  rope.rotary_dim = rotated + rotated % 2;
  const auto refuse_odd = [&] {
    throw Invalid("{}: {} of a head's {} elements would be rotated; want an even number",
                  with_part.Where("partial_rotary_factor"), rotated, head_dim);
  };
  if (rotated < 1 || rope.rotary_dim > head_dim) refuse_odd();
  // transformers rotates one element more than an odd number, which is the divisor of exponents.
  if (rotated % 2 != 0)
    rope.theta =
        std::pow(rope.theta, static_cast<double>(rotated + 1) / static_cast<double>(rotated));

  if (parameters) scaling = parameters;
  if (!scaling) return rope;
  const std::string type = scaling->StringOr({"rope_type", "type"}, "default");
  if (type == "default") {
    rope.type = RopeConfig::Type::kDefault;
  } else if (type == "linear") {
    rope.type = RopeConfig::Type::kLinear;
    rope.factor = scaling->Double({"factor"}, 1e-6, kMaxFactor);
  } else if (type == "llama3") {
    rope.type = RopeConfig::Type::kLlama3;
    ReadLlama3(*scaling, &rope);
  } else if (type == "yarn") {
    rope.type = RopeConfig::Type::kYarn;
    ReadYarn(*scaling, max_position, &rope);
  } else if (type == "dynamic" && scaling->DoubleOr({"alpha"}, 0.0, 0.0, 1e9) > 0.0) {
    // Hunyuan's fixed NTK scaling, which only increases theta.
    const auto dim = static_cast<double>(rope.rotary_dim);
    if (dim < 4)
      throw Invalid("{} is dynamic; want at least 4 rotated elements per head, not {}",
                    scaling->Where("rope_type"), rope.rotary_dim);
    rope.theta *= std::pow(scaling->Double({"alpha"}, 0.0, 1e9), dim / (dim - 2.0));
  } else if (type == "dynamic") {
    rope.type = RopeConfig::Type::kDynamic;
    rope.factor = scaling->Double({"factor"}, 1.0, kMaxFactor);
    rope.original_max_position = max_position;
    if (rope.rotary_dim < 4) {
      throw Invalid("{} is dynamic; want at least 4 rotated elements per head, not {}",
                    scaling->Where("rope_type"), rope.rotary_dim);
    }
  } else if (type == "longrope" || type == "su") {
    rope.type = RopeConfig::Type::kLongRope;
    ReadLongRope(reader, *scaling, max_position, &rope);
  } else {
    throw Invalid("{} is \"{}\"; want default, linear, dynamic, llama3, yarn or longrope",
                  scaling->Where("rope_type"), type);
  }
  using Type = RopeConfig::Type;
  const bool by_frequency =
      rope.type == Type::kDefault || rope.type == Type::kLinear || rope.type == Type::kLlama3;
  if (rotated % 2 != 0 && !by_frequency) refuse_odd();
  return rope;
}

constexpr std::string_view kFull = "full_attention", kSliding = "sliding_attention";

// The objects of rope_parameters of layers without entries, and of those with entries.
constexpr std::string_view kMain = "main", kCompress = "compress";

// Object `label` of rope_parameters, which must have its own theta and rotated part: transformers
// takes no absent key from elsewhere. `theta`: the key outside the object, which must agree.
RopeConfig ReadNamedRope(const ConfigReader& reader, const ConfigReader& parameters,
                         std::string_view label, std::string_view theta, int64_t head_dim,
                         int64_t max_position) {
  const auto own = parameters.Object(label);
  if (!own)
    throw Invalid("{} is missing; want both objects, {} and {}", parameters.Where(label), kMain,
                  kCompress);
  const RopeDefaults given{.theta = own->Double({"rope_theta"}, 1.0, 1e15),
                           .part = own->Double({"partial_rotary_factor"}, 0.0, 1.0)};
  if (const double outer = reader.DoubleOr({theta}, given.theta, 1.0, 1e15); outer != given.theta)
    throw Invalid("{} is {}, but {} is {}; want equal values, or only the latter",
                  reader.Where(theta), outer, own->Where("rope_theta"), given.theta);
  return ReadOne(reader, &*own, nullptr, given, head_dim, max_position);
}

const ConfigReader* PointerTo(const std::optional<ConfigReader>& object) {
  return object ? &*object : nullptr;
}

}  // namespace

void ReadRope(const ConfigReader& reader, double default_theta, int64_t head_dim,
              ModelConfig* config, double default_part) {
  const auto parameters = reader.Object("rope_parameters");
  const auto scaling = parameters ? std::nullopt : reader.Object("rope_scaling");
  for (const auto* object : {&parameters, &scaling})
    if (*object && ((*object)->Has(kFull) || (*object)->Has(kSliding)))
      throw Invalid("{} differs by layer type, which is not supported",
                    reader.Where("rope_parameters"));
  config->rope =
      ReadOne(reader, PointerTo(parameters), PointerTo(scaling),
              {.theta = default_theta, .part = default_part}, head_dim, config->max_position);
}

void ReadWholeRope(const ConfigReader& reader, double default_theta, int64_t head_dim,
                   ModelConfig* config) {
  ReadRope(reader, default_theta, head_dim, config);
  RopeConfig& rope = config->rope;
  if (rope.type != RopeConfig::Type::kDefault && rope.rotary_dim != head_dim)
    throw Invalid("{}: {} of {} elements would be rotated; want 1 with a scaled rotary embedding",
                  reader.Where("partial_rotary_factor"), rope.rotary_dim, head_dim);
  rope.rotary_dim = head_dim;
}

void ReadRopeByLayerType(const ConfigReader& reader, const RopeDefaults& full,
                         const RopeDefaults& window, int64_t head_dim, ModelConfig* config) {
  const auto read = [&](const ConfigReader* parameters, const ConfigReader* scaling,
                        const RopeDefaults& defaults) {
    return ReadOne(reader, parameters, scaling, defaults, head_dim, config->max_position);
  };
  const auto parameters = reader.Object("rope_parameters");
  if (!parameters) {
    const auto scaling = reader.Object("rope_scaling");
    config->rope = read(nullptr, PointerTo(scaling), full);
    RopeDefaults of_window = window;
    of_window.theta_key = "swa_rope_theta";
    config->window_rope = read(nullptr, nullptr, of_window);
    return;
  }
  const auto of_type = [&](std::string_view type, const RopeDefaults& defaults) {
    const auto own = parameters->Object(type);
    RopeDefaults of_object = defaults;  // transformers' scaled embeddings rotate whole heads
    if (own && own->StringOr({"rope_type", "type"}, "default") != "default") of_object.part = 1.0;
    return read(PointerTo(own), nullptr, of_object);
  };
  if (!parameters->Has(kFull) && !parameters->Has(kSliding))
    throw Invalid("{}: want an object for each layer type, {} and {}",
                  reader.Where("rope_parameters"), kFull, kSliding);
  config->rope = of_type(kFull, full);
  config->window_rope = of_type(kSliding, window);
}

void ReadRopeWithEntries(const ConfigReader& reader, const RopeDefaults& entries,
                         const RopeDefaults& window, int64_t head_dim, ModelConfig* config) {
  const auto read = [&](const ConfigReader* parameters, const ConfigReader* scaling,
                        const RopeDefaults& defaults) {
    return ReadOne(reader, parameters, scaling, defaults, head_dim, config->max_position);
  };
  auto parameters = reader.Object("rope_parameters");
  if (!parameters) parameters = reader.Object("rope_scaling");
  if (parameters && (parameters->Has(kMain) || parameters->Has(kCompress))) {
    config->rope = ReadNamedRope(reader, *parameters, kCompress, "compress_rope_theta", head_dim,
                                 config->max_position);
    config->window_rope =
        ReadNamedRope(reader, *parameters, kMain, "rope_theta", head_dim, config->max_position);
    reader.Ignore(
        {"partial_rotary_factor", "compress_rope_theta"});  // the two objects have their own
    return;
  }
  RopeDefaults of_entries = entries;
  of_entries.theta_key = "compress_rope_theta";
  config->rope = read(nullptr, PointerTo(parameters), of_entries);
  if (config->rope.type == RopeConfig::Type::kYarn && !config->rope.attention_factor)
    config->rope.attention_factor = 1.0;
  config->window_rope = read(nullptr, nullptr, window);
}

}  // namespace switchyard
