// The normalised configuration of a model: config.json of every family is read into this.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "kernels/ops.h"
#include "kernels/state_rule.h"
#include "kernels/streams.h"
#include "model/config_quantization.h"
#include "model/pooling.h"
#include "moe/router/router.h"

namespace switchyard {

struct RopeConfig {
  enum class Type : uint8_t { kDefault, kLinear, kLlama3, kYarn, kDynamic, kLongRope };
  Type type = Type::kDefault;
  double theta = 10000.0;
  double factor = 1.0;
  int64_t original_max_position = 0;
  std::vector<float> short_factor, long_factor;          // longrope; [rotary_dim / 2] each
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  // llama3
  double beta_fast = 32.0, beta_slow = 1.0;              // yarn
  double mscale = 0.0, mscale_all_dim = 0.0;             // yarn; 0: absent
  std::optional<double> attention_factor;  // yarn, longrope; overrides the computed factor
  // longrope: the factor for positions past the original length; absent: attention_factor.
  std::optional<double> long_attention_factor;
  bool truncate = true;      // yarn: whether the correction range is rounded to integers
  int64_t rotary_dim = 0;    // rotated elements of a head; 0: no layer has rotary embedding
  bool interleaved = false;  // pairs (2i, 2i + 1)
  // Dtype to which frequencies are rounded before angles are computed (key "rope_frequency_dtype").
  // transformers uses float32. A model trained or evaluated with bfloat16 frequencies needs
  // bfloat16 here; the difference grows with the position.
  DType frequency_dtype = DType::kF32;
};

struct AttentionConfig {
  // kCompressed: DeepSeek-V4. One row is key and value of all heads. Layers attend to a sliding
  // window, and to compressed entries (LayerConfig::compress).
  enum class Kind : uint8_t { kGrouped, kLatent, kCompressed };
  enum class QkNorm : uint8_t { kNone, kPerHead, kWhole };
  Kind kind = Kind::kGrouped;
  int64_t heads = 0;
  int64_t kv_heads = 0;    // grouped; a layer may have its own number (LayerConfig::kv_heads)
  int64_t head_dim = 0;    // grouped: of q and k; latent: qk_nope + qk_rope
  int64_t v_head_dim = 0;  // of v; grouped, 0: head_dim
  QkNorm qk_norm = QkNorm::kNone;
  bool qk_norm_weight = true;  // false: norms of q and k have no weights; kPerHead only
  bool qkv_bias = false;
  bool output_bias = false;
  float value_scale = 1.0f;  // grouped: factor of v
  float clip_qkv = 0.0f;  // grouped: q, k and v are clamped to [-clip_qkv, clip_qkv]; 0: no clamp
  bool norm_after_rope = false;  // grouped: norms of q and k follow the rotary embedding
  // Heads' output times sigmoid of a projection. Latent: one gate for each head.
  bool gate = false;
  // With `gate`: the projection of q gives for each head its query, then its gate, and there is no
  // other projection of gates.
  bool gate_in_q = false;
  int64_t input_width = 0;  // grouped: elements of an input row of q, k and v; 0: the hidden size
  // Queries at position p are scaled by 1 + query_scale_beta · ln(1 + floor((p +
  // query_scale_offset) / query_scale_positions)), as in Llama 4 and Mistral 4. Latent: in all
  // layers; grouped: in layers without rotary embedding. 0: not scaled.
  double query_scale_beta = 0.0;
  int64_t query_scale_positions = 1, query_scale_offset = 0;
  float scale = 1.0f;  // scale of the logits, including yarn's mscale² if the family uses it
  // Latent attention (MLA).
  int64_t q_lora_rank = 0;  // 0: q is one projection
  int64_t kv_lora_rank = 0;
  int64_t qk_nope_head_dim = 0, qk_rope_head_dim = 0;
  float latent_scale = 1.0f;  // factor of normed latents; loading includes it in their norm
  // DeepSeek Sparse Attention (latent only): a query attends to the index_topk keys that an indexer
  // selects (kernels::SelectKeys). 0: no indexer, and attention to all keys.
  int64_t index_topk = 0;
  int64_t index_heads = 0, index_head_dim = 0;
  bool index_interleaved = false;  // RopeConfig::interleaved of the indexer
  // MTP layers only: drafts after the first one attend to the keys that the first one has selected
  // (kernels::InheritKeys). false: each draft selects its own keys.
  bool drafts_share_index = false;
  // Compressed: heads, head_dim, q_lora_rank, qk_rope_head_dim (the last elements of a head), and
  // the sizes of the indexer, which selects entries. The output has a projection to output_rank
  // elements for each of output_groups groups of heads, then a joint one.
  int64_t output_groups = 0, output_rank = 0;

