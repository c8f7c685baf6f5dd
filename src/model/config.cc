#include "model/config.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "core/bounded_json.h"
#include "core/check.h"
#include "core/error.h"
#include "core/gguf_files.h"
#include "core/regular_file.h"
#include "model/config_keys.h"
#include "model/config_reader.h"
#include "model/families/family.h"
#include "model/gguf/gguf_config.h"

namespace switchyard {
namespace {

constexpr uint64_t kMaxConfigBytes = 16 << 20;
constexpr int64_t kMaxMtpLayers = 1024;

std::string ReadConfigFile(const std::filesystem::path& path) {
  try {
    return ReadRegularFile(path, kMaxConfigBytes);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::kNotFound) throw;
    throw Error(e.kind(), e.what(), "want a directory with a Hugging Face checkpoint");
  }
}

// The wrapper of a multimodal checkpoint; null: the checkpoint is a decoder.
const Wrapper* WrapperOf(const ConfigReader& reader) {
  const auto architectures = reader.Strings("architectures");
  const std::string type = reader.StringOr({"model_type"}, "");
  for (const Wrapper& wrapper : Wrappers())
    if (architectures.empty() ? wrapper.model_type == type
                              : wrapper.architecture == architectures.front())
      return &wrapper;
  return nullptr;
}

// The settings of the decoder: text_config of a multimodal checkpoint, else the whole file.
ConfigReader DecoderSettings(const ConfigReader& file, const Wrapper* wrapper) {
  if (wrapper == nullptr) return file;
  const auto text = file.Object("text_config");
  if (!text)
    throw Invalid("{} is missing; want the decoder of {}", file.Where("text_config"),
                  wrapper->architecture);
  return *text;
}

const Family& FamilyOf(const ConfigReader& reader) {
  const auto architectures = reader.Strings("architectures");
  if (!architectures.empty()) {
    if (const Family* family = FindFamily(architectures.front())) return *family;
    throw Invalid("{}: unknown architecture \"{}\"; known: {}", reader.Where("architectures"),
                  architectures.front(), Joined(KnownArchitectures(), ", "));
  }
  const std::string type = reader.StringOr({"model_type"}, "");
  for (const Family& family : Families()) {
    if (family.model_type == type) return family;
  }
  throw Invalid("{}: no architecture is given and model_type \"{}\" is unknown; known: {}",
                reader.Where("architectures"), type, Joined(KnownArchitectures(), ", "));
}

// Collects the ids that end a sequence, without duplicates, config.json's first.
void ReadSpecialTokens(const ConfigReader& reader, ModelConfig* config) {
  const int64_t last = config->vocab_size - 1;
  for (int64_t id : reader.Ints("eos_token_id", 0, last)) {
    const auto token = static_cast<int32_t>(id);
    if (!std::ranges::count(config->eos_token_ids, token)) config->eos_token_ids.push_back(token);
  }
  const auto bos = reader.Ints("bos_token_id", 0, last);
  if (!bos.empty() && !config->bos_token_id) {
    config->bos_token_id = static_cast<int32_t>(bos.front());
  }
}

constexpr std::string_view kClassifier = "ForSequenceClassification";

// The names of id2label, in the order of ids. Without id2label: LABEL_0 to LABEL_(num_labels - 1);
// num_labels is 2 by default, as in transformers.
std::vector<std::string> ReadLabels(const ConfigReader& reader) {
  constexpr int64_t kMostLabels = 1 << 20;
  const auto named = reader.Object("id2label");
  const int64_t count = named ? static_cast<int64_t>(named->Members().size())
                              : reader.IntOr({"num_labels", "_num_labels"}, 2, 1, kMostLabels);
  if (count == 0) throw Invalid("{}: has no classes", reader.Where("id2label"));
  std::vector<std::string> labels;
  for (int64_t i = 0; i < count; ++i) {
    const std::string id = std::to_string(i);
    if (named && !named->IsString(id))
      throw Invalid("{}: missing or not a string; want the names of {} classes", named->Where(id),
                    count);
    labels.push_back(named ? named->StringOr({id}, "") : "LABEL_" + id);
  }
  return labels;
}

// As in vLLM, a single class and several independent classes have sigmoid scores.
PoolingConfig ReadClassifier(const ConfigReader& reader) {
  using Activation = PoolingConfig::Activation;
  PoolingConfig pooling{.labels = ReadLabels(reader)};
  const std::string problem = reader.StringOr({"problem_type"}, "");
  if (problem == "regression") {
    pooling.activation = Activation::kIdentity;
  } else if (problem == "multi_label_classification" || pooling.labels.size() == 1) {
    pooling.activation = Activation::kSigmoid;
  }
  return pooling;
}

// config.json with its keys replaced by those of `overrides`.
std::string Override(const std::string& config, const std::filesystem::path& file,
                     std::string_view overrides) {
  nlohmann::json json = ParseBoundedJson(WithoutInfinities(config), file.string());
  const nlohmann::json keys = nlohmann::json::parse(overrides, nullptr, false);
  if (!keys.is_object()) {
    throw Invalid("--json-model-override-args: want a JSON object, got {}", overrides);
  }
  if (!json.is_object()) return config;
  json.update(keys);
  return json.dump();
}

// The configuration files of a checkpoint; empty: the file does not exist.
struct ConfigTexts {
  std::string_view config, generation, modelopt;
  std::string where;  // prefix of file names in messages: "" or "DIR/"
};

ModelConfig Parse(const ConfigTexts& texts, const QuantizationFlags& flags) {
  const ConfigReader file(texts.config, texts.where + "config.json");
  const Wrapper* const wrapper = WrapperOf(file);
  const ConfigReader reader = DecoderSettings(file, wrapper);
  const Family& family = FamilyOf(reader);
  ModelConfig config;
  const auto architectures = reader.Strings("architectures");
  config.architecture = architectures.empty() ? family.architecture : architectures.front();
  family.read_config(reader, &config);
  if (wrapper != nullptr) {
    config.tensor_prefix = wrapper->prefix;
    config.tie_embeddings = file.BoolOr("tie_word_embeddings", config.tie_embeddings);
  }
  config.mtp_layers = reader.IntOr({"num_nextn_predict_layers", "mtp_num_hidden_layers"},
                                   config.mtp_layers, 0, kMaxMtpLayers);
  config.causal =
      reader.BoolOr("is_causal", true) && !reader.BoolOr("use_bidirectional_attention", false);
  if (config.architecture.ends_with(kClassifier)) config.pooling = ReadClassifier(reader);
  config.quantization = ReadQuantization(reader.Has("quantization_config") ? reader : file,
                                         family.names(config).interleaved_experts);
  const bool quantizes = !config.quantization.method.empty() || config.quantization.only_cache;
  if (!quantizes && !texts.modelopt.empty()) {
    config.quantization =
        ReadModelOptFile(ConfigReader(texts.modelopt, texts.where + "hf_quant_config.json"));
  }
  ApplyFlags(flags, &config.quantization);
  ReadSpecialTokens(reader, &config);
  if (wrapper != nullptr) ReadSpecialTokens(file, &config);
  config.unknown_keys = RefuseUnreadKeys(reader, config.architecture);
  if (!texts.generation.empty()) {
    ReadSpecialTokens(ConfigReader(texts.generation, texts.where + "generation_config.json"),
                      &config);
  }
  return config;
}

ModelConfig LoadGguf(const std::filesystem::path& file, std::string_view overrides,
                     const QuantizationFlags& flags, const PoolingFlags& pooling) {
  const GgufFiles files(file);
  if (!flags.method.empty())
    throw Invalid(
        "--quantization {}: {} is a GGUF file, whose weights keep their format; leave the flag out",
        flags.method, files.name());
  if (!flags.rules.empty())
    throw Invalid(
        "--quantization-config: {} is a GGUF file, whose weights keep their format; leave the flag "
        "out",
        files.name());
  if (flags.layout != "auto")
    throw Invalid(
        "--cpu-weight-layout {}: {} is a GGUF file, whose weights are always packed; leave the "
        "flag out",
        flags.layout, files.name());
  const GgufConfig texts = ReadGgufConfig(files);
  const std::string config =
      overrides.empty() ? texts.config : Override(texts.config, files.name(), overrides);
  ModelConfig model =
      Parse({config, texts.generation, {}, fmt::format("{}, as ", files.name())}, flags);
  SetGgufQuantization(files, &model.quantization);
  SetPooling(file, pooling, &model);  // a GGUF file has no modules.json
  return model;
}

// An MTP layer has attention, since it has to see earlier tokens, and no recurrent states.
void CheckMtpBlock(const ModelConfig& target) {
  const std::vector<LayerConfig>& block = target.mtp_block;
  const bool experts = std::ranges::any_of(block, &LayerConfig::moe);
  if (std::ranges::any_of(block, &LayerConfig::attends) &&
      std::ranges::none_of(block, &LayerConfig::has_state) && (target.has_moe() || !experts))
    return;
  throw Invalid(
      "the multi-token prediction (MTP) layer of {} cannot draft: want attention, no recurrent "
      "state, and experts only if other layers have some",
      target.architecture);
}

}  // namespace

