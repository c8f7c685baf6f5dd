// Settings and tensor names of a family of checkpoints. Each family has one file in this
// folder.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "model/config.h"
#include "model/config_reader.h"

namespace switchyard {

// Names of tensors. Names in a layer follow the layer's prefix; linears end in ".weight" and
// ".bias", norms in ".weight". The defaults are those of most families.
struct TensorNames {
  std::string embedding = "model.embed_tokens.weight";
  std::string final_norm = "model.norm.weight";
  std::string head = "lm_head.weight";
  std::string layers = "model.layers.";  // followed by the layer's number and a dot
  // Blocks of attention and feed-forward in a layer of the checkpoint. Each block is a layer here.
  // In names in a layer, "#" stands for the number of the block (NamesOfLayer).
  int blocks = 1;
  // Prefix of the MTP layer, if it is not a further layer of `layers`: "mtp." of "mtp.fc",
  // "mtp.layers.0." and "mtp.norm".
  std::string mtp;
  // After this prefix: `layers` of the MTP layer, norms of the embedding and of the hidden row, and
  // their projection. "#" stands for the number of the MTP layer (MtpName).
  std::string mtp_layers = "layers.";
  std::string mtp_embedding_norm = "pre_fc_norm_embedding", mtp_hidden_norm = "pre_fc_norm_hidden";
  std::string mtp_projection = "fc";
  // After this prefix, with residual streams: the projection of the embedding. `mtp_projection` is
  // that of the hidden row only.
  std::string mtp_embedding_projection;
  // After this prefix: the final norm; empty: the model's. The embedding and the head are used if
  // the checkpoint has them. Empty: those of the model.
  std::string mtp_final_norm = "norm", mtp_embedding = "embed_tokens", mtp_head;
  // The final norm of an MTP layer that is a further layer of `layers`, after the layer's prefix.
  std::string mtp_layer_norm = "shared_head.norm";

  // Norms of the input of attention and of the feed-forward, and of their output. Empty: none.
  std::string input_norm = "input_layernorm", post_attention_norm = "post_attention_layernorm";
  std::string attention_output_norm, feed_forward_output_norm;
  std::string q = "self_attn.q_proj", k = "self_attn.k_proj", v = "self_attn.v_proj";
  std::string qkv;  // one linear with the rows of q, then k, then v; empty: three linears
  std::string o = "self_attn.o_proj", attention_gate = "self_attn.gate_proj";
  std::string q_norm = "self_attn.q_norm", k_norm = "self_attn.k_norm";
  // `sinks_alternative` is used if the checkpoint has it and not `sinks`; empty: no alternative.
  std::string sinks = "self_attn.sinks", sinks_alternative;
  std::string q_a = "self_attn.q_a_proj", q_a_norm = "self_attn.q_a_layernorm";
  std::string q_b = "self_attn.q_b_proj";
  std::string kv_a = "self_attn.kv_a_proj_with_mqa", kv_a_norm = "self_attn.kv_a_layernorm";
  std::string kv_b = "self_attn.kv_b_proj";
  // Compressed attention: `k` is the row that is key and value, and `o_a` has the rows of the
  // projections of all output groups. Prefix of wkv, wgate, ape and norm; the indexer's are under
  // its own prefix.
  std::string o_a, compressor;
  // Residual streams: followed by fn, base and scale. The first two follow the layer's prefix.
  std::string attention_streams, feed_forward_streams, head_streams;
  std::string indexer = "self_attn.indexer";  // prefix of wq_b, wk, k_norm and weights_proj

  // Linear attention. LinearAttentionConfig::separate decides which projections exist. Kimi Delta
  // Attention: q, k and v are those above; a and z are products with the _low projections.
  std::string linear_qkvz = "linear_attn.in_proj_qkvz", linear_ba = "linear_attn.in_proj_ba";
  std::string linear_qkv = "linear_attn.in_proj_qkv", linear_z = "linear_attn.in_proj_z";
  std::string linear_b = "linear_attn.in_proj_b", linear_a = "linear_attn.in_proj_a";
  std::string linear_a_low, linear_z_low;
  // Mamba-2: one projection with the rows of z, v, k, q and a, and the factor of v in the output.
  std::string linear_all, linear_skip;
  // One convolution of all channels, or if `linear_conv` is empty, of q, k and v each.
  std::string linear_conv = "linear_attn.conv1d";
  std::string linear_q_conv, linear_k_conv, linear_v_conv;
  std::string linear_rate = "linear_attn.A_log", linear_bias = "linear_attn.dt_bias";
  std::string linear_norm = "linear_attn.norm", linear_o = "linear_attn.out_proj";
  std::string linear_q_norm, linear_k_norm;  // with LinearAttentionConfig::qk_norm