  // Elements of a value of one head.
  int64_t value_dim() const { return v_head_dim > 0 ? v_head_dim : head_dim; }
};

// Linear attention (kernels/recurrent.h). A key head serves value_heads / key_heads consecutive
// value heads.
struct LinearAttentionConfig {
  // kDelta: gated DeltaNet. kKeyDelta: Kimi Delta Attention. kMamba2: q, k and v are C, B and x.
  // kFixed: Lightning Attention, whose heads are key heads with one value head each.
  kernels::StateRule rule = kernels::StateRule::kDelta;
  int64_t key_heads = 0, value_heads = 0;
  int64_t key_dim = 0, value_dim = 0;  // of a head
  int64_t conv_width = 0;  // rows that the short convolution reads; 1 without one (convolves)
  // Whether the checkpoint has a projection for q, k and v, one for z, b and a each, with rows by
  // head. Else one has q, k, v and z of each key head, and one b and a of each (LinearLayout).
  // kDelta only: others have their own projections.
  bool separate = false;
  // kKeyDelta: a and z are products of two projections with this many elements between them; 0: one
  // projection each.
  int64_t gate_rank = 0;
  float bound = 0.0f;            // kKeyDelta: GatedDeltaParams::bound
  bool conv_bias = false;        // the convolution adds a bias
  bool projection_bias = false;  // kMamba2, kFixed: projections have biases
  float min_step = 0.0f;         // kMamba2: the smallest step
  bool qk_norm = false;          // kFixed: each head of q and k is normed
  int64_t norm_groups = 0;       // kFixed: groups of adjacent elements of the output, each normed
  bool silu_gate = false;        // kFixed: the output's gate is SiLU, else sigmoid
  std::string_view heads_key = "linear_num_key_heads";  // key of config.json, for messages

  int64_t group() const { return value_heads / key_heads; }
  // Whether a short convolution precedes the rule. With kFixed, norms and the rotary embedding do.
  bool convolves() const { return rule != kernels::StateRule::kFixed; }
  // Decays of a value head, as GatedDeltaParams::decays.
  int64_t decays() const { return rule == kernels::StateRule::kKeyDelta ? key_dim : 1; }
};

// Residual streams (kernels/streams.h).
struct StreamsConfig {
  int64_t count = 0;  // rows of the residual of a token
  int iterations = 0;
  float eps = 1e-6f;

  // Elements of the logits of a block's weights, and of the head's.
  int64_t logits() const { return kernels::StreamLogits(count); }
};

struct LayerConfig {
  // Layers of Nemotron-H have either a mixer, which is attention or linear attention, or a
  // feed-forward.
  bool mixer = true, feed_forward = true;
  bool moe = false;
  // Linear attention instead of AttentionConfig. Its recurrent states replace keys and values
  // (model/state_storage.h).
  bool linear = false;
  float decay = 0.0f;  // with StateRule::kFixed: the factor of the rates of the layer's heads
  // A MoE layer of LongCat-Flash. A dense feed-forward reads the same rows as the
  // router, and its output is added before the next layer. The output of the experts is added after
  // the next layer, which is dense and in the same pipeline stage.
  bool shortcut = false;
  // A MoE layer with a dense feed-forward that reads the same rows as the router, and whose output
  // is added to that of the experts. It replaces a shared expert of another width than the routed
  // ones (MoeModelConfig::latent).
  bool dense_beside = false;
  int64_t intermediate = 0;  // of the dense feed-forward; 0: ModelConfig::intermediate
  bool rope = true;          // false: no rotary embedding (NoPE)
  bool qk_norm = true;       // false: none of AttentionConfig::qk_norm; grouped only
  bool sinks = false;        // attention sinks; grouped only
  int32_t window = 0;        // sliding window; 0: full attention
  // Grouped only: attention within chunks of this many positions (AttentionParams::chunk in
  // kernels/ops.h). 0: no chunks.
  int32_t chunk = 0;
  int64_t kv_heads = 0;  // grouped only; 0: AttentionConfig::kv_heads
  // With AttentionConfig::index_topk: the layer has no indexer, and attends to the keys that the
  // layer before attends to. Both are in the same pipeline stage.
  bool shared_index = false;
  // Compressed attention: positions of an entry; 0: no entries. `overlaps`: an entry also covers
  // the positions of the entry before, and an indexer selects entries.
  int32_t compress = 0;
  bool overlaps = false;
  bool by_token = false;  // RouterConfig::by_token of a MoE layer

