// For tests: checkpoints of MiMo-V2-Flash and LongCat-Flash with an MTP layer. Its tensors have the
// names and shapes of the published checkpoints, which SGLang and vLLM read (mimo_v2_nextn.py,
// longcat_flash_nextn.py; mimo_v2_mtp.py, longcat_flash_mtp.py).
#pragma once

#include <filesystem>
#include <string>

#include "model/config.h"
#include "model/weights/testing.h"

namespace switchyard::testing {

inline const std::string kMtpPrefix = "model.mtp.layers.0.";

// Random tensors of the MTP layer. LongCat-Flash has an embedding of its own for it.
inline RawTensors MtpTensorsOf(const ModelConfig& target, uint32_t seed = 1) {
  RandomTensors random(seed);
  const int64_t hidden = target.hidden, heads = target.attention.heads;
  const AttentionConfig& a = target.attention;
  const std::string layer = kMtpPrefix, attention = layer + "self_attn.";
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
    const int64_t kv_heads = target.mtp_layer->kv_heads;
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

// The tensors of checkpoint `from` and of its MTP layer.
inline RawTensors WithMtpLayer(const std::filesystem::path& from) {
  RawTensors tensors = ReadSafetensors(from);
  tensors.merge(MtpTensorsOf(LoadModelConfig(from)));
  return tensors;
}

inline void WriteModel(const std::filesystem::path& from, const RawTensors& tensors,
                       const std::filesystem::path& to) {
  CopyConfig(from, to);
  WriteSafetensors(to / "model.safetensors", tensors);
}

}  // namespace switchyard::testing
