#include "model/config_keys.h"

#include <algorithm>
#include <functional>
#include <map>

#include "core/error.h"
#include "core/format.h"

namespace switchyard {
namespace {

using Neutral = std::vector<std::string>;

// Keys that change the forward pass of at least one family, according to its code in transformers
// or on the hub. Each key has a list of the values that do not change the pass.
const std::map<std::string_view, Neutral, std::less<>>& RefusedKeys() {
  static const Neutral kNever, kFalse = {"false"}, kTrue = {"true"}, kZero = {"0"}, kOne = {"1"},
                               kOff = {"0", "false"}, kEmpty = {"[]"};
  static const std::map<std::string_view, Neutral, std::less<>> keys = {
      // Attention
      {"add_full_attention_sink_bias", kFalse},
      {"add_swa_attention_sink_bias", kFalse},
      {"attention_bias", kFalse},
      {"attention_chunk_size", kNever},
      {"attention_multiplier", kOne},
      {"attention_value_scale", kOne},
      {"attn_logit_softcapping", kNever},
      {"attn_output_gate", kFalse},
      {"attn_temperature_tuning", kOff},
      {"clip_qkv", kNever},
      {"full_attention_interval", kOne},
      {"gated_attention", kFalse},
      {"hybrid_block_size", kNever},
      {"hybrid_layer_pattern", kNever},
      {"index_topk_freq", kOne},  // other keys of sparse attention: IsOfSparseAttention
      {"mla_use_nope", kFalse},
      {"group_norm_size", kOne},
      {"gated_attention_proj_granularity_type", kNever},
      {"kda_lower_bound", kNever},
      {"kda_safe_gate", kNever},
      {"kv_lora_rank", kNever},
      {"layer_group_size", kOne},
      {"linear_attn_config", kNever},
      {"linear_conv_kernel_dim", kNever},
      {"linear_head_dim", kNever},
      {"linear_key_head_dim", kNever},
      {"linear_num_heads", kNever},
      {"linear_num_key_heads", kNever},
      {"linear_num_value_heads", kNever},
      {"linear_rope", kTrue},
      {"linear_silu", kFalse},
      {"linear_value_head_dim", kNever},
      {"no_kda_lora", kTrue},
      {"no_rope_layers", kEmpty},
      {"num_kv_heads_for_linear_attn", kZero},
      {"qkv_bias", kFalse},
      {"query_pre_attn_scalar", kNever},
      {"short_conv_kernel_size", kNever},
      {"sliding_window", kZero},
      {"sliding_window_size", kZero},
      {"sliding_windows", kNever},
      {"swa_head_dim", kNever},
      {"swa_num_attention_heads", kNever},
      {"swa_num_key_value_heads", kNever},
      {"swa_v_head_dim", kNever},
      {"use_bias", kFalse},
      {"use_cla", kFalse},
      {"use_gated_attention", kFalse},
      {"use_kda_lora", kFalse},
      {"use_linear_silu", kFalse},
      {"use_mla", kFalse},
      {"use_mla_nope", kFalse},
      {"use_qk_norm", kFalse},
      {"use_qkv_bias", kFalse},
      {"use_sliding_window", kFalse},
      {"v_head_dim", kNever},
      // Rotary embedding, in config.json or in rope_parameters and rope_scaling
      {"alpha", kOff},
      {"llama_4_scaling_beta", kZero},
      {"long_mscale", kNever},
      {"mrope_section", kNever},
      {"rope_interleave", kFalse},
      {"rope_local_base_freq", kNever},
      {"rotary_dim", kNever},
      {"short_mscale", kNever},
      {"swa_rope_theta", kNever},
      // Experts and router
      {"decoder_sparse_step", kOne},
      {"first_k_dense_replace", kZero},
      {"interleave_moe_layer_step", kOne},
      {"is_moe_layer", kNever},
      {"mlp_layer_types", kNever},
      {"mlp_only_layers", kEmpty},
      {"moe_latent_size", kNever},
      {"moe_layer_freq", kOne},
      {"moe_layer_interval", kOne},
      {"moe_layer_num_skipped", kZero},
      {"moe_layers", kNever},
      {"moe_num_shared_experts", kZero},
      {"moe_router_enable_expert_bias", kTrue},
      {"moe_shared_expert_intermediate_size", kZero},
      {"n_group", kOne},
      {"n_shared_experts", kZero},
      {"norm_topk_prob", kTrue},
      {"num_dense_layers", kZero},
      {"num_expert_groups", kOne},
      {"num_limited_groups", kOne},
      {"num_shared_expert", kZero},
      {"num_shared_experts", kZero},
      {"route_norm", kTrue},
      {"route_scale", kOne},
      {"routed_scaling_factor", kOne},
      {"scoring_func", {"\"softmax\""}},
      {"shared_expert_intermediate_size", kZero},
      {"shared_intermediate_size", kZero},
      {"topk_group", kOne},
      {"topk_method", {"\"greedy\""}},
      {"use_routing_bias", kTrue},
      {"expert_swiglu_limit_list", kNever},
      {"scale_router_input", kFalse},
      {"share_expert_swiglu_limit_list", kNever},
      {"zero_expert_num", kZero},
      // Layers, embedding and head
      {"embedding_multiplier", kOne},
      {"final_logit_softcapping", kNever},
      {"hc_mult", kNever},  // hyper-connections
      {"lm_head_bias", kFalse},
      {"logits_scaling", kOne},
      {"mlp_bias", kFalse},
      {"mup_enabled", kFalse},
      {"residual_multiplier", kOne},
      {"scale_depth", kOne},
      {"scale_emb", kOne},
      {"swiglu_limit", kNever},
      {"swiglu_limits", kNever},
      {"use_mixed_mlp_moe", kTrue},
      {"up_proj_norm", kFalse},
      {"use_nGPT", kFalse},
      {"use_rmsnorm", kTrue},
      {"value_norm", kFalse},
  };
  return keys;
}

// Keys without effect on a forward pass, sorted.
constexpr std::string_view kNoEffect[] = {
    "_attn_implementation_autoset",
    "_name_or_path",
    "add_cross_attention",
    "architectures",
    "attention_dropout",
    "attribute_map",
    "auto_map",
    "aux_loss_alpha",
    "chunk_size",
    "chunk_size_feed_forward",
    "cla_share_factor",
    "cross_attention_hidden_size",
    "decoder_start_token_id",
    "dtype",
    "embedding_dropout",
    "eod_token_id",
    "ep_size",
    "expand",
    "experts_per_token",
    "finetuning_task",
    "for_llm_compressor",
    "global_attn_every_n_layers",
    "group_limited_greedy",
    "head_dim",  // in models with MLA
    "hidden_act",
    "hidden_dropout",
    "id2label",
    "im_end_id",
    "index_share_for_mtp_iteration",
    "index_skip_topk_offset",
    "initial_context_length",
    "initializer_range",
    "input_jitter_noise",
    "intermediate_size",  // in models with experts in every layer
    "is_decoder",
    "is_encoder_decoder",
    "label2id",
    "load_balance_coeff",
    "mamba_ssm_cache_dtype",
    "max_window_layers",
    "model_type",
    "moe_drop_tokens",
    "moe_gate",
    "moe_norm_min",
    "moe_random_routing_dropped_token",
    "moe_shared_expert_overlap",
    "mtp_layers_block_type",
    "mtp_loss_scaling_factor",
    "mtp_num_speculative_steps",
    "mtp_share_layers",
    "mtp_transformer_layers",
    "mtp_use_kda",
    "num_experts_per_tok",
    "num_key_value_heads",  // in models with MLA
    "num_labels",
    "num_logits_to_keep",
    "num_mtp_layers",
    "num_mtp_modules",
    "num_nextn_predict_layers",
    "org_vocab_size",
    "output_attentions",
    "output_dropout",
    "output_hidden_states",
    "output_router_logits",
    "pad_id",
    "pad_token_id",
    "prefix",
    "pretraining_tp",
    "problem_type",
    "qk_head_dim",
    "rescale_prenorm_residual",
    "resid_pdrop",
    "residual_in_fp32",
    "return_dict",
    "router_aux_loss_coef",
    "router_dtype",
    "router_jitter_noise",  // noise of training, except in SparseMixer
    "router_z_loss_coef",
    "sep_token_id",
    "seq_aux",
    "sliding_window_pattern",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "time_step_floor",
    "time_step_limit",  // transformers has time_step_min instead
    "time_step_max",
    "tokenizer_class",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "transformers_weights",
    "unused",
    "use_cache",
    "use_grouped_mm",
    "use_mamba_kernels",
    "use_mtp",
};
static_assert(std::ranges::is_sorted(kNoEffect));

// Keys of sparse attention, under any name: a model whose queries attend to selected keys only must
// not run with attention to all keys. RefusedKeys and kNoEffect precede this.
bool IsOfSparseAttention(std::string_view key) {
  for (const std::string_view start : {"index_", "indexer_", "dsa_", "nsa_", "lightning_"})
    if (key.starts_with(start)) return true;
  return key.find("sparse") != std::string_view::npos || key.ends_with("_index_topk");
}

bool IsNeutral(const ConfigReader& settings, const std::string& key) {
  if (key == "layer_types") {  // not read: all layers are full
    const auto types = settings.Strings(key);
    return std::ranges::all_of(types, [](const auto& type) { return type == "full_attention"; });
  }
  if (IsOfSparseAttention(key) && settings.Equals(key, "false")) return true;
  const auto values = NeutralValues(key);
  return std::ranges::any_of(values,
                             [&](const std::string& value) { return settings.Equals(key, value); });
}

void Refuse(const ConfigReader& settings, std::string_view architecture,
            std::vector<std::string>* unknown) {
  for (const std::string& key : settings.Unread()) {
    const KeyMark mark = MarkOf(key);
    if (mark == KeyMark::kUnknown && unknown) unknown->push_back(key);
    if (mark != KeyMark::kRefused || IsNeutral(settings, key)) continue;
    const auto neutral = NeutralValues(key);
    throw Invalid("{} is {}, which is not supported for {}{}", settings.Where(key),
                  settings.ValueText(key), architecture,
                  neutral.empty() ? std::string("; want a config.json without this key")
                                  : fmt::format("; want {}", Joined(neutral, " or ")));
  }
}

}  // namespace

KeyMark MarkOf(std::string_view key) {
  if (key == "layer_types" || RefusedKeys().contains(key)) return KeyMark::kRefused;
  if (std::ranges::binary_search(kNoEffect, key)) return KeyMark::kNoEffect;
  return IsOfSparseAttention(key) ? KeyMark::kRefused : KeyMark::kUnknown;
}

std::vector<std::string> NeutralValues(std::string_view key) {
  const auto it = RefusedKeys().find(key);
  return it == RefusedKeys().end() ? Neutral() : it->second;
}

std::vector<std::string> RefuseUnreadKeys(const ConfigReader& settings,
                                          std::string_view architecture) {
  std::vector<std::string> unknown;
  Refuse(settings, architecture, &unknown);
  for (const char* name : {"rope_parameters", "rope_scaling"}) {
    const auto rotary = settings.Object(name);
    if (!rotary) continue;
    Refuse(*rotary, architecture, nullptr);
    for (const char* type : {"full_attention", "sliding_attention", "main", "compress"})
      if (const auto of_type = rotary->Object(type)) Refuse(*of_type, architecture, nullptr);
  }
  return unknown;
}

}  // namespace switchyard