  // Dense layers: prefix of gate_proj, up_proj, down_proj. `mlp_alternative` is used if the
  // checkpoint has them under it and not under `mlp`; empty: no alternative.
  std::string mlp = "mlp", mlp_alternative;
  // MoE layers: prefix of the router and the experts. `moe_alternative` is used if the checkpoint
  // has a router under it and none under `moe`; empty: no alternative.
  std::string moe = "mlp", moe_alternative;
  std::string router = "gate";
  std::string expert_gate = "gate_proj", expert_up = "up_proj", expert_down = "down_proj";
  std::string shared = "shared_experts", shared_gate = "shared_expert_gate";
  // Experts are stacked under these names: gate rows, then up rows [E, 2I, H], and down [E, H, I];
  // with `transposed_experts` [E, H, 2I] and [E, I, H], gate columns before up columns.
  // If `stacked_experts` is false, the checkpoint decides: experts are stacked if it has a tensor
  // of the first name.
  bool stacked_experts = false, transposed_experts = false;
  std::string stacked_gate_up = "experts.gate_up_proj", stacked_down = "experts.down_proj";
  // Projections of the input and of the output of experts (MoeModelConfig::latent).
  std::string latent_in, latent_out;
  // One linear with the gate rows, then the up rows of the shared expert [2S, H], and its down
  // linear, by their names in the layer. Empty: gate_proj, up_proj and down_proj of `shared`.
  std::string shared_gate_up, shared_down;
  bool shared_as_experts = false;  // linears of `shared` have the names of those of an expert

  bool router_bias = false, correction_bias = false;
  // Name of the correction bias after the prefix of the MoE block. Empty: the name that most
  // families use, with the router's prefix.
  std::string correction_bias_name;
  std::string token_experts;         // experts by token id, after the prefix of the MoE block
  bool correction_bias_row = false;  // the correction bias is stored as [1, E]
  bool expert_biases = false;        // experts have biases; only if experts are interleaved
  // Experts are stacked: gate_up_proj [E, H, 2I] and down_proj [E, I, H], both transposed; or as
  // MXFP4 blocks, gate_up_proj [E, 2I, H] and down_proj [E, H, I]. In gate_up_proj, gate and up
  // alternate along the 2I dimension: index 2j is gate j, and 2j + 1 is up j.
  bool interleaved_experts = false;
};

// The name of the correction bias of the router. `prefix`: prefix of the MoE block.
inline std::string CorrectionBiasName(const TensorNames& names, const std::string& prefix) {
  return prefix + (names.correction_bias_name.empty() ? names.router + ".e_score_correction_bias"
                                                      : names.correction_bias_name);
}

// The prefix of the names of layer `layer` of the model: "model.layers.3.".
std::string LayerPrefix(const TensorNames& names, int64_t layer);
// The names in layer `layer` of the model, without "#".
TensorNames NamesOfLayer(const TensorNames& names, int64_t layer);

// The name of a part of MTP layer `depth`, such as names.mtp_projection, with the prefix `mtp`.
std::string MtpName(const TensorNames& names, const std::string& part, int64_t depth);

struct Family {
  std::string_view architecture;  // "Qwen3MoeForCausalLM"
  std::string_view model_type;    // used if config.json gives no architecture
  // Fills everything but architecture, end-of-sequence ids and quantization.
  void (*read_config)(const ConfigReader& reader, ModelConfig* config);
  TensorNames (*names)(const ModelConfig& config);
  // MTP layers have the tensor names of DeepSeek-V3's or, with TensorNames::mtp, those that `names`
  // gives for a config with is_mtp.
  bool mtp = false;
  // Formats of tool calls and reasoning that the chat templates of published checkpoints use (names
  // of text/output). For the table of models; serving detects them from the template.
  std::string_view tool_parser = {}, reasoning_parser = {};
};

// A multimodal checkpoint, of which the decoder is served. Its config.json has the decoder's
// settings under text_config, and the names of the decoder's tensors begin with `prefix`. If it
// begins with "model.", it replaces this beginning, and the head's name has no prefix.
struct Wrapper {
  std::string_view architecture, model_type;
  std::string_view prefix;
};
std::span<const Wrapper> Wrappers();

std::span<const Family> Families();
// `architecture` may also be the name of the classifier (...ForSequenceClassification) or of the
// decoder without a head (...Model) of a family. nullptr if unknown.
const Family* FindFamily(std::string_view architecture);
// The names of a model's tensors, with its prefix. CHECKs that the architecture is known.
TensorNames NamesOf(const ModelConfig& config);

// One list of families for each file of this folder, since some files define two architectures.
std::span<const Family> MixtralFamily();
std::span<const Family> Qwen2MoeFamily();
std::span<const Family> Qwen3MoeFamily();
std::span<const Family> OlmoeFamily();
std::span<const Family> DeepseekV2Family();
std::span<const Family> DeepseekV3Family();
std::span<const Family> DeepseekV32Family();
std::span<const Family> DeepseekV4Family();
std::span<const Family> GptOssFamily();
std::span<const Family> Glm4MoeFamily();
std::span<const Family> Dots1Family();
std::span<const Family> MiniMaxM2Family();
std::span<const Family> Ernie45MoeFamily();
std::span<const Family> LlamaFamily();
std::span<const Family> QwenFamily();
std::span<const Family> GraniteMoeFamily();
std::span<const Family> HunyuanV1MoeFamily();
std::span<const Family> ExaoneMoeFamily();
std::span<const Family> FlexOlmoFamily();
std::span<const Family> PhimoeFamily();
std::span<const Family> Mistral4Family();
std::span<const Family> AfmoeFamily();
std::span<const Family> BailingMoeV2Family();
std::span<const Family> Llama4Family();
std::span<const Family> LongcatFlashFamily();
std::span<const Family> MiMoV2FlashFamily();
std::span<const Family> Qwen3NextFamily();
std::span<const Family> KimiLinearFamily();
std::span<const Family> NemotronHFamily();
std::span<const Family> BailingHybridFamily();
std::span<const Family> BailingMoeV25Family();

}  // namespace switchyard