  bool attends() const { return mixer && !linear; }          // has keys and values
  bool has_state() const { return linear || compress > 0; }  // a recurrent state
  // Has a dense feed-forward.
  bool dense() const { return feed_forward && (!moe || shortcut || dense_beside); }
  bool operator==(const LayerConfig&) const = default;
};

struct MoeModelConfig {
  RouterConfig router;
  int64_t intermediate = 0;  // width of one routed expert
  // Elements of the rows that the routed experts read and write; 0: the hidden size. A linear
  // projects each row before dispatch, and another one their sum. The router reads hidden rows.
  int64_t latent = 0;
  int64_t shared_intermediate = 0;  // total of the shared expert(s); 0: none
  bool shared_gate = false;
};

// A head that drafts for another model, the target, from its hidden rows (EAGLE, EAGLE3).
struct EagleConfig {
  bool inner_rows = false;  // EAGLE3: rows of inner layers; EAGLE: rows after the final norm
  // EAGLE3: a row of the target is the concatenated inputs of these layers, ascending. The number
  // of the target's layers stands for the output of its last one.
  std::vector<int64_t> target_layers;
  int64_t target_hidden = 0;  // hidden size of the target
  bool projection_bias = false;
  bool norm_before_residual = false;  // EAGLE3: the residual stream begins with the normed row
  bool own_embedding = false;         // false: the embedding is the target's
  bool own_head = false;              // false: the head is the target's
  int64_t draft_vocab = 0;  // rows of the head, if it has fewer than the vocabulary; 0: all
};

// Floats of the states of unfinished blocks (kernels/compressed.h), in the layers where they are
// largest: of entries, and of index entries. 0: no layer has such blocks.
struct EntryStates {
  int64_t entries = 0, index = 0;
};

struct ReducedHead;

struct ModelConfig {
  std::string architecture;   // architecture of the decoder: "Qwen3MoeForCausalLM"
  std::string tensor_prefix;  // precedes the decoder's tensors in a multimodal checkpoint, or empty
  DType dtype = DType::kBF16;  // dtype of the checkpoint's plain tensors
  int64_t vocab_size = 0;
  int64_t hidden = 0;
  int64_t intermediate = 0;  // width of the feed-forward in dense layers
  int64_t max_position = 0;
  // Longest context of the rope scaling (factor x original positions), at least max_position.
  int64_t longest_context() const;
  float norm_eps = 1e-6f;
  bool layer_norm = false;  // norms subtract the mean and have a bias
  // Norms of rows, of q and of k multiply by 1 + weight. Loading adds the 1.
  bool centred_norms = false;
  float embedding_scale = 1.0f;  // factor of the embedding's rows
  float logit_scale = 1.0f;      // factor of the logits; loading includes it in the final norm
  bool head_bias = false;        // the head adds a bias
  bool tie_embeddings = false;
  AttentionConfig attention;
  std::optional<LinearAttentionConfig> linear;  // if any layer has linear attention
  std::optional<StreamsConfig> streams;         // unset: the residual of a token is one row
  RopeConfig rope;
  // Of layers with a sliding window, without compressed entries, and of linear attention; unset:
  // `rope`.
  std::optional<RopeConfig> window_rope;
  kernels::Activation activation = kernels::Activation::kSwiGlu;
  float swiglu_alpha = 1.702f, swiglu_limit = 7.0f;
  std::optional<MoeModelConfig> moe;
  std::vector<LayerConfig> layers;
  // Number of multi-token prediction (MTP) layers after the last layer (num_nextn_predict_layers).
  // They are not in `layers`.
  int64_t mtp_layers = 0;
  // The layers of an MTP layer: attention and feed-forward are two of them in Nemotron-H. Empty:
  // one layer of the kind of the last layer.
  std::vector<LayerConfig> mtp_block;
  // MTP layers read rows before the final norm: those of the target, and their own for later
  // drafts. With `streams` such a row has all streams of a token.
  bool mtp_before_norm = false;
  // MTP layer i is trained to guess the token i + 2 positions after the target's row that it reads.
  // So each draft of a step has a layer of its own (MtpConfigOf, `mtp_depths`).
  bool mtp_by_depth = false;
  // Set by MtpConfigOf: the number of MTP layers, each of which has an input and a final norm of
  // its own. A pass runs layer ForwardBatch::depth only. 1: one MTP layer, which makes all drafts.
  int64_t mtp_depths = 1;
  // Set by MtpConfigOf and StageConfigOf. is_mtp: the model is an MTP layer. first_layer: the
  // number of its first layer in the checkpoint.
  bool is_mtp = false;
  int64_t first_layer = 0;
  // Set by StageConfigOf: the number of the whole model's first MoE layer; -1: `layers` has it.
  int64_t first_moe_layer = -1;
  int64_t whole_routed_width = -1;  // set by StageConfigOf: of the whole model
  int64_t whole_layers = -1;        // set by StageConfigOf: num_layers of the whole model
  // Set by StageConfigOf: StateStorage::EntryFloats of the whole model. A state has this size on
  // all stages, as prefill and decode workers with other stages expect.
  EntryStates whole_entry_states;
  // Set by StageConfigOf (model/stages.h): whether a pipeline stage has the embedding, and the
  // final norm and the head.
  bool has_embedding = true, has_head = true;
  // Without has_embedding: the embedding is loaded nevertheless, for an EAGLE head
  // (ModelOptions::target).
  bool lends_embedding = false;
  std::optional<EagleConfig> eagle;  // set by LoadEagleConfig (model/config_eagle.h)
  // Of a draft model whose head has the rows of some tokens only (--speculative-token-map); null:
  // all rows that are stored.
  std::shared_ptr<const ReducedHead> reduced_head;
  std::vector<int32_t> eos_token_ids;  // union of config.json and generation_config.json
  std::optional<int32_t> bos_token_id;

