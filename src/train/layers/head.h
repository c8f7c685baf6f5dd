// The output head with cross-entropy.
#pragma once

#include <cstdint>
#include <span>

#include "core/parallel.h"
#include "train/layers/linear.h"

namespace switchyard::train {

// Rows are worked on a block at a time, so that logits are never held for the whole batch; that is
// why forward and backward are one call.
template <typename T>
struct HeadLoss {
  Linear<T> head;  // [V, H]; the embedding where they are tied; of a TP rank its rows of that
  TensorGroup tp = TensorGroup();
  // The sum over rows whose target is not Batch::kIgnored of -log softmax(x · Wᵀ)[target]. Where dx
  // [m, H] is not null it is written, and the head's gradient is added, both times `scale`. Ranks
  // that share the vocabulary call with the same rows; dx is then a partial sum, and the loss that
  // of this rank's share of the rows.
  double Run(const T* x, std::span<const int32_t> targets, T scale, T* dx, ThreadPool& pool) const;
};

}  // namespace switchyard::train
