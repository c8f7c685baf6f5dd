#include "server/ranks/new_weights.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/format.h"
#include "core/gguf_files.h"
#include "engine/speculative/draft_model.h"
#include "model/config_reader.h"
#include "model/gguf/gguf_config.h"
#include "model/hub_cache.h"
#include "model/weights.h"
#include "model/weights/safetensors.h"

namespace switchyard {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxBytes = uint64_t{16} << 20;  // of a configuration file

// Keys that programs write without a meaning for the model.
constexpr std::string_view kNotes[] = {"_name_or_path", "transformers_version", "use_cache",
                                       "_commit_hash", "_attn_implementation_autoset",
                                       // Without effect, and infinity has several spellings in it.
                                       "time_step_limit"};

json Parse(const std::string& text) {
  json parsed = json::parse(WithoutInfinities(text), nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return json::object();
  for (const std::string_view key : kNotes) parsed.erase(std::string(key));
  // The name of the key depends on the version of transformers.
  if (parsed.contains("torch_dtype") && !parsed.contains("dtype"))
    parsed["dtype"] = parsed["torch_dtype"];
  parsed.erase("torch_dtype");
  return parsed;
}

std::string Shown(const json& object, const std::string& key) {
  constexpr size_t kMost = 60;
  if (!object.contains(key)) return "absent";
  const std::string text =
      object[key].dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
  return text.size() <= kMost ? text : text.substr(0, kMost) + "…";
}

std::string FirstDifference(const json& now, const json& next) {
  const auto differs = [&](const std::string& key) {
    return !now.contains(key) || !next.contains(key) || now[key] != next[key];
  };
  for (const json& object : {now, next}) {
    for (const auto& [key, value] : object.items())
      if (differs(key))
        return fmt::format("{} is {}, but {} in the present weights", key, Shown(next, key),
                           Shown(now, key));
  }
  return {};
}

std::string TextOf(const std::filesystem::path& file) {
  return ReadRegularFileIfExists(file, kMaxBytes).value_or("");
}

}  // namespace

CheckpointConfig CheckpointConfig::Read(const std::filesystem::path& path) {
  CheckpointConfig config;
  if (const auto gguf = FindGguf(path)) {
    config.model_ = ReadGgufConfig(GgufFiles(*gguf)).config;
    return config;
  }
  config.model_ = TextOf(path / "config.json");
  config.modules_ = TextOf(path / "modules.json");
  config.quantization_ = TextOf(path / "hf_quant_config.json");
  return config;
}

std::string CheckpointConfig::DescribeDifference(const CheckpointConfig& next) const {
  const std::string difference = FirstDifference(Parse(model_), Parse(next.model_));
  if (!difference.empty()) return difference;
  if (modules_ != next.modules_) return "modules.json differs";
  if (quantization_ != next.quantization_) return "hf_quant_config.json differs";
  return {};
}

NewWeights CheckNewWeights(const EngineConfig& present, const CheckpointConfig& config,
                           const WeightUpdate& update, const WeightsState& now) {
  const std::string format = update.load_format.empty() ? "auto" : update.load_format;
  if (format != "auto" && format != "safetensors")
    throw ParameterError("load_format",
                         fmt::format("{} is not supported for an update of the weights: want auto "
                                     "or safetensors",
                                     format));
  NewWeights weights{.config = present};
  if (update.shared_memory.empty()) {
    weights.config.model_path = ResolveCheckpoint(update.model_path);
  } else {
    weights.overlay =
        OverlayCheckpoint::Make(now.model_path, now.load_format != "dummy", update.shared_memory);
    weights.config.model_path = weights.overlay->dir();
  }
  weights.config.load_format = format;
  const std::filesystem::path& path = weights.config.model_path;
  const ModelConfig model =
      ReadModelConfig(weights.config);  // first, so that its errors are reported
  const std::string difference = config.DescribeDifference(CheckpointConfig::Read(path));
  if (!difference.empty())
    throw Invalid("{}: the configuration of the new weights differs from the present one: {}",
                  path.string(), difference);
  weights.files = WeightFiles(path);
  CheckCheckpoint(path, model);
  CheckDraftCheckpoint(weights.config, model);
  return weights;
}

std::string LocationOf(const std::vector<int32_t>& slots, int64_t layers) {
  json rows = json::array();
  const int64_t width = layers > 0 ? std::ssize(slots) / layers : 0;
  for (int64_t layer = 0; layer < layers; ++layer) {
    const auto begin = slots.begin() + layer * width;
    const std::vector<int32_t> row(begin, begin + width);
    const bool none = std::ranges::all_of(row, [](int32_t id) { return id < 0; });
    rows.push_back(none ? json(nullptr) : json(row));
  }
  return json{{"physical_to_logical_map", std::move(rows)}}.dump();
}

}  // namespace switchyard