  // Keys of config.json that no reader has read, and whose effect is unknown (config_keys.h).
  std::vector<std::string> unknown_keys;

  QuantizationConfig quantization;
  // For benchmarks with dummy weights: the routers of a layer choose the same experts for all rows
  // (FinishRouters).
  bool same_experts = false;
  // Set by SkewRouting (model/weights/routers.h): the exponent of the popularity of experts.
  std::optional<double> expert_skew;
  bool causal = true;  // false: attention in both directions
  // Set: the model embeds or classifies prompts, and has no vocabulary head.
  std::optional<PoolingConfig> pooling;

  // Elements of a row of the head's output: a logit for each id or class, or the hidden state.
  int64_t output_width() const {
    if (!pooling) return head_rows();
    return pooling->classifies() ? static_cast<int64_t>(pooling->labels.size()) : hidden;
  }
  // Rows of the vocabulary's head on all ranks together.
  int64_t head_rows() const;
  // Whether rows of the input include hidden rows of a target (ForwardBatch::hidden).
  bool takes_hidden() const { return is_mtp || eagle; }
  // Elements of a hidden row that a pass keeps for the next pass of the same model.
  int64_t hidden_row_width() const { return is_mtp && mtp_before_norm ? residual_width() : hidden; }
  // With takes_hidden(): elements of a hidden row of the target.
  int64_t target_row_width() const {
    if (!eagle) return hidden_row_width();
    return eagle->inner_rows
               ? static_cast<int64_t>(eagle->target_layers.size()) * eagle->target_hidden
               : eagle->target_hidden;
  }
  // KV heads of a layer with grouped attention.
  int64_t kv_heads(int64_t layer) const {
    return layers[layer].kv_heads > 0 ? layers[layer].kv_heads : attention.kv_heads;
  }
  // Whether a layer selects keys itself (AttentionConfig::index_topk).
  bool has_indexer(int64_t layer) const {
    if (attention.kind == AttentionConfig::Kind::kCompressed) return layers[layer].overlaps;
    return attention.index_topk > 0 && !layers[layer].shared_index;
  }
  bool uses_window_rope(int64_t layer) const {
    const LayerConfig& of = layers[layer];
    return window_rope && (of.linear || (of.window > 0 && of.compress == 0));
  }
  const RopeConfig& rope_of(int64_t layer) const {
    return uses_window_rope(layer) ? *window_rope : rope;
  }
  int64_t attention_input_width() const {
    return attention.input_width > 0 ? attention.input_width : hidden;
  }

