// A rank's shard of a checkpoint, as views by role. Filled by the tensor names of its family
// (families/).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/mesh.h"
#include "core/tensor.h"
#include "kernels/ops.h"
#include "model/config.h"
#include "moe/layer_config.h"

namespace switchyard {

// Norms and biases are small and are held as float32. Matrices are views of the mapped file if
// they are used in their stored format, else of memory that holds the converted, quantized or
// generated weights.
struct LinearWeight {
  WeightView w;
  // float32 [n]; undefined: no bias. The bias of a row-parallel linear is on rank 0 of the group
  // only.
  Tensor bias;
  const float* bias_data() const { return bias.defined() ? bias.data<float>() : nullptr; }
};

// Grouped-query attention: heads are sharded over the ranks of an attention group in contiguous
// runs. So are KV heads; with more ranks than KV heads, each rank holds the head of its queries.
struct GroupedAttentionWeights {
  LinearWeight q, k, v;   // [heads · D, H], [kv_heads · D, H], [kv_heads · Dv, H] of this rank
  LinearWeight qkv;       // for devices with fused ops: q, k and v stacked; they are views of it
  LinearWeight o;         // [H, heads · Dv]: row-parallel
  LinearWeight gate;      // [heads · Dv, H] of this rank, with AttentionConfig::gate
  Tensor q_norm, k_norm;  // float32 [D] per head, or [heads · D] of this rank for QkNorm::kWhole
  Tensor sinks;           // float32 [heads of this rank], with LayerConfig::sinks
  // float32 [KV heads of this rank]: scales of an e4m3 cache, with
  // QuantizationConfig::cache_scales; undefined: 1.
  Tensor k_scales, v_scales;
};

// The indexer of sparse attention: replicated on every rank, so that all ranks select the same
// keys.
struct IndexWeights {
  LinearWeight q;      // [index_heads · index_head_dim, q_lora]
  LinearWeight k;      // [index_head_dim, H]
  Tensor k_norm;       // float32 [2, index_head_dim]: weight, then bias
  WeightView weights;  // [index_heads, H]
};

// MLA: heads are sharded; the latent projections and the latent cache are replicated on every rank.
struct LatentAttentionWeights {
  LinearWeight q;                // without q_lora: [heads · (nope + rope), H]
  LinearWeight q_a, q_b;         // with q_lora: [q_lora, H] whole; [heads · (nope + rope), q_lora]
  Tensor q_a_norm;               // float32 [q_lora]
  LinearWeight kv_a;             // [kv_lora + rope, H] whole
  Tensor kv_a_norm;              // float32 [kv_lora]
  std::vector<WeightView> k_up;  // per head of this rank: [nope, kv_lora], a part of kv_b_proj
  std::vector<WeightView> v_up;  // per head: [v_head_dim, kv_lora]
  LinearWeight o;                // [H, heads · v]: row-parallel
  LinearWeight gate;             // [heads, H] of this rank, with AttentionConfig::gate
  Tensor cache_scale;            // float32 [1], as GroupedAttentionWeights::k_scales
  std::optional<IndexWeights> index;  // with index_topk, in layers that select keys
};

// Projections of compressed entries (kernels/compressed.h), whole on every rank.
struct EntryWeights {
  LinearWeight rows, gates;  // [width, H], or [2 · width, H] if entries overlap
  Tensor bias;               // float32 [ratio, width or 2 · width]
  Tensor norm;               // float32 [width]
};

// Compressed attention: heads are sharded by whole output groups. All else is whole on every rank.
struct CompressedAttentionWeights {
  LinearWeight q_a, q_b;        // [q_lora, H]; [heads of this rank · D, q_lora]
  Tensor q_a_norm, q_norm;      // float32 [q_lora]; [D], all 1
  LinearWeight kv;              // [D, H]
  Tensor kv_norm;               // float32 [D]
  Tensor sinks;                 // float32 [heads of this rank]
  std::vector<WeightView> o_a;  // per output group of this rank: [output_rank, heads of it · D]
  LinearWeight o;               // [H, output groups · output_rank]: row-parallel
  std::optional<EntryWeights> entries;  // with LayerConfig::compress
  // With LayerConfig::overlaps: the indexer.
  LinearWeight index_q;      // [index_heads · index_head_dim, q_lora]
  WeightView index_weights;  // [index_heads, H]
  std::optional<EntryWeights> index_entries;
};

// The weights of a block's collapse of residual streams (kernels::CollapseStreamsParams).
struct StreamWeights {
  WeightView logits;   // [StreamLogits(n), n · H], or of the head [n, n · H]
  Tensor base, scale;  // float32
};

// Linear attention: key heads are sharded in contiguous runs, each with its value heads.
struct LinearAttentionWeights {
  // Projections of this rank. The concatenated outputs are rows of LinearLayout. `in`: one, or q,
  // k, v and z, which gates the output. `gates`: one, or b and a. gate_rank: `low` replaces z and
  // a. kMamba2: a only. kFixed: none.
  std::vector<LinearWeight> in, gates;
  // On GPUs: the rows of all of `in`, or of `gates`, for one product. Undefined if there is only
  // one projection, or if the device does not stack them.
  LinearWeight stacked_in, stacked_gates;
  // gate_rank: a = low_a · (low_in[0] · x), z = low_z · (low_in[1] · x). The inner projections
  // [gate_rank, H] are whole on every rank.
  std::vector<LinearWeight> low_in;
  LinearWeight low_a, low_z;
  Tensor conv;            // float32 [conv_width, LinearLayout::mixed_width]
  Tensor conv_bias;       // float32 [mixed_width], or undefined
  Tensor rate;            // float32 [value heads]: −exp(A_log)
  Tensor bias;            // float32 [value heads, decays]: dt_bias
  Tensor skip;            // float32 [value heads], kMamba2: D
  Tensor q_norm, k_norm;  // float32 [key_dim], or undefined (LinearAttentionConfig::qk_norm)
  // float32 [value_dim]; kMamba2: [value heads · value_dim] of this rank, normed by key head.
  // kFixed: the same, normed by norm_groups.
  Tensor norm;
  LinearWeight o;  // [H, value heads · value_dim]: row-parallel
};

struct LayerWeights {
  // float32 [H], or [2, H] if ModelConfig::layer_norm is set: weight, then bias. Undefined: no
  // norm. The first two norm the inputs of attention and of the feed-forward, the other two norm
  // their outputs.
  Tensor input_norm, post_attention_norm, attention_output_norm, feed_forward_output_norm;
  // A layer has one of the four, or none (LayerConfig::mixer).
  GroupedAttentionWeights grouped;
  LatentAttentionWeights latent;
  LinearAttentionWeights linear;
  CompressedAttentionWeights compressed;
  StreamWeights attention_streams, feed_forward_streams;  // with ModelConfig::streams
  kernels::ExpertWeights dense;  // dense layers: the feed-forward, replicated or its TP shard
  // With MoeModelConfig::latent: [latent, H] of the experts' input, [H, latent] of their output.
  LinearWeight latent_in, latent_out;
  MoeLayerWeights moe;        // MoE layers
  std::vector<Tensor> owned;  // copies that `moe` points into (biases, experts by token id)
};

// The input of a model with ModelConfig::takes_hidden(), from a token's embedding e and a hidden
// row h (HiddenInput, model/layers). Whole on every rank.
struct HiddenInputWeights {
  Tensor embedding_norm, hidden_norm;  // float32 [H]; EAGLE has none
  // MTP layers and EAGLE: projects e and h, concatenated, [H, 2 · H]. EAGLE3: projects a row of the
  // target, [H, target_row_width()]. MTP layers with residual streams: projects each stream of h,
  // [H, H].
  LinearWeight projection;
  LinearWeight embedding_projection;  // MTP layers with residual streams: projects e, [H, H]
};

struct ModelWeights {
  WeightView embedding;  // rows [vocab_begin, vocab_end) of the vocabulary
  int64_t vocab_begin = 0, vocab_end = 0;
  std::vector<LayerWeights> layers;
  std::optional<HiddenInputWeights> hidden_input;  // with ModelConfig::takes_hidden()
  // Of MTP layers after the first one (ModelConfig::mtp_depths); other models: empty.
  struct Depth {
    HiddenInputWeights hidden_input;
    Tensor final_norm;
  };
  std::vector<Depth> later_depths;
  Tensor final_norm;  // float32 [H], or [2, H] as in LayerWeights
  // This rank's rows of the vocabulary head (HeadRows); a tied head is a view of the embedding. A
  // classifier's head has all classes on every rank. An embedding model has no head.
  WeightView head;
  Tensor head_bias;            // float32 [rows of head], or undefined
  StreamWeights head_streams;  // with ModelConfig::streams
  size_t bytes_mapped = 0;     // mapped bytes of this rank's shard
};

struct LoadOptions {
  std::string load_format = "auto";  // auto | safetensors | dummy
  // Set by Model: all-to-all backends replicate the shared expert.
  bool replicated_shared_expert = false;
  std::vector<ExpertPlacement> placements;  // one for each layer; empty: trivial. Model sets it
  uint64_t dummy_seed = 0;
  // For a rank on a GPU: the type to which UploadWeights converts formats that the GPU's kernels
  // cannot multiply. Read by WeightBytesPerRank only.
  std::optional<DType> gpu_plain_dtype;
  // For a rank on a GPU: routed 4-bit experts stay packed. Read by WeightBytesPerRank only.
  bool packs_experts = false;
  // Called from the loading thread as bytes become resident: done and total bytes of this rank.
  std::function<void(size_t done, size_t total)> progress;
  // Whether matrices are read or generated. If not, their contents are undefined, for a device that
  // holds them already. Vectors are read in any case.
  bool read_data = true;
  bool check_nan_scales = true;  // rejects NaN scales and NaN float8 weights
  int threads = 1;               // number of threads that fill memory; Model sets it
};

// Loads this rank's shard; on a rank without attention (Mesh::attends) only its routed experts, and
// all other weights are undefined. Errors name the file and tensor: missing or truncated files,
// tensors outside their file, overlapping ranges, shape or dtype that contradicts config.json,
// missing tensors (the first five and how many), NaN scales.
ModelWeights LoadWeights(const std::filesystem::path& dir, const ModelConfig& config,
                         const Mesh& mesh, const LoadOptions& options);

// Checks the whole checkpoint's headers against config.json without reading data; `serve` runs it
// before any rank starts. Returns the total bytes of the tensors that the model uses.
size_t CheckCheckpoint(const std::filesystem::path& dir, const ModelConfig& config);
// Error kInvalid if the head that config.reduced_head reduces is quantized in a safetensors
// checkpoint, or has another shape than config.json says. Reads headers only. Error kNotFound if
// files are missing; a missing tensor is no error.
void CheckReducedHead(const std::filesystem::path& dir, const ModelConfig& config);
// Bytes of weights that one rank reads, from config.json alone.
size_t WeightBytesPerRank(const ModelConfig& config, const Mesh& mesh,
                          const LoadOptions& options = {});
// Bytes of one routed expert on one rank, in the first layer that has experts, from config.json
// alone. Requires a model with experts.
size_t ExpertBytes(const ModelConfig& config, const Mesh& mesh, const LoadOptions& options);

}  // namespace switchyard
