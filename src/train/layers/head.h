// Output head with cross-entropy.
#pragma once

#include <cstdint>
#include <span>

#include "core/parallel.h"
#include "train/layers/linear.h"

namespace switchyard::train {

// Processes rows block by block, so that logits are never stored for the whole batch. Forward and
// backward are therefore one call.
template <typename T>
struct HeadLoss {
  Linear<T> head;  // [V, H]; the embedding if tied; with TP this rank's rows only
  TensorGroup tp = TensorGroup();
  // Returns the sum of -log softmax(x · Wᵀ)[target] over rows whose target is not Batch::kIgnored.
  // If dx [m, H] is not null, dx is written and the head's gradient, if it has one, is accumulated,
  // both multiplied by `scale`. Ranks that share the vocabulary call it with the same rows. dx is
  // then a partial sum, and the loss is that of this rank's share of the rows.
  double Run(const T* x, std::span<const int32_t> targets, T scale, T* dx, ThreadPool& pool) const;
};

}  // namespace switchyard::train