int64_t ModelConfig::longest_context() const {
  using Type = RopeConfig::Type;
  if (rope.type != Type::kYarn && rope.type != Type::kLinear && rope.type != Type::kDynamic)
    return max_position;
  const int64_t original =
      rope.original_max_position > 0 ? rope.original_max_position : max_position;
  constexpr double kMost = 1e9;  // max_position_embeddings has the same limit
  const double stretched = std::min(kMost, static_cast<double>(original) * rope.factor);
  return std::max(max_position, static_cast<int64_t>(stretched));
}

std::vector<std::string> MtpArchitectures() {
  std::set<std::string> names;
  for (const Family& family : Families())
    if (family.mtp) names.emplace(family.architecture);
  return {names.begin(), names.end()};
}

ModelConfig MtpConfigOf(const ModelConfig& target, bool by_depth) {
  const Family* family = FindFamily(target.architecture);
  if (target.mtp_layers == 0 || family == nullptr || !family->mtp || target.pooling)
    throw Invalid("{} has no multi-token prediction (MTP) layer that can draft: {}",
                  target.architecture,
                  family != nullptr && family->mtp && !target.pooling
                      ? "config.json says that it has none"
                      : fmt::format("want {}", Joined(MtpArchitectures(), " or ")));
  ModelConfig mtp = target;
  mtp.layers = {target.layers.back()};
  mtp.layers[0].shared_index = false;  // it has an indexer of its own
  mtp.first_layer = target.num_layers();
  mtp.is_mtp = true;
  if (family->names(target).mtp.empty()) return mtp;
  mtp.first_layer = 0;  // apart from the layers
  mtp.linear.reset();
  if (!target.mtp_block.empty()) {
    CheckMtpBlock(target);
    mtp.layers = target.mtp_block;
    if (std::ranges::none_of(mtp.layers, &LayerConfig::moe)) mtp.moe.reset();
    // Its attention has no entries, of which an indexer could select some.
    if (mtp.attention.kind == AttentionConfig::Kind::kCompressed) mtp.attention.index_topk = 0;
    if (by_depth && target.mtp_by_depth) {
      CHECK_EQ(target.mtp_block.size(), 1u);
      mtp.mtp_depths = target.mtp_layers;
      mtp.layers.assign(static_cast<size_t>(mtp.mtp_depths), target.mtp_block[0]);
    }
    return mtp;
  }
  // Attention with experts, whatever the last layer has.
  mtp.layers[0].linear = false;
  mtp.layers[0].moe = target.has_moe();
  return mtp;
}

