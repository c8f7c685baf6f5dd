// A rank's share of a checkpoint, as views by role. Filled by the family's page of names
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
#include "moe/layer.h"

namespace switchyard {

// Norms and biases are small and are held as float32. Matrices are views of the mapped file where
// they are used as they are stored, else of memory they were converted into, packed into or made up
// in.
struct LinearWeight {
  WeightView w;
  Tensor bias;  // float32 [n], undefined: none. Row-parallel linears carry it on their group's rank
                // 0 only.
  const float* bias_data() const { return bias.defined() ? bias.data<float>() : nullptr; }
};

// Grouped-query attention: heads are split over the ranks of an attention group in contiguous runs;
// KV heads too, and where the ranks exceed them each holds the one its query heads use.
struct GroupedAttentionWeights {
  LinearWeight q, k, v;   // [heads · D, H], [kv_heads · D, H] of this rank
  LinearWeight qkv;       // of devices with fused ops: the three, which are then parts of it
  LinearWeight o;         // [H, heads · D]: row-parallel
  Tensor q_norm, k_norm;  // float32 [D] per head, or [heads · D] of this rank for QkNorm::kWhole
  Tensor sinks;           // float32 [heads of this rank]
};

// MLA: heads are split; the latent projections and the latent cache are whole on every rank.
struct LatentAttentionWeights {
  LinearWeight q;                // without q_lora: [heads · (nope + rope), H]
  LinearWeight q_a, q_b;         // with q_lora: [q_lora, H] whole; [heads · (nope + rope), q_lora]
  Tensor q_a_norm;               // float32 [q_lora]
  LinearWeight kv_a;             // [kv_lora + rope, H] whole
  Tensor kv_a_norm;              // float32 [kv_lora]
  std::vector<WeightView> k_up;  // per head of this rank: [nope, kv_lora], a part of kv_b_proj
  std::vector<WeightView> v_up;  // per head: [v_head_dim, kv_lora]
  LinearWeight o;                // [H, heads · v]: row-parallel
};

struct LayerWeights {
  Tensor input_norm, post_attention_norm;  // float32 [H]
  GroupedAttentionWeights grouped;         // one of the two
  LatentAttentionWeights latent;
  kernels::ExpertWeights dense;  // dense layers: the feed-forward, whole or its TP slice
  MoeLayerWeights moe;           // MoE layers
  std::vector<Tensor> owned;     // float32 copies that `moe` points into (biases)
};

struct ModelWeights {
  WeightView embedding;  // rows [vocab_begin, vocab_end) of the vocabulary
  int64_t vocab_begin = 0, vocab_end = 0;
  std::vector<LayerWeights> layers;
  Tensor final_norm;        // float32 [H]
  WeightView head;          // HeadRows of the vocabulary; of the embedding where tied
  size_t bytes_mapped = 0;  // of this rank's share
};

struct LoadOptions {
  std::string load_format = "auto";  // auto | safetensors | dummy
  bool whole_shared_expert = false;  // a2a backends: the shared expert is not split; Model sets it
  std::vector<ExpertPlacement> placements;  // one for each layer; empty: trivial. Model sets it
  uint64_t dummy_seed = 0;
  // Of a GPU's rank: what formats that its kernels do not multiply become when they are placed
  // there (PlaceWeights). Read by WeightBytesPerRank alone.
  std::optional<DType> placed_as;
  // And there: routed experts of 4 bits stay as they are. Read by WeightBytesPerRank alone.
  bool packs_experts = false;
  // Called as bytes become resident, from the loading thread: done and total of this rank.
  std::function<void(size_t done, size_t total)> progress;
  bool check_nan_scales = true;  // and weights of float8 that are NaN
  int threads = 1;               // that fill memory; Model sets it
};

// Loads this rank's share. Error names the file and tensor: missing or truncated files, headers
// outside the file, overlapping ranges, shape or dtype that contradicts config.json, missing
// tensors (the first five and how many), NaN scales.
ModelWeights LoadWeights(const std::filesystem::path& dir, const ModelConfig& config,
                         const Mesh& mesh, const LoadOptions& options);

// Checks the whole checkpoint's headers against config.json without touching data: what `serve`
// runs before any rank starts. Returns the total bytes of the tensors the model uses.
size_t CheckCheckpoint(const std::filesystem::path& dir, const ModelConfig& config);
// Bytes of weights one rank touches, from config.json alone.
size_t WeightBytesPerRank(const ModelConfig& config, const Mesh& mesh,
                          const LoadOptions& options = {});

}  // namespace switchyard
