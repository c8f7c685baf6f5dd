// Output head with cross-entropy.
#pragma once

#include <cstdint>
#include <span>

#include "core/parallel.h"
#include "train/layers/linear.h"

namespace switchyard::train {

// Computes logits for one block of rows at a time, so that the logits of the whole batch are never
// stored. So forward and backward must be a single call.
template <typename T>
struct HeadLoss {
  Linear<T> head;  // [V, H]; if tied, this is the embedding; with TP, only the rows of this rank
  TensorGroup tp = TensorGroup();
  // Returns the sum of -log softmax(x · Wᵀ)[target] over rows whose target is not Batch::kIgnored.
  // If dx [m, H] is not null, writes dx and adds to the head's gradient, unless the head is frozen.
  // Both are multiplied by `scale`. Ranks that partition the vocabulary must call Run with the same
  // rows. Then dx is a partial sum, and the returned loss covers only this rank's share of the
  // rows.
  double Run(const T* x, std::span<const int32_t> targets, T scale, T* dx, ThreadPool& pool) const;
};

}  // namespace switchyard::train
