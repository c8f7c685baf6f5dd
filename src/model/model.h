// One rank's shard of the decoder: token rows in, logits out.
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

// Memory of the paged KV cache, per layer. Grouped attention: k and v, [slots, kv_heads of this
// rank, D] each. Latent attention: one tensor [slots, kv_lora + rope] in `k`. Owned by the engine,
// written by the model. Each attention group has its own cache, sharded over its ranks.
class KvStorage {
 public:
  KvStorage() = default;
  KvStorage(const ModelConfig& config, const Mesh& mesh, int64_t num_pages, int32_t page_size,
            DType dtype);
  // In the memory of `device`, with one page beyond num_pages for padding rows of a batch.
  KvStorage(const ModelConfig& config, const Mesh& mesh, int64_t num_pages, int32_t page_size,
            DType dtype, kernels::Device& device);
  static size_t BytesPerToken(const ModelConfig& config, const Mesh& mesh,
                              DType dtype);  // of one rank

  int32_t page_size() const { return page_size_; }
  int64_t num_pages() const { return num_pages_; }
  DType dtype() const { return dtype_; }
  Tensor& k(int64_t layer) { return k_[layer]; }
  Tensor& v(int64_t layer) { return v_[layer]; }

  // [slots] the router fault (moe/router_fault.h) of the token at each slot, if this rank routed
  // it; null without experts. A record per slot outlives its pass, so the host need not read it
  // after a pass without logits.
  int32_t* router_faults() {
    return router_faults_.defined() ? router_faults_.data<int32_t>() : nullptr;
  }
  // The first fault of each sequence, over all its keys; 0: none. Waits for `device`, whose memory
  // this cache is in.
  std::vector<int32_t> RouterFaultsOf(std::span<const kernels::SequenceSpan> sequences,
                                      kernels::Device& device) const;

 private:
  std::vector<Tensor> k_, v_;
  Tensor router_faults_;
  int64_t num_pages_ = 0;
  int32_t page_size_ = 1;
  DType dtype_ = DType::kF32;
};

// One forward pass of one attention group: the new rows of every sequence of its batch,
// concatenated, decoding sequences first. Equal on every rank of the group. A group may have none.
struct ForwardBatch {
  std::vector<int32_t> tokens;     // [T]
  std::vector<int32_t> positions;  // [T]
  std::vector<int32_t> slots;      // [T] cache slot of each row's key and value
  std::vector<kernels::SequenceSpan> sequences;
  std::vector<int32_t> logit_rows;    // rows whose logits are computed, ascending
  std::vector<uint64_t> request_ids;  // [sequences] EngineRequest::id; Forward does not read them
  int64_t decode_tokens = 0;          // leading rows: the one new row of each decoding sequence
  bool routed_experts = false;        // whether Model::routed_experts is needed
  // [logit_rows] if the model draws the tokens itself (Model::draws); else empty.
  std::vector<kernels::RowSampling> draws;
  // [dp] tokens.size(), decode_tokens and logit_rows.size() of each attention group, this one
  // included. May be empty if there is only one.
  std::vector<int64_t> group_tokens, group_decode_tokens, group_logit_rows;
  bool groups_want_routed_experts = false;  // whether any group's batch has `routed_experts`

  int64_t num_tokens() const { return static_cast<int64_t>(tokens.size()); }
};

// The GPU of a rank and its settings (--device cuda).
struct GpuOptions {
  int index = 0;                               // of this host
  bool custom_all_reduce = true;               // --disable-custom-all-reduce
  bool graphs = true;                          // --disable-cuda-graph
  bool packs_experts = true;                   // the GPU has kernels for packed 4-bit experts
  int64_t graph_max_tokens = 0;                // --cuda-graph-max-bs: decode tokens of a group
  int64_t max_sequences = 0;                   // of one pass
  std::chrono::milliseconds timeout{300'000};  // of kernels that wait for a peer
  int ranks_per_host = 0;                      // 0: all ranks are on one host
};

struct ModelOptions {
  DType dtype = DType::kBF16;  // of the cache and of exchanged token rows; sums are always float32
  int64_t max_tokens = 0;      // most rows of one group in one pass: sizes activations and buffers
  int64_t context_length = 0;  // positions: sizes the RoPE table; 0: the model's maximum
  MoeOptions moe;
  std::shared_ptr<const MoeBackends> backends;  // null: those of this program
  std::optional<GpuOptions> gpu;                // none: CPU
  RoutingObserver* observer = nullptr;          // of the MoE layers, outlives the model; CPU only
  ReplicaChooser* chooser = nullptr;            // of the MoE layers, likewise
  bool movable_experts = false;                 // enables Model::movable_experts; CPU only
  std::string eplb_algorithm = "auto";          // planner for a recorded --init-expert-location
  int32_t page_size = 16;                       // of the cache passed to Forward
  LoadOptions load;
};

// This rank's shard of the decoder. Owns weights and activations; borrows communicators, threads
// and the cache. The rank's thread calls Forward. All ranks of the world call Forward together;
// ranks of an attention group pass equal batches.
class Model {
 public:
  Model(const std::filesystem::path& dir, ModelConfig config, ModelOptions options, RankComm& comm,
        ThreadPool& pool);
  ~Model();

  // A cache for this model, in the memory of its device.
  KvStorage MakeCache(int64_t num_pages, int32_t page_size, DType dtype);
  // Logits of logit_rows, [rows, vocab], complete on every rank of the group; valid until the next
  // call.
  std::span<const float> Forward(const ForwardBatch& batch, KvStorage& kv);
  // Whether batches may have `draws`. Forward then keeps the logits on the device and returns
  // none; drawn() has a token for each row, −1 where a logit is not finite.
  bool draws() const;
  std::span<const int32_t> drawn() const;
  // [T, layers, top_k] logical experts that each row of the last batch was routed to, −1 for none
  // (always in dense layers). Empty if the batch did not request them.
  std::span<const int32_t> routed_experts() const;

  // The first router fault (moe/router_fault.h) of each sequence of the batch, among the tokens
  // that this rank routed in this pass or earlier ones; 0: none.
  std::vector<int32_t> RouterFaults(const ForwardBatch& batch, const KvStorage& kv) const;
  // The ranks with the same batches.
  Communicator& attention_group() const;

  // The interface for rebalancing; null unless ModelOptions::movable_experts.
  MovableExperts* movable_experts();

  const ModelConfig& config() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Symmetric memory per rank, to size the arena before the ranks start.
size_t SymmetricBytesPerRank(const ModelConfig& config, const ModelOptions& options,
                             const MeshShape& shape);
// A log line: the part of that memory that the exchange takes. Requires a model with experts.
std::string DescribeExchangeMemory(const ModelConfig& config, const ModelOptions& options,
                                   const MeshShape& shape);
// Device memory of a rank on a GPU besides weights, cache and activations: buffers that its peers
// write to.
size_t GpuBytesPerRank(const ModelConfig& config, const ModelOptions& options,
                       const MeshShape& shape);
// Bytes of weights that one rank reads.
size_t WeightBytesPerRank(const ModelConfig& config, const ModelOptions& options, const Mesh& mesh);

}  // namespace switchyard
