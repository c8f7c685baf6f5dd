// For tests: checkpoints of EAGLE heads with random weights.
#pragma once

#include <filesystem>
#include <initializer_list>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/weights/testing.h"

namespace switchyard::testing {

struct EagleHead {
  static constexpr int64_t kHeads = 4, kKvHeads = 2, kHeadDim = 16, kIntermediate = 96;
  static constexpr double kEps = 1e-5, kTheta = 10000;

  bool inner_rows = true;       // true: EAGLE3; false: EAGLE
  std::vector<int64_t> layers;  // EAGLE3 only: layers of the target whose inputs are read
  int64_t draft_vocab = 0;      // EAGLE3 only: rows of the head; 0: the target's head
  bool bias = false;            // the linear fc has a bias
  bool norm_before_residual = false;
  int64_t hidden = 0;               // hidden size; 0: as in the target
  std::string layer = "midlayer.";  // prefix of the layer's names; EAGLE and vLLM: "layers.0."
};

inline nlohmann::json ConfigOf(const EagleHead& head, const ModelConfig& target) {
  nlohmann::json config = {{"architectures", {"LlamaForCausalLM"}},
                           {"model_type", "llama"},
                           {"hidden_size", head.hidden > 0 ? head.hidden : target.hidden},
                           {"intermediate_size", EagleHead::kIntermediate},
                           {"num_hidden_layers", 1},
                           {"num_attention_heads", EagleHead::kHeads},
                           {"num_key_value_heads", EagleHead::kKvHeads},
                           {"head_dim", EagleHead::kHeadDim},
                           {"vocab_size", target.vocab_size},
                           {"max_position_embeddings", 512},
                           {"rms_norm_eps", EagleHead::kEps},
                           {"rope_theta", EagleHead::kTheta},
                           {"tie_word_embeddings", false},
                           {"torch_dtype", "float32"},
                           {"bias", head.bias}};
  if (!head.inner_rows) return config;
  config["norm_before_residual"] = head.norm_before_residual;
  if (head.hidden > 0) config["target_hidden_size"] = target.hidden;
  if (head.draft_vocab > 0) config["draft_vocab_size"] = head.draft_vocab;
  if (head.layer == "layers.0.") {  // vLLM's keys
    config["architectures"] = {"Eagle3LlamaForCausalLM"};
    config["eagle_aux_hidden_state_layer_ids"] = head.layers;
  } else if (!head.layers.empty()) {
    std::vector<int64_t> outputs = head.layers;
    for (int64_t& layer : outputs) --layer;
    config["architectures"] = {"LlamaForCausalLMEagle3"};
    config["eagle_config"] = {{"use_aux_hidden_state", true},
                              {"eagle_aux_hidden_state_layer_ids", outputs}};
  }
  return config;
}

// Tensors that a test may modify. d2t gives row i the token ⌊i · vocab / draft_vocab⌋.
inline RawTensors TensorsOf(const EagleHead& head, const ModelConfig& target, uint32_t seed) {
  RandomTensors random(seed);
  const int64_t hidden = head.hidden > 0 ? head.hidden : target.hidden;
  const auto matrix = [&](const std::string& name, int64_t n, int64_t k) {
    random.Matrix(name, n, k);
  };
  const auto norm = [&](const std::string& name) { random.Norm(name, hidden); };
  const int64_t input = head.inner_rows ? 2 * hidden : hidden;
  const int64_t q = EagleHead::kHeads * EagleHead::kHeadDim;
  const int64_t kv = EagleHead::kKvHeads * EagleHead::kHeadDim;
  const std::string attention = head.layer + "self_attn.", mlp = head.layer + "mlp.";
  matrix(attention + "q_proj", q, input);
  matrix(attention + "k_proj", kv, input);
  matrix(attention + "v_proj", kv, input);
  matrix(attention + "o_proj", hidden, q);
  matrix(mlp + "gate_proj", EagleHead::kIntermediate, hidden);
  matrix(mlp + "up_proj", EagleHead::kIntermediate, hidden);
  matrix(mlp + "down_proj", hidden, EagleHead::kIntermediate);
  norm(head.layer + "post_attention_layernorm");
  const auto rows = static_cast<int64_t>(head.layers.size());
  matrix("fc", hidden, head.inner_rows ? rows * target.hidden : 2 * hidden);
  if (head.bias) random.Add("fc.bias", {hidden}, 0, 0.2);
  if (!head.inner_rows) return random.tensors;
  norm(head.layer + "input_layernorm");
  norm(head.layer + "hidden_norm");
  norm("norm");
  if (head.hidden > 0) matrix("embed_tokens", target.vocab_size, hidden);
  if (head.draft_vocab == 0) return random.tensors;
  matrix("lm_head", head.draft_vocab, hidden);
  std::vector<int64_t> table(head.draft_vocab);
  for (int64_t i = 0; i < head.draft_vocab; ++i)
    table[i] = i * target.vocab_size / head.draft_vocab - i;
  random.tensors["d2t"] = {
      "I64",
      {head.draft_vocab},
      std::string(reinterpret_cast<const char*>(table.data()), table.size() * 8)};
  return random.tensors;
}

// A reduced head with every fifth token's row of the target in `dir`.
inline std::shared_ptr<const ReducedHead> EveryFifthRow(const ModelConfig& target,
                                                        const std::filesystem::path& dir) {
  auto head = std::make_shared<ReducedHead>();
  for (int32_t token = 0; token < target.vocab_size; token += 5) head->tokens.push_back(token);
  head->owner = std::make_shared<ModelConfig>(target);
  head->owner_dir = dir;
  return head;
}

inline void WriteEagleHead(const std::filesystem::path& dir, const EagleHead& head,
                           const ModelConfig& target, uint32_t seed = 1) {
  WriteBytes(dir / "config.json", ConfigOf(head, target).dump());
  WriteSafetensors(dir / "model.safetensors", TensorsOf(head, target, seed));
}

}  // namespace switchyard::testing