  bool has_shortcuts() const { return std::ranges::any_of(layers, &LayerConfig::shortcut); }
  // Whether some MoE layers have a dense feed-forward that runs in the place of a shared expert.
  bool has_dense_beside() const {
    return has_shortcuts() || std::ranges::any_of(layers, &LayerConfig::dense_beside);
  }
  // Intermediate size of a layer's dense feed-forward.
  int64_t dense_width(int64_t layer) const {
    return layers[layer].intermediate > 0 ? layers[layer].intermediate : intermediate;
  }
  // Elements of the rows of the routed experts.
  int64_t expert_row_width() const { return moe && moe->latent > 0 ? moe->latent : hidden; }
  bool has_moe() const { return moe.has_value(); }
  bool has_linear() const { return std::ranges::any_of(layers, &LayerConfig::linear); }
  bool has_entries() const {
    return std::ranges::any_of(layers, [](const LayerConfig& l) { return l.compress > 0; });
  }
  // Whether sequences have recurrent states in addition to keys and values: those of linear
  // attention, or of unfinished blocks of compressed attention.
  bool has_states() const { return std::ranges::any_of(layers, &LayerConfig::has_state); }
  // Whether a MoE layer routes by token ids.
  bool has_token_routing() const { return std::ranges::any_of(layers, &LayerConfig::by_token); }
  // Elements of the residual of a token.
  int64_t residual_width() const { return hidden * (streams ? streams->count : 1); }
  int64_t num_layers() const { return static_cast<int64_t>(layers.size()); }
  // Experts that a token chooses in all layers, those of other pipeline stages included; dense
  // layers count as MoE layers. 0 without experts.
  int64_t routed_width() const {
    if (whole_routed_width >= 0) return whole_routed_width;
    return moe ? num_layers() * moe->router.top_k : 0;
  }
};

// The rows of a head that a draft model computes, so that it reads less of a large head (FR-Spec:
// Zhao et al., https://arxiv.org/abs/2502.14856). The embedding keeps all rows.
struct ReducedHead {
  std::vector<int32_t> tokens;  // the token of each row, ascending; not empty
  // For an EAGLE head without rows of its own: the target, which stores them, and the path of its
  // checkpoint. Null: the rows are in the draft model's checkpoint.
  std::shared_ptr<const ModelConfig> owner;
  std::filesystem::path owner_dir;
};

inline int64_t ModelConfig::head_rows() const {
  if (reduced_head) return static_cast<int64_t>(reduced_head->tokens.size());
  return eagle && eagle->draft_vocab > 0 ? eagle->draft_vocab : vocab_size;
}

// The model that consists of the first MTP layer of `target`, for drafts. Its input is a hidden row
// of the target, or of itself, and the next token (ForwardBatch::hidden). Error kInvalid if the
// target has none. `by_depth`: with ModelConfig::mtp_by_depth, all MTP layers of the target.
ModelConfig MtpConfigOf(const ModelConfig& target, bool by_depth = false);
// The inputs of layers that `draft` reads (ModelOptions::kept_inputs). Empty: it reads rows after
// the final norm, or none. `target`: the part of the target that ends with its last layer.
std::vector<int64_t> InputsReadBy(const ModelConfig& draft, const ModelConfig& target);

// Reads DIR/config.json (and generation_config.json if it exists), with the reader of its family
// (families/). If FindGguf(dir) finds a GGUF file, its metadata replaces both (gguf/gguf_config.h),
// and `flags` may name neither a method nor rules. Both the hub's spelling of keys and that of
// transformers 5 are accepted. Errors name the file and key: unknown architecture (with the known
// ones), missing keys, wrong types, sizes out of range, sizes that contradict one another.
// `overrides`: a JSON object whose keys replace config.json's (--json-model-override-args); may be
// empty. `flags`: see ApplyFlags (model/config_quantization.h). If config.json has no
// quantization_config, ModelOpt's hf_quant_config.json is used.
ModelConfig LoadModelConfig(const std::filesystem::path& dir, std::string_view overrides = {},
                            const QuantizationFlags& flags = {}, const PoolingFlags& pooling = {});
ModelConfig ParseModelConfig(std::string_view config_json,
                             std::string_view generation_config_json = {},
                             const QuantizationFlags& flags = {});
std::vector<std::string> KnownArchitectures();
std::vector<std::string> MtpArchitectures();  // architectures whose MTP layers can draft

}  // namespace switchyard
