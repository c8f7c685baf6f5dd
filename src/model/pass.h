// The state of one batch in flight.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "kernels/best_tokens.h"
#include "model/forward_batch.h"
#include "model/kv_storage.h"
#include "model/layers/activations.h"
#include "model/layers/context.h"
#include "model/layers/scratch.h"
#include "model/padded_batch.h"
#include "moe/dispatchers/token_partition.h"
#include "moe/state.h"

namespace switchyard {

// The rows of this rank's attention group. Arrays are in device memory.
struct PassRows {
  int64_t tokens = 0;
  const int32_t* ids = nullptr;        // [tokens]
  const int32_t* positions = nullptr;  // [tokens]
  const int32_t* slots = nullptr;      // [tokens]
  int64_t logit_rows = 0;
  const int32_t* logit_row = nullptr;  // [logit_rows]
  // For MTP layers and EAGLE heads: the given hidden rows, and the index of each token's row,
  // [tokens].
  const float* hidden = nullptr;
  const int32_t* hidden_row = nullptr;
  bool own_hidden = false;  // ForwardBatch::own_hidden
};

// Buffers of EmbeddingAndHead. They grow with the number of logit rows.
struct HeadBuffers {
  Activations all_hidden;  // [rows of all groups, H]
  Activations own;         // [rows, vocabulary of this rank]
  Activations gathered;    // `own` of every member, in rank order
  Activations logits;      // [rows, vocab]
};

// The place of a micro-batch in its batch.
struct MicroBatchPlace {
  int index = 0;
  int64_t first_row = 0;  // index of this group's first row among those of the whole batch
};

// A batch in flight on one rank: its rows, activations and results. Layers have no state of a
// batch, so several passes can be in flight, each at another layer. A pass is reused for many
// batches, one at a time. Addresses change only in ReserveLogits, which discards recorded passes
// (CUDA graphs). Used by the rank's thread only.
class Pass {
 public:
  // `index`: index of this pass among the passes of the rank. `scratch_floats`: the largest need of
  // a layer.
  Pass(int index, const LayerContext& context, int64_t max_tokens, int64_t scratch_floats);

  // Begins a batch, which must outlive its use: uploads its arrays and sequences, and clears the
  // results of the previous batch. `kv` is the cache of all passes. `drawn`: the tokens to which
  // ForwardBatch::token_rows refers, in device memory. `place`: the place of `batch` in
  // the whole batch, if `batch` is a micro-batch.
  void Begin(const ForwardBatch& batch, KvStorage& kv, const int32_t* drawn,
             const MicroBatchPlace& place = {});

  // Allocates the logit rows of this rank's group, `logit_rows`, and head buffers for group_rows
  // [dp]. If memory moves, recorded passes are recorded again.
  template <typename ReserveHead>
  void ReserveLogits(int64_t logit_rows, const ReserveHead& reserve_head) {
    const bool rows_moved = selected.Reserve(context_.device, logit_rows * context_.config.hidden);
    if (!reserve_head(head) && !rows_moved) return;
    ++generation_;
    seen_sizes_.clear();
  }

  // Keeps only the rows whose logits are needed, in `rows`, `residual`, `normed`, `sequences` and
  // the counts of all groups (ForwardBatch::only_logit_rows). Called once keys and values of the
  // last layer that attends are stored.
  void KeepLogitRows();

  int index() const { return index_; }
  // [T, top_k] in device memory: the experts of the layer that runs.
  int32_t* routed_rows() const { return static_cast<int32_t*>(routed_rows_.get()); }

  // The key under which Device::Run records a pass of this size, a number of up to 32 bits, and
  // with this `selects_keys`. It is 0 for the first such pass, which loads kernels and allocates
  // scratch and is not recorded.
  // Such a pass is not clocked either, because its times would be those of a host that waits. A
  // clocked pass is a variant (Device::kVariant). Call it after MoeState::BeginPass.
  uint64_t RecordingKey(uint64_t size);

  // The batch.
  uint64_t number = 0;  // ForwardBatch::pass
  // Whether the pass is aborted: the decoder skips its remaining operations (Decoder::Run). Set
  // between two operations, the same ones on every rank.
  bool aborted = false;
  bool used = false;     // by the last batch; a batch that is not split uses the first pass only
  bool running = false;  // within Model::Forward: the pass can be aborted
  bool only_logit_rows = false;  // ForwardBatch::only_logit_rows
  int32_t depth = 0;             // ForwardBatch::depth
  PassRows rows;
  MicroBatchPlace place;
  std::vector<int64_t> group_tokens, group_decode_tokens, group_logit_rows;  // [dp]
  TokenPartition partition;  // partition of the tokens of all groups
  KvStorage* kv = nullptr;
  std::unique_ptr<kernels::PassSequences> sequences;
  const kernels::StateSpan* states = nullptr;  // [num_states] ForwardBatch::states
  int64_t num_states = 0;
  bool has_chunked_rows = false;  // whether a span of states has some; recorded passes have none
  PaddedBatch padded;             // if the batch is padded

