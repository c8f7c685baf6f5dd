// A layer of the decoder, in the phases that a schedule may interleave with those of another
// micro-batch.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "overlap/operation.h"
#include "train/layers/attention_layers.h"
#include "train/layers/moe.h"
#include "train/layers/pointwise.h"
#include "train/losses.h"

namespace switchyard::train {

using overlap::Phase;  // which says in what order they come

// One micro-batch in one layer; m: the rows that are this rank's.
template <typename T>
struct LayerState {
  // [m, H]: input, its norm, the sum after attention, its norm.
  std::vector<T> x, normed, after, after_normed;
  AttentionState<T> attention;
  FeedForwardState<T> dense;
  std::vector<T> dense_output;  // [m, H]; backward: the gradient of after_normed
  MoeState<T> moe;
  // Of a tensor-parallel rank: normed and after_normed of all rows.
  std::vector<T> all_normed, all_after_normed;
};

// What the phases work on.
template <typename T>
struct LayerPass {
  const RowLayout& rows;  // all of them
  LayerState<T>& state;
  std::vector<T>& stream;  // forward: hidden [m, H], in and out; backward: its gradient
  ThreadPool& pool;
};

// How layers meet the other ranks.
struct LayerRanks {
  RowExchange* exchange = nullptr;  // of the experts
  SumOverRanks sum;  // over all ranks that share a micro-batch (of the stage); empty on one
  Collectives* tp = nullptr;  // that share its rows' work; null: none do
};

// Owned by the model; used by the rank's thread.
template <typename T>
class DecoderLayer {
 public:
  // `moe`: whether its feed-forward has experts.
  DecoderLayer(const AttentionParts<T>& parts, bool moe, const LayerRanks& ranks);

  // Adds to losses->balance in kAttention.
  void Forward(Phase phase, const LossOptions& options, double step_tokens, LayerPass<T> pass,
               Losses* losses);
  void Backward(Phase phase, LayerPass<T> pass);

  MoeLayer<T>* moe() { return moe_ ? &*moe_ : nullptr; }

 private:
  void Attend(const LossOptions& options, double step_tokens, LayerPass<T> pass, Losses* losses);
  void AttendBackward(LayerPass<T> pass);

  const int64_t hidden_;
  const NormShape<T> norm_;
  const LayerRanks ranks_;
  const TensorGroup tp_;
  Parameter<T>*input_norm_, *post_norm_;
  std::unique_ptr<AttentionLayer<T>> attention_;
  std::vector<FeedForward<T>> dense_;  // none or one
  std::optional<MoeLayer<T>> moe_;
};

}  // namespace switchyard::train
