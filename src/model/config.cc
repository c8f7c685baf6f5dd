#include "model/config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "core/error.h"
#include "model/config_reader.h"
#include "model/families/family.h"

namespace switchyard {
namespace {

constexpr uintmax_t kMaxConfigBytes = 16 << 20;

std::string ReadSmallFile(const std::filesystem::path& path) {
  std::error_code error;
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (error) {
    throw NotFound("{}: {}; want a directory with a Hugging Face checkpoint", path.string(),
                   error.message());
  }
  if (size > kMaxConfigBytes) throw Invalid("{} has {} bytes; too large", path.string(), size);
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) throw Invalid("{}: cannot read", path.string());
  return text.str();
}

const Family& FamilyOf(const ConfigReader& reader) {
  const auto architectures = reader.Strings("architectures");
  if (!architectures.empty()) {
    if (const Family* family = FindFamily(architectures.front())) return *family;
    throw Invalid("{}: unknown architecture \"{}\"; known: {}", reader.Where("architectures"),
                  architectures.front(), fmt::join(KnownArchitectures(), ", "));
  }
  const std::string type = reader.StringOr({"model_type"}, "");
  for (const Family& family : Families()) {
    if (family.model_type == type) return family;
  }
  throw Invalid("{}: no architecture is named and model_type \"{}\" is unknown; known: {}",
                reader.Where("architectures"), type, fmt::join(KnownArchitectures(), ", "));
}

ModelConfig::Quantization ReadQuantization(const ConfigReader& reader, bool mxfp4_experts) {
  const auto quantization = reader.Object("quantization_config");
  if (!quantization) return ModelConfig::Quantization::kNone;
  const std::string method = quantization->StringOr({"quant_method"}, "");
  if (method == "fp8") {
    const auto block = quantization->Ints("weight_block_size", 1, 1 << 20);
    if (block != std::vector<int64_t>{128, 128}) {
      throw Invalid("{} is [{}]; only FP8 with [128, 128] blocks is supported",
                    quantization->Where("weight_block_size"), fmt::join(block, ", "));
    }
    return ModelConfig::Quantization::kFp8Block;
  }
  if (method == "mxfp4" && mxfp4_experts) return ModelConfig::Quantization::kMxfp4;
  throw Invalid(
      "{} is \"{}\"; supported are fp8 with weight_block_size [128, 128] and, for gpt-oss, mxfp4; "
      "use an unquantized checkpoint of this model",
      quantization->Where("quant_method"), method);
}

// Every id that ends a sequence, each once, config.json's first.
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

// config.json with the keys of `overrides` in place of its own. A config.json that is no JSON is
// left to its reader.
std::string Override(const std::string& config, std::string_view overrides) {
  nlohmann::json json = nlohmann::json::parse(config, nullptr, false);
  const nlohmann::json keys = nlohmann::json::parse(overrides, nullptr, false);
  if (!keys.is_object()) {
    throw Invalid("--json-model-override-args: want a JSON object, got {}", overrides);
  }
  if (!json.is_object()) return config;
  json.update(keys);
  return json.dump();
}

// `where` prefixes the file names in messages: "" or "DIR/".
ModelConfig Parse(std::string_view config_json, std::string_view generation_config_json,
                  const std::string& where) {
  const ConfigReader reader(config_json, where + "config.json");
  const Family& family = FamilyOf(reader);
  ModelConfig config;
  config.architecture = family.architecture;
  family.read_config(reader, &config);
  config.quantization = ReadQuantization(reader, family.names(config).interleaved_experts);
  ReadSpecialTokens(reader, &config);
  if (!generation_config_json.empty()) {
    ReadSpecialTokens(ConfigReader(generation_config_json, where + "generation_config.json"),
                      &config);
  }
  return config;
}

}  // namespace

ModelConfig LoadModelConfig(const std::filesystem::path& dir, std::string_view overrides) {
  std::string config = ReadSmallFile(dir / "config.json");
  if (!overrides.empty()) config = Override(config, overrides);
  const auto generation_path = dir / "generation_config.json";
  const std::string generation =
      std::filesystem::exists(generation_path) ? ReadSmallFile(generation_path) : "";
  return Parse(config, generation, (dir / "").string());
}

ModelConfig ParseModelConfig(std::string_view config_json,
                             std::string_view generation_config_json) {
  return Parse(config_json, generation_config_json, "");
}

std::vector<std::string> KnownArchitectures() {
  std::set<std::string> names;
  for (const Family& family : Families()) names.emplace(family.architecture);
  return {names.begin(), names.end()};
}

}  // namespace switchyard
