// One rank's shard of the decoder: token rows in, logits out.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/device/communicator.h"
#include "core/parallel.h"
#include "kernels/best_tokens.h"
#include "kernels/gpus.h"
#include "model/config.h"
#include "model/forward_batch.h"
#include "model/kv_storage.h"
#include "model/options.h"
#include "model/state_storage.h"

namespace switchyard {

class MovableExperts;

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
  // Recurrent states for this model, in the memory of its device (KvStorage::SetStates). Empty if
  // the model has none.
  StateStorage MakeStates(int64_t slots);
  // Logits of logit_rows, [rows, vocab], complete on every rank of the group; valid until the next
  // call. Empty if the pass was aborted. With ModelConfig::pooling, the rows are hidden states
  // after the final norm, [rows, H], or a classifier's scores, [rows, labels]. Empty too if the
  // model is a pipeline stage without a head.
  std::span<const float> Forward(const ForwardBatch& batch, KvStorage& kv);
  // Aborts the pass that Forward runs, if it has this number: its remaining operations are skipped.
  // Called only from ModelOptions::before_operation, before the same operation on every rank. Keys
  // and values of the batch's rows are then undefined, and the batch may run again.
  void AbortPass(uint64_t number);
  bool aborted() const;  // whether the last Forward's pass was aborted
  // Whether batches may have `draws`. Forward then keeps the logits on the device and returns
  // none; drawn() has a token for each row, −1 where a logit is not finite.
  bool draws() const;
  std::span<const int32_t> drawn() const;
  // With ForwardBatch::best_tokens: the most probable tokens of each row of the last Forward, and
  // what their probabilities need. Valid until the next call.
  kernels::BestTokenRows best() const;
  // For a head with rows of some tokens only: the token of each row, [output_width]. drawn(),
  // best() and Collect give these tokens from then on, and so does ForwardBatch::token_rows. Logits
  // keep the order of the rows.
  void SetTokens(std::span<const int32_t> tokens);
  // Launch runs a batch like Forward, but returns once the pass is enqueued. The batch needs
  // `draws` for all logit rows, and must not request routed experts or best tokens. A pipeline
  // stage without a head takes no draws and has no tokens. It waits until the stage before has
  // enqueued its pass. Collect waits for the oldest launched pass and returns its tokens, which are
  // valid until two more passes are launched. At most two passes may be launched but not yet
  // collected. Collect, and a later Forward, report the routing of launched passes to the observer.
  void Launch(const ForwardBatch& batch, KvStorage& kv);
  std::span<const int32_t> Collect();
  // [T, layers, top_k] logical experts that each row of the last batch was routed to, −1 for none
  // (always in dense layers). Empty if the batch did not request them.
  std::span<const int32_t> routed_experts() const;
  // With ModelOptions::keeps_hidden: the rows of the last batch after the final norm, [T, H], in
  // the device's memory; with ForwardBatch::only_logit_rows [logit rows, H]. For EAGLE heads and
  // MTP layers with mtp_before_norm, these are the rows before the norm. With
  // ModelOptions::kept_inputs, they are rows of inner layers, [T, layers · H]. Valid until the next
  // call of Forward.
  const float* hidden() const;
  // The device that runs the passes.
  kernels::Device& device();
  // After an error, before memory that passes use is freed: ends work of the device that waits for
  // other ranks without a timeout. No pass can run afterwards.
  void EndWaits();

  // The first router fault (moe/router/router_fault.h) of each sequence of the batch, among the
  // tokens that this rank routed in this pass or earlier ones; 0: none.
  std::vector<int32_t> RouterFaults(const ForwardBatch& batch, const KvStorage& kv) const;
  // The weights, which outlive the model as long as they are held. Without routed experts if they
  // move (movable_experts). Null on a GPU.
  std::shared_ptr<const ModelWeights> weights() const;
  // The weights as arrays in the memory of a GPU, in the formats of its kernels; none on CPUs.
  std::vector<kernels::DeviceArray> device_weights() const;
  // The ranks of this rank's attention group, which have the same batches.
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
// A log line with the symmetric memory that the exchange takes. Requires a model with experts.
std::string DescribeExchangeMemory(const ModelConfig& config, const ModelOptions& options,
                                   const MeshShape& shape);
// Device memory of a rank on a GPU in addition to weights, cache and activations: buffers that its
// peers and the previous pipeline stage write to, the record of routing, and the spare memory of
// experts that move.
size_t GpuBytesPerRank(const ModelConfig& config, const ModelOptions& options,
                       const MeshShape& shape);
// Bytes of weights that one rank reads.
size_t WeightBytesPerRank(const ModelConfig& config, const ModelOptions& options, const Mesh& mesh);

}  // namespace switchyard
