// A decoder layer, split into phases. A schedule may interleave them with the phases of another
// micro-batch.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "schedule/operation.h"
#include "train/batch.h"
#include "train/layers/attention_layers.h"
#include "train/layers/moe.h"
#include "train/layers/pointwise.h"
#include "train/layers/recompute.h"

namespace switchyard::train {

using schedule::Phase;  // src/schedule defines the order of phases

// Activations of one micro-batch in one layer; m: number of this rank's rows.
template <typename T>
struct LayerState {
  // [m, H] each. x: input; normed: its norm; after: x plus the output of attention; after_normed:
  // the norm of `after`.
  std::vector<T> x, normed, after, after_normed;
  AttentionState<T> attention;
  FeedForwardState<T> dense;
  std::vector<T> dense_output;  // [m, H]; backward: the gradient of after_normed
  MoeState<T> moe;
  // Only with tensor parallelism: normed and after_normed of the rows of all ranks of the TP group.
  std::vector<T> all_normed, all_after_normed;
  // What is left of the spare state whose buffers this state has; null: it has none. Only with
  // recomputation.
  std::unique_ptr<LayerState> borrowed;
  LaterWeights<T> later;  // only with separate weight gradients
};

// The arguments of the phases.
template <typename T>
struct LayerPass {
  const RowLayout& rows;  // rows of all ranks of the TP group
  LayerState<T>& state;
  std::vector<T>& stream;  // [m, H] forward: hidden state, updated in place; backward: its gradient
  ThreadPool& pool;
  SpareStates<LayerState<T>>& spares;  // buffers of dropped activations
};

// The groups of ranks with which a layer communicates.
struct LayerRanks {
  ExpertRanks experts;        // the ranks that hold the experts of a layer
  SumOverRanks sum;           // sum over all ranks of the stage; empty: the stage has one rank
  Collectives* tp = nullptr;  // the TP group; null: no tensor parallelism
};

// Owned by the model; used by the rank's thread only.
template <typename T>
class DecoderLayer {
 public:
  // `moe`: whether the feed-forward is an MoE layer. Activations that are recomputed are in the
  // state only during a phase, or from the first phase of a pass through the layer to the last one.
  DecoderLayer(const AttentionParts<T>& parts, bool moe, const LayerRanks& ranks,
               const BackwardOptions& backward);

  // Adds to losses->balance in kAttention.
  void Forward(Phase phase, const LossOptions& options, double step_tokens, LayerPass<T> pass,
               Losses* losses);
  void Backward(Phase phase, LayerPass<T> pass);
  // Computes the weight gradients that the phases of the backward pass have left out.
  void Weights(LayerPass<T> pass) const { pass.state.later.Run(pass.pool); }

  // Elements of the state of a micro-batch with `all` rows over the TP group.
  ActivationCounts Count(int64_t all, bool balances, const ThreadPool& pool) const;
  MoeLayer<T>* moe() { return moe_ ? &*moe_ : nullptr; }

 private:
  // Whether dropped activations get their buffers before this phase, and lose them after it.
  bool Borrows(Phase phase, bool forward) const;
  bool Returns(Phase phase, bool forward) const;
  void Borrow(LayerPass<T> pass) const;
  void Return(LayerPass<T> pass) const;
  void SwapDropped(LayerState<T>& a, LayerState<T>& b) const;
  LaterWeights<T>* Later(LayerPass<T> pass) const {
    return separate_weights_ ? &pass.state.later : nullptr;
  }

  void ForwardPhase(Phase phase, const LossOptions& options, double step_tokens, LayerPass<T> pass,
                    Losses* losses);
  void BackwardPhase(Phase phase, LayerPass<T> pass);
  // Computes the rows that attention reads from the layer's input. Returns those of the TP group.
  const T* NormInput(LayerPass<T> pass) const;
  // Computes everything from the layer's input to the input of its feed-forward.
  void RunAttention(LayerPass<T> pass) const;
  void Attend(const LossOptions& options, double step_tokens, LayerPass<T> pass, Losses* losses);
  void AttendBackward(LayerPass<T> pass);

  const int64_t hidden_;
  const NormShape<T> norm_;
  const LayerRanks ranks_;
  const TensorGroup tp_;
  const Recompute recompute_;
  const bool separate_weights_;
  Parameter<T>*input_norm_, *post_norm_;
  std::unique_ptr<AttentionLayer<T>> attention_;
  std::vector<FeedForward<T>> dense_;  // size 0 (MoE layer) or 1
  std::optional<MoeLayer<T>> moe_;
};

}  // namespace switchyard::train
