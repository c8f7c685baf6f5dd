#include "model/pooling.h"

#include <nlohmann/json.hpp>

#include "core/bounded_json.h"
#include "core/error.h"
#include "core/regular_file.h"
#include "model/config.h"
#include "model/config_reader.h"

namespace switchyard {
namespace {

constexpr uint64_t kMaxBytes = 1 << 20;

// The last part of a module's type: "Pooling" of "sentence_transformers.models.Pooling". Newer
// versions have other paths before it.
std::string LastPart(const std::string& type) { return type.substr(type.rfind('.') + 1); }

Pooling ParseType(const std::string& name, const std::string& where) {
  if (name == "LAST" || name == "lasttoken") return Pooling::kLast;
  if (name == "MEAN" || name == "mean") return Pooling::kMean;
  throw Invalid("{}: pooling \"{}\" is not supported; want LAST or MEAN", where, name);
}

// The configuration has one boolean for each kind of pooling, or "pooling_mode".
Pooling ReadPoolingModule(const std::filesystem::path& file) {
  const ConfigReader reader(ReadRegularFile(file, kMaxBytes), file.string());
  if (reader.IsString("pooling_mode"))
    return ParseType(reader.StringOr({"pooling_mode"}, ""), reader.Where("pooling_mode"));
  constexpr std::string_view kPrefix = "pooling_mode_";
  std::vector<std::string> chosen;
  for (const std::string& key : reader.Members())
    if (key.starts_with(kPrefix) && reader.BoolOr(key, false)) chosen.push_back(key);
  if (chosen.size() != 1)
    throw Invalid("{}: {} kinds of pooling are chosen, want one", file.string(), chosen.size());
  const std::string kind = chosen[0].substr(kPrefix.size());
  return ParseType(kind == "mean_tokens" ? "mean" : kind, reader.Where(chosen[0]));
}

void ApplyPoolerConfig(const std::string& json, PoolingConfig* pooling) {
  const ConfigReader reader(json, "--pooler-config");
  for (const std::string& key : reader.Members()) {
    if (key != "pooling_type" && key != "seq_pooling_type" && key != "normalize" &&
        key != "use_activation")
      throw Invalid(
          "{} is not supported; want pooling_type (or seq_pooling_type) and normalize (or "
          "use_activation)",
          reader.Where(key));
  }
  for (const char* key : {"pooling_type", "seq_pooling_type"})
    if (reader.Has(key)) pooling->type = ParseType(reader.StringOr({key}, ""), reader.Where(key));
  for (const char* key : {"normalize", "use_activation"}) {
    pooling->normalize = reader.BoolOr(key, pooling->normalize);
    if (reader.Has(key) && !pooling->normalize)
      pooling->activation = PoolingConfig::Activation::kIdentity;
  }
}

}  // namespace

std::optional<PoolingConfig> ReadPoolingModules(const std::filesystem::path& dir) {
  const std::filesystem::path file = dir / "modules.json";
  const auto text = ReadRegularFileIfExists(file, kMaxBytes);
  if (!text) return std::nullopt;
  const nlohmann::json modules = ParseBoundedJson(*text, file.string());
  if (!modules.is_array()) throw Invalid("{}: not a list of modules", file.string());
  std::optional<PoolingConfig> pooling;
  bool normalizes = false;
  for (const nlohmann::json& module : modules) {
    const ConfigReader reader(module.dump(), file.string());
    const std::string kind = LastPart(reader.StringOr({"type"}, ""));
    const std::string path = reader.StringOr({"path"}, "");
    if (path.find("..") != std::string::npos || path.starts_with('/'))
      throw Invalid("{}: path \"{}\" is not in the checkpoint", file.string(), path);
    if (kind == "Pooling") {
      pooling.emplace(PoolingConfig{.type = ReadPoolingModule(dir / path / "config.json")});
    } else if (kind == "Normalize") {
      normalizes = true;
    } else if (kind != "Transformer") {
      throw Invalid("{}: module {} is not supported; want Transformer, Pooling and Normalize",
                    file.string(), kind);
    }
  }
  if (pooling) pooling->normalize = normalizes;
  return pooling;
}

void SetPooling(const std::filesystem::path& dir, const PoolingFlags& flags, ModelConfig* model) {
  std::optional<PoolingConfig>& pooling = model->pooling;
  if (!pooling) {
    pooling = ReadPoolingModules(dir);
    const bool headless = model->architecture.ends_with("Model");
    if (!pooling && (flags.is_embedding || headless)) pooling.emplace();
  }
  if (!pooling) {
    if (!flags.pooler_config.empty())
      throw Invalid("--pooler-config: this model generates text; want --is-embedding too");
    return;
  }
  if (!flags.pooler_config.empty()) ApplyPoolerConfig(flags.pooler_config, &*pooling);
  if (pooling->classifies() && pooling->type != Pooling::kLast)
    throw Invalid("--pooler-config: a classifier scores the last token; want pooling_type LAST");
  if (!model->causal)
    throw Invalid("{}: attention in both directions is not supported",
                  (dir / "config.json").string());
}

}  // namespace switchyard
