// For tests: checkpoints with an MTP layer. Its tensors have the names and shapes of published
// checkpoints, which SGLang, vLLM and FastDeploy read (mimo_v2_nextn.py, longcat_flash_nextn.py,
// exaone_moe_mtp.py, ernie4_5_mtp.py, bailing_moe_nextn.py, nemotron_h_mtp.py, deepseek_v4_mtp.py).
#pragma once

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/check.h"
#include "model/config.h"
#include "model/families/family.h"
#include "model/weights/testing.h"

namespace switchyard::testing {

inline const std::string kMtpPrefix = "model.mtp.layers.0.";

// Names of tensors without ".weight". Empty: there is none.
struct MtpNames {
  std::vector<std::string> layers = {};  // prefixes of the layers' tensors
  std::string embedding_norm = {}, hidden_norm = {}, projection = {}, final_norm = {};
  std::string embedding_projection = {};  // with residual streams
  std::string embedding = {}, head = {};  // of the MTP layer's own
};

inline std::string MimoMtpPrefix(int64_t depth) {
  return "model.mtp.layers." + std::to_string(depth) + ".";
}

// `depth`: the number of the MTP layer of MiMo-V2-Flash, which has several.
inline MtpNames MtpNamesOf(const ModelConfig& target, int64_t depth = 0) {
  const std::string_view family = target.architecture;
  // Names in a layer: two norms, the projection, and the final norm.
  const auto in_layer = [](const std::string& prefix, const std::string& norm_end,
                           const std::string& final_norm) {
    return MtpNames{.layers = {prefix},
                    .embedding_norm = prefix + "enorm" + norm_end,
                    .hidden_norm = prefix + "hnorm" + norm_end,
                    .projection = prefix + "eh_proj",
                    .final_norm = final_norm};
  };
  if (family.starts_with("MiMo")) {
    const std::string prefix = MimoMtpPrefix(depth);
    return in_layer(prefix, "", prefix + "final_layernorm");
  }
  if (family.starts_with("Longcat")) {
    MtpNames names = in_layer(kMtpPrefix, ".m", "model.mtp.norm");
    names.embedding = "model.mtp.embed_tokens";
    return names;
  }
  if (family.starts_with("Bailing")) {
    const std::string prefix = "model.layers." + std::to_string(target.num_layers()) + ".";
    return in_layer(prefix, "", prefix + "final_layernorm");
  }
  if (family.starts_with("NemotronH")) {
    MtpNames names = in_layer("mtp.layers.0.", "", "mtp.layers.1.final_layernorm");
    names.layers.emplace_back("mtp.layers.1.");
    return names;
  }
  if (family.starts_with("Ernie"))
    return {.layers = {"model.mtp_block.0."},
            .embedding_norm = "model.mtp_emb_norm.0",
            .hidden_norm = "model.mtp_hidden_norm.0",
            .projection = "model.mtp_linear_proj.0",
            .final_norm = "model.norm"};
  if (family.starts_with("Exaone"))
    return {.layers = {"mtp.layers.0."},
            .embedding_norm = "mtp.pre_fc_norm_embedding",
            .hidden_norm = "mtp.pre_fc_norm_hidden",
            .projection = "mtp.fc",
            .final_norm = "mtp.norm"};
  CHECK(family.starts_with("DeepseekV4"));
  MtpNames names = in_layer("mtp.0.", "", "mtp.0.norm");
  names.projection = "mtp.0.h_proj";
  names.embedding_projection = "mtp.0.e_proj";
  if (target.tie_embeddings) return names;
  names.embedding = "mtp.0.emb.tok_emb";
  names.head = "mtp.0.head";
  return names;
}

// Copies the tensors of the first layer of `target` that `wanted` accepts, and whose names in the
// layer begin with one of `parts`, to layer `to` of the MTP layer.
template <typename Wanted>
void CopyLayer(const ModelConfig& target, const RawTensors& from, const Wanted& wanted,
               std::initializer_list<std::string_view> parts, const std::string& to,
               RawTensors* tensors) {
  const auto layer = std::ranges::find_if(target.layers, wanted);
  CHECK(layer != target.layers.end());
  const std::string prefix = LayerPrefix(NamesOf(target), layer - target.layers.begin());
  for (const auto& [name, tensor] : from) {
    if (!name.starts_with(prefix)) continue;
    const std::string in_layer = name.substr(prefix.size());
    if (std::ranges::any_of(parts, [&](auto part) { return in_layer.starts_with(part); }))
      (*tensors)[to + in_layer] = tensor;
  }
}

// The tensors of an MTP layer whose layers are copies of some of the target's, with random norms
// and projections.
inline RawTensors CopiedMtpTensors(const ModelConfig& target, const RawTensors& from,
                                   uint32_t seed = 1) {
  const MtpNames names = MtpNamesOf(target);
  const int64_t hidden = target.hidden;
  RandomTensors random(seed);
  for (const std::string& norm : {names.embedding_norm, names.hidden_norm, names.final_norm})
    if (!from.contains(norm + ".weight")) random.Norm(norm, hidden);
  const auto is_moe = [](const LayerConfig& layer) { return layer.moe && !layer.by_token; };
  const auto copy = [&](const auto& wanted, std::initializer_list<std::string_view> parts, int to) {
    CopyLayer(target, from, wanted, parts, names.layers[to], &random.tensors);
  };
  if (target.streams) {
    random.Matrix(names.projection, hidden, hidden);
    random.Matrix(names.embedding_projection, hidden, hidden);
    for (const std::string& own : {names.embedding, names.head})
      if (!own.empty()) random.Add(own + ".weight", {target.vocab_size, hidden}, 0, 1);
    const auto slides = [](const LayerConfig& layer) { return layer.compress == 0; };
    copy(slides, {"attn", "hc_attn"}, 0);
    copy(is_moe, {"ffn", "hc_ffn"}, 0);
    for (const char* part : {"fn", "base", "scale"})
      random.tensors[std::string("mtp.0.hc_head_") + part] =
          from.at(std::string("hc_head_") + part);
    return random.tensors;
  }
  random.Matrix(names.projection, hidden, 2 * hidden);
  if (names.layers.size() == 2) {
    copy(&LayerConfig::attends, {""}, 0);
    copy(is_moe, {""}, 1);
  } else if (target.mtp_block.empty()) {
    copy(is_moe, {""}, 0);
  } else {
    copy([](const LayerConfig& layer) { return !layer.moe; }, {""}, 0);
  }
  return random.tensors;
}

// Random tensors of the MTP layers of MiMo-V2-Flash and LongCat-Flash, which have other names or
// shapes than the layers of the model. LongCat-Flash has an embedding of its own for it.
inline RawTensors MtpTensorsOf(const ModelConfig& target, int64_t depth = 0) {
  RandomTensors random(static_cast<uint32_t>(1 + depth));
  const int64_t hidden = target.hidden, heads = target.attention.heads;
  const AttentionConfig& a = target.attention;
  const std::string layer = MimoMtpPrefix(depth), attention = layer + "self_attn.";
  const auto feed_forward = [&](const std::string& prefix) {
    random.Matrix(prefix + "gate_proj", target.intermediate, hidden);
    random.Matrix(prefix + "up_proj", target.intermediate, hidden);
    random.Matrix(prefix + "down_proj", hidden, target.intermediate);
  };
  random.Norm(layer + "input_layernorm", hidden);
  random.Matrix(layer + "eh_proj", hidden, 2 * hidden);
  random.Matrix(attention + "o_proj", hidden, heads * a.value_dim());
  if (a.kind == AttentionConfig::Kind::kGrouped) {
    for (const char* name : {"enorm", "hnorm", "pre_mlp_layernorm", "final_layernorm"})
      random.Norm(layer + name, hidden);
    const int64_t kv_heads = target.mtp_block[0].kv_heads;
    random.Matrix(attention + "q_proj", heads * a.head_dim, hidden);
    random.Matrix(attention + "k_proj", kv_heads * a.head_dim, hidden);
    random.Matrix(attention + "v_proj", kv_heads * a.value_dim(), hidden);
    random.Add(attention + "attention_sink_bias", {heads}, 0, 1);
    feed_forward(layer + "mlp.");
    return random.tensors;
  }
  for (const char* name : {"enorm.m", "hnorm.m", "post_attention_layernorm"})
    random.Norm(layer + name, hidden);
  random.Norm("model.mtp.norm", hidden);
  random.Add("model.mtp.embed_tokens.weight", {target.vocab_size, hidden}, 0, 1);
  random.Matrix(attention + "q_a_proj", a.q_lora_rank, hidden);
  random.Norm(attention + "q_a_layernorm", a.q_lora_rank);
  random.Matrix(attention + "q_b_proj", heads * (a.qk_nope_head_dim + a.qk_rope_head_dim),
                a.q_lora_rank);
  random.Matrix(attention + "kv_a_proj_with_mqa", a.kv_lora_rank + a.qk_rope_head_dim, hidden);
  random.Norm(attention + "kv_a_layernorm", a.kv_lora_rank);
  random.Matrix(attention + "kv_b_proj", heads * (a.qk_nope_head_dim + a.v_head_dim),
                a.kv_lora_rank);
  feed_forward(layer + "transformer_layer.mlp.");
  return random.tensors;
}

// The tensors of checkpoint `from` and of its MTP layers, of which only MiMo-V2-Flash has several.
inline RawTensors WithMtpLayer(const std::filesystem::path& from, int64_t layers = 1) {
  const ModelConfig target = LoadModelConfig(from);
  const std::string_view family = target.architecture;
  RawTensors tensors = ReadSafetensors(from);
  const bool random = family.starts_with("MiMo") || family.starts_with("Longcat");
  for (int64_t depth = 0; depth < layers; ++depth)
    tensors.merge(random ? MtpTensorsOf(target, depth) : CopiedMtpTensors(target, tensors));
  return tensors;
}

inline void WriteModel(const std::filesystem::path& from, const RawTensors& tensors,
                       const std::filesystem::path& to, int64_t mtp_layers = 1) {
  auto config = nlohmann::json::parse(ReadBytes(from / "config.json"));
  config["num_nextn_predict_layers"] = mtp_layers;
  WriteBytes(to / "config.json", config.dump());
  WriteSafetensors(to / "model.safetensors", tensors);
}

}  // namespace switchyard::testing
