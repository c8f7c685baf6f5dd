// Readers of settings that most families share; each family's file states its own defaults.
#pragma once

#include "model/config.h"
#include "model/config_reader.h"
#include "model/families/family.h"

namespace switchyard {

// Bounds larger than those of any known model, small enough that a product of two cannot overflow.
constexpr int64_t kMaxWidth = int64_t{1} << 24;  // hidden, intermediate, ranks, head sizes
constexpr int64_t kMaxVocab = int64_t{1} << 28;
constexpr int64_t kMaxCount = int64_t{1} << 14;  // layers, heads, experts
constexpr int64_t kMaxPosition = 1'000'000'000;

// Reads vocab_size, hidden_size, max_position_embeddings, rms_norm_eps, tie_word_embeddings and
// torch_dtype. Adds one dense full-attention layer for each of num_hidden_layers, or of the key
// `layers`; none if it is empty. Error if hidden_act is not SiLU.
void ReadCommon(const ConfigReader& reader, double default_norm_eps, ModelConfig* config,
                std::string_view layers = "num_hidden_layers");

// Reads intermediate_size, the width of dense layers.
void ReadDenseIntermediate(const ConfigReader& reader, ModelConfig* config);

// Reads num_attention_heads, num_key_value_heads (absent: equal to num_attention_heads) and
// head_dim (absent: `default_head_dim`, or if that is 0, hidden_size / num_attention_heads). Sets
// the scale to head_dim^-0.5.
void ReadGroupedAttention(const ConfigReader& reader, int64_t default_head_dim,
                          ModelConfig* config);

// Reads the sizes of MLA, and attention_bias. Sets the scale to (qk_nope_head_dim +
// qk_rope_head_dim)^-0.5.
void ReadLatentAttention(const ConfigReader& reader, ModelConfig* config);

// Reads rope_theta with rope_scaling, or rope_parameters. Rotates a fraction partial_rotary_factor
// (absent: `default_part`) of `head_dim`.
void ReadRope(const ConfigReader& reader, double default_theta, int64_t head_dim,
              ModelConfig* config, double default_part = 1.0);

// As ReadRope, but all of `head_dim` is rotated. partial_rotary_factor has no effect on an
// embedding that is not scaled; error if it is not 1 for another one.
void ReadWholeRope(const ConfigReader& reader, double default_theta, int64_t head_dim,
                   ModelConfig* config);

// The values of absent keys: rope_theta, or `theta_key`, and partial_rotary_factor.
struct RopeDefaults {
  double theta = 10000.0, part = 1.0;
  std::string_view theta_key = "rope_theta";
};
// Reads two rotary embeddings: of layers without a sliding window into config->rope, and of layers
// with one into config->window_rope. rope_parameters has an object for each layer type
// (transformers 5). Without this key, as on the hub: rope_theta with rope_scaling, and
// swa_rope_theta.
void ReadRopeByLayerType(const ConfigReader& reader, const RopeDefaults& full,
                         const RopeDefaults& window, int64_t head_dim, ModelConfig* config);

// Reads two rotary embeddings: of layers with compressed entries into config->rope, and of others
// into config->window_rope. rope_parameters has the objects "compress" and "main" (transformers).
// Without them, as on the hub: compress_rope_theta with rope_scaling, whose attention_factor is 1
// if absent, and rope_theta.
void ReadRopeWithEntries(const ConfigReader& reader, const RopeDefaults& entries,
                         const RopeDefaults& window, int64_t head_dim, ModelConfig* config);

// DeepSeek applies yarn's temperature to the scores: scale times YarnMscale(mscale_all_dim)², once
// for queries and once for keys. Call after ReadRope.
void ScaleLatentScores(ModelConfig* config);

// Reads number and intermediate size of the experts, and top-k. The router is softmax without
// groups.
MoeModelConfig ReadMoe(const ConfigReader& reader, ConfigReader::Keys intermediate_keys);

// Reads n_group and topk_group (absent: the defaults), and checks their divisibility.
void ReadGroups(const ConfigReader& reader, int64_t default_groups, int64_t default_topk_groups,
                RouterConfig* router);

// Reads DeepSeek-V3's router: sigmoid scores, and groups scored by the sum of their two best
// experts. NoAuxDefaults has the values of absent keys: norm_topk_prob, routed_scaling_factor,
// n_group and topk_group.
struct NoAuxDefaults {
  bool renormalizes = true;
  double scale = 1.0;
  int64_t groups = 1, topk_groups = 1;
};
void ReadNoAuxRouter(const ConfigReader& reader, const NoAuxDefaults& defaults,
                     RouterConfig* router);
// Error if the router selects more experts than there are. `key`: the key that gives the number of
// selected experts.
void CheckTopK(const ConfigReader& reader, std::string_view key, const RouterConfig& router);

// Reads the number of shared experts (absent: `fallback`). Each is as wide as a routed expert;
// together they are one feed-forward. Call after ReadMoe.
void ReadSharedExperts(const ConfigReader& reader, ConfigReader::Keys keys, int64_t fallback,
                       ModelConfig* config);

// Reads mlp_layer_types if present: MoE in "sparse" layers, none in "dense" ones. Returns whether
// present.
bool ReadMlpLayerTypes(const ConfigReader& reader, ModelConfig* config);

// Layer i is a MoE layer if i >= first_k_dense_replace and i is a multiple of moe_layer_freq.
void MarkMoeLayersAfter(const ConfigReader& reader, int64_t default_dense, ModelConfig* config);
void MarkAllMoe(ModelConfig* config);
// MoE in every decoder_sparse_step-th layer that mlp_only_layers does not name.
void MarkSparseLayers(const ConfigReader& reader, ModelConfig* config);

// Reads layer_types if present: "sliding_attention" layers get `window`. Returns whether present.
bool ReadLayerTypes(const ConfigReader& reader, int64_t window, ModelConfig* config);
// Reads layer_types of models with linear attention, if present: "linear_attention" or
// "full_attention". Returns whether present.
bool ReadLinearLayerTypes(const ConfigReader& reader, ModelConfig* config);
// Error if all layers have linear attention.
void RequireFullLayer(const ConfigReader& reader, const ModelConfig& config);
// Reads sliding_window, the window of all layers; absent: no window.
void SetWindows(const ConfigReader& reader, ModelConfig* config);
// Layers without a sliding window get no rotary embedding.
void RotateWindowsOnly(ModelConfig* config);

// Tensor names that several families share.
TensorNames DefaultNames(const ModelConfig& config);
TensorNames NamesWithCorrectionBias(const ModelConfig& config);  // all other names are DefaultNames
TensorNames MixtralNames(const ModelConfig& config);

// Rejects a setting that is not implemented: Error if `key` is present and its value is not
// `wanted`.
void RequireString(const ConfigReader& reader, std::string_view key, std::string_view wanted);
void RequireOneOf(const ConfigReader& reader, std::string_view key, ConfigReader::Keys wanted);
void RequireTrue(const ConfigReader& reader, std::string_view key);
void RequireFalse(const ConfigReader& reader, std::string_view key);

}  // namespace switchyard