  // The residual stream. A layer's output waits in `branch` until the next norm adds it.
  Activations residual;        // [T, residual_width]
  Activations normed, branch;  // [T, H] each
  // With ModelConfig::streams (kernels/streams.h): logits, squares and weights of the block that
  // runs, [T, StreamLogits], [T] and [T, StreamMix]; else empty.
  Activations stream_logits, stream_squares, stream_mix;
  Activations router_rows;  // with LayerConfig::by_token: [T, H + 1], or empty
  Activations shortcut;     // outputs of experts that wait for the next layer [T, H], or empty
  // Input and summed outputs of experts whose rows are narrower than hidden
  // (MoeModelConfig::latent), [T, latent] each; else empty.
  Activations latent_in, latent_out;
  Activations joined;  // EAGLE3: input of attention's projections [T, 2 · H]; others: empty
  bool branch_pending = false;
  LayerScratch scratch;
  // With an indexer: whether this pass selects keys, and the slots of the selected keys
  // (kernels::SelectKeysParams), [T, index_topk]. Layers with LayerConfig::shared_index read those
  // of the layer before. Begin sets selects_keys if some row has more keys than index_topk. If no
  // row has, selection changes no bit.
  bool selects_keys = false;
  // Whether the rows, if this pass selects keys, take those of the previous pass
  // (kernels::InheritKeys), in which the parent of a row is its PassRows::hidden_row. A recorded
  // pass is never replayed with another value: its key has the address of the hidden rows.
  bool inherits_keys = false;
  int32_t* selected_keys() const { return static_cast<int32_t*>(selected_keys_.get()); }
  bool projected = false;         // attention's projections have run in this layer
  std::unique_ptr<MoeState> moe;  // null for a model without experts
  bool moe_in_stages = false;     // false: MoeLayer::Forward runs all stages of this layer
  int exchanging = -1;            // the layer whose exchange is in flight; −1: none
  Activations selected;           // [logit rows, H]
  // Address for the rows after the final norm, [T, H]; null: the rows are not needed. With
  // only_logit_rows, T is the number of logit rows. For EAGLE heads, these are the rows before the
  // norm.
  float* hidden_out = nullptr;
  // Address for the inputs of the layers `kept_inputs`, [T, layers · H]
  // (ModelOptions::kept_inputs). Null: the inputs are not needed.
  float* inputs_out = nullptr;
  std::span<const int64_t> kept_inputs;
  HeadBuffers head;

  // Results.
  std::span<const int32_t> drawn;     // tokens sampled by the last Forward; of the first pass
  kernels::BestTokenRows best;        // likewise
  std::vector<float> host_logits;     // [logit rows, vocab], for a device with its own memory
  std::vector<int32_t> routed;        // [T, layers, top_k] if requested; else empty
  std::vector<int32_t> layer_routed;  // [T, top_k]

 private:
  int32_t* Array(int64_t array) const {
    return static_cast<int32_t*>(arrays_.get()) + array * max_tokens_;
  }
  const int32_t* Upload(int64_t array, const std::vector<int32_t>& values);
  void SetStates(const std::vector<kernels::StateSpan>& spans);
  void KeepLogitRows(Activations& values);
  void KeepLogitStreams(std::span<const int32_t> kept);
  void KeepSelectedKeys(std::span<const int32_t> kept);

  const int index_;
  const LayerContext& context_;
  const int64_t max_tokens_;
  const std::shared_ptr<void> arrays_;  // [kArrays, max_tokens] int32
  std::shared_ptr<void> routed_rows_, selected_keys_;
  std::shared_ptr<void> states_;  // memory of `states` [max_tokens]; null on CPUs
  std::span<const kernels::SequenceSpan> given_sequences_;  // sequences of the batch
  std::vector<kernels::SequenceSpan> kept_sequences_;       // sequences after KeepLogitRows
  uint32_t generation_ = 0;                                 // number of times that memory moved
  // Sizes of decode batches that have run since memory moved, plus kSelects if keys were selected.
  std::set<uint64_t> seen_sizes_;
};

}  // namespace switchyard
