// For tests: checkpoints with an MTP layer, under the names of DeepSeek-V3.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "model/weights/testing.h"

namespace switchyard::testing {

struct MtpLayer {
  int64_t from = 0;  // the layer whose tensors the MTP layer copies
  // Whether the layer stores the embedding and the head too, as DeepSeek's do and GLM's do not.
  bool own_vocabulary = false;
  nlohmann::json settings = nlohmann::json::object();  // changed keys of config.json
};

// The tensors of the checkpoint in `from`, with those of the MTP layer. The norms and the
// projection of its hidden input are random.
inline RawTensors WithMtpLayer(const std::filesystem::path& from, const MtpLayer& layer) {
  const auto config = nlohmann::json::parse(ReadBytes(from / "config.json"));
  RawTensors tensors = ReadSafetensors(from);
  const auto prefix_of = [](int64_t index) {
    return "model.layers." + std::to_string(index) + ".";
  };
  const std::string source = prefix_of(layer.from), prefix = prefix_of(config["num_hidden_layers"]);
  RawTensors own;
  for (const auto& [name, tensor] : tensors)
    if (name.starts_with(source)) own[prefix + name.substr(source.size())] = tensor;
  std::mt19937 random(3);
  const auto add = [&](const std::string& name, std::vector<int64_t> shape, float mean,
                       float deviation) {
    std::normal_distribution<float> normal(mean, deviation);
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    std::vector<BF16> values(count);
    for (BF16& value : values) value = ToBF16(normal(random));
    own[prefix + name + ".weight"] = {
        "BF16", std::move(shape),
        std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(BF16))};
  };
  const int64_t hidden = config["hidden_size"];
  for (const char* norm : {"enorm", "hnorm", "shared_head.norm"}) add(norm, {hidden}, 1, 0.2f);
  add("eh_proj", {hidden, 2 * hidden}, 0, 0.1f);
  if (layer.own_vocabulary) {
    own[prefix + "embed_tokens.weight"] = tensors.at("model.embed_tokens.weight");
    own[prefix + "shared_head.head.weight"] = tensors.at("lm_head.weight");
  }
  tensors.merge(own);
  return tensors;
}

inline nlohmann::json SettingsOf(const std::filesystem::path& from, const MtpLayer& layer) {
  auto config = nlohmann::json::parse(ReadBytes(from / "config.json"));
  config["num_nextn_predict_layers"] = 1;
  config.update(layer.settings);
  return config;
}

// Writes a copy of the checkpoint in `from` with an MTP layer.
inline void WriteMtpLayer(const std::filesystem::path& from, const MtpLayer& layer,
                          const std::filesystem::path& to) {
  WriteBytes(to / "config.json", SettingsOf(from, layer).dump());
  WriteSafetensors(to / "model.safetensors", WithMtpLayer(from, layer));
}

}  // namespace switchyard::testing
