// The decoder as one rank sees it: token rows in, logits out.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/device/communicator.h"
#include "core/parallel.h"
#include "core/tensor.h"
#include "kernels/draw_params.h"
#include "model/config.h"
#include "model/weights.h"

namespace switchyard {

class MovableExperts;
class ReplicaChooser;
class RoutingObserver;
namespace kernels {
class Device;
}

// The paged key/value cache's memory: one pair of tensors a layer (grouped: k and v [slots,
// kv_heads of this rank, D]; latent: one tensor [slots, kv_lora + rope] in `k`). Owned by the
// engine, written by the model. Each attention group has a cache of its own, split over its ranks.
class KvStorage {
 public:
  KvStorage() = default;
  KvStorage(const ModelConfig& config, const Mesh& mesh, int64_t num_pages, int32_t page_size,
            DType dtype);
  // In the memory of `device`, with a page more than num_pages for rows that fill up a batch.
  KvStorage(const ModelConfig& config, const Mesh& mesh, int64_t num_pages, int32_t page_size,
            DType dtype, kernels::Device& device);
  static size_t BytesPerToken(const ModelConfig& config, const Mesh& mesh,
                              DType dtype);  // of one rank

  int32_t page_size() const { return page_size_; }
  int64_t num_pages() const { return num_pages_; }
  DType dtype() const { return dtype_; }
  Tensor& k(int64_t layer) { return k_[layer]; }
  Tensor& v(int64_t layer) { return v_[layer]; }

 private:
  std::vector<Tensor> k_, v_;
  int64_t num_pages_ = 0;
  int32_t page_size_ = 1;
  DType dtype_ = DType::kF32;
};

// One forward pass of one attention group: the new rows of every sequence of its batch, one after
// the other, those that decode first. The same on every rank of the group. A group may have none.
struct ForwardBatch {
  std::vector<int32_t> tokens;     // [T]
  std::vector<int32_t> positions;  // [T]
  std::vector<int32_t> slots;      // [T] cache slot of each row's key and value
  std::vector<kernels::SequenceSpan> sequences;
  std::vector<int32_t> logit_rows;    // rows whose logits are wanted, ascending
  std::vector<uint64_t> request_ids;  // [sequences] EngineRequest::id; Forward does not read them
  int64_t decode_tokens = 0;    // the first rows: the one new row of each sequence that decodes
  bool routed_experts = false;  // whether Model::routed_experts is asked for
  // [logit_rows] where the model is to draw the tokens itself (Model::draws); else empty.
  std::vector<kernels::RowDraw> draws;
  // [dp] tokens.size(), decode_tokens and logit_rows.size() of each attention group, this one
  // included. May be left empty where there is only one.
  std::vector<int64_t> group_tokens, group_decode_tokens, group_logit_rows;
  bool groups_want_routed_experts = false;  // whether any group's batch has `routed_experts`

  int64_t num_tokens() const { return static_cast<int64_t>(tokens.size()); }
};

// Which GPU a rank computes on, and how (--device cuda).
struct GpuOptions {
  int index = 0;                               // of this host
  bool custom_all_reduce = true;               // --disable-custom-all-reduce
  bool graphs = true;                          // --disable-cuda-graph
  bool packs_experts = true;                   // the GPU has what 4-bit experts stay packed for
  int64_t graph_max_tokens = 0;                // --cuda-graph-max-bs: decode tokens of a group
  int64_t max_sequences = 0;                   // of one pass
  std::chrono::milliseconds timeout{300'000};  // of kernels that wait for a peer
  int ranks_per_host = 0;                      // 0: all are on one
};

struct ModelOptions {
  DType dtype =
      DType::kBF16;        // of the cache and of token rows in flight; sums are float32 throughout
  int64_t max_tokens = 0;  // most rows of one group in one pass: sizes activations and buffers
  int64_t context_length = 0;  // positions that occur: sizes the rope table; 0: all the model has
  MoeOptions moe;
  std::shared_ptr<const MoeBackends> backends;  // null: those of this program
  std::optional<GpuOptions> gpu;                // nothing: the CPU
  RoutingObserver* observer = nullptr;          // of the MoE layers, outlives the model; CPU only
  ReplicaChooser* chooser = nullptr;            // of the MoE layers, likewise
  bool movable_experts = false;                 // Model::movable_experts is asked for; CPU only
  std::string eplb_algorithm = "auto";          // plans for a recorded --init-expert-location
  int32_t page_size = 16;                       // of the cache that Forward will be given
  LoadOptions load;
};

// This rank's shard of the decoder. Owns weights and activations; borrows communicators, threads
// and the cache. The rank's thread calls Forward; all ranks of the world call it together, those of
// an attention group with equal batches.
class Model {
 public:
  Model(const std::filesystem::path& dir, ModelConfig config, ModelOptions options, RankComm& comm,
        ThreadPool& pool);
  ~Model();

  // A cache for this model, in the memory of what it computes on.
  KvStorage MakeCache(int64_t num_pages, int32_t page_size, DType dtype);
  // Logits of logit_rows, [rows, vocab], whole on every rank of the group; valid until the next
  // call.
  std::span<const float> Forward(const ForwardBatch& batch, KvStorage& kv);
  // Whether batches may have `draws`: Forward then leaves the logits where they are and returns
  // none, and drawn() has a token for each row, −1 where a logit is not finite.
  bool draws() const;
  std::span<const int32_t> drawn() const;
  // [T, layers, top_k] the logical experts that each row of the last batch was sent to, −1 for none
  // (dense layers have none at all). Empty where the batch did not ask.
  std::span<const int32_t> routed_experts() const;

  // [T] of the last batch: -1, or layer * 65536 + expert of a token's first router score that was
  // not finite. Of the tokens that this rank routed; empty on GPUs, which do not keep them.
  std::span<const int32_t> router_faults() const;
  // The ranks that have the same batches.
  Communicator& attention_group() const;

  // What re-balancing moves; null where ModelOptions did not ask.
  MovableExperts* movable_experts();

  const ModelConfig& config() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Symmetric memory that ranks of such a model need, to size the arena before they start.
size_t SymmetricBytesPerRank(const ModelConfig& config, const ModelOptions& options,
                             const MeshShape& shape);
// A line for the log: what the exchange of such a model, which has experts, takes of that.
std::string DescribeExchangeMemory(const ModelConfig& config, const ModelOptions& options,
                                   const MeshShape& shape);
// What a rank on a GPU takes there besides weights, cache and activations: buffers that its peers
// write into.
size_t GpuBytesPerRank(const ModelConfig& config, const ModelOptions& options,
                       const MeshShape& shape);
// Weights that one rank of such a model touches.
size_t WeightBytesPerRank(const ModelConfig& config, const ModelOptions& options, const Mesh& mesh);

}  // namespace switchyard