std::vector<int64_t> InputsReadBy(const ModelConfig& draft, const ModelConfig& target) {
  if (draft.eagle) return draft.eagle->target_layers;
  if (draft.is_mtp && draft.mtp_before_norm) return {target.num_layers()};
  return {};
}

ModelConfig LoadModelConfig(const std::filesystem::path& dir, std::string_view overrides,
                            const QuantizationFlags& flags, const PoolingFlags& pooling) {
  if (const auto gguf = FindGguf(dir)) return LoadGguf(*gguf, overrides, flags, pooling);
  std::string config = ReadConfigFile(dir / "config.json");
  if (!overrides.empty()) config = Override(config, dir / "config.json", overrides);
  const auto optional = [&](const char* name) {
    return ReadRegularFileIfExists(dir / name, kMaxConfigBytes).value_or("");
  };
  const std::string generation = optional("generation_config.json");
  const std::string modelopt = optional("hf_quant_config.json");
  ModelConfig model = Parse({config, generation, modelopt, (dir / "").string()}, flags);
  SetPooling(dir, pooling, &model);
  return model;
}

ModelConfig ParseModelConfig(std::string_view config_json, std::string_view generation_config_json,
                             const QuantizationFlags& flags) {
  return Parse({config_json, generation_config_json, {}, ""}, flags);
}

std::vector<std::string> KnownArchitectures() {
  std::set<std::string> names;
  for (const Family& family : Families()) names.emplace(family.architecture);
  for (const Wrapper& wrapper : Wrappers()) names.emplace(wrapper.architecture);
  return {names.begin(), names.end()};
}

}  // namespace switchyard
