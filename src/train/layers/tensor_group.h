// Tensor parallelism: partitions the rows of a micro-batch over the ranks of a TP group.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/device/collectives.h"
#include "moe/types.h"
#include "train/math/workspace.h"

namespace switchyard::train {

// All ranks of the group have the same micro-batch of m rows. Between partitioned matrices, each
// rank holds only its share of the rows (norms, residuals, router, experts). This is sequence
// parallelism (Korthikanti et al., arXiv:2205.05198). The input rows of a matrix partitioned by
// outputs are all-gathered. The partial sums of a matrix partitioned by inputs are
// reduce-scattered, in rank order. Each of these two operations is the backward pass of the other
// one. Each rank computes the gradient of a replicated tensor from its own rows only, so a sum over
// the group completes this gradient.
//
// A group of one rank copies nothing. Used by the rank's thread only. Every rank makes the same
// calls.
class TensorGroup {
 public:
  explicit TensorGroup(Collectives* ranks = nullptr) : ranks_(ranks) {}  // null: a single rank

  int rank() const { return ranks_ == nullptr ? 0 : ranks_->rank(); }
  int size() const { return ranks_ == nullptr ? 1 : ranks_->size(); }
  bool alone() const { return size() == 1; }
  // This rank's share of m rows, or of n heads, outputs, …
  Range Mine(int64_t n) const { return EvenPart(n, size(), rank()); }

  // All-gather: mine [Mine(m), width] → all rows [m, width]. Returns `room`, which holds the
  // result, or `mine` for a single rank.
  template <typename T>
  const T* Gather(const T* mine, int64_t m, int64_t width, std::vector<T>* room) const;
  // Like Gather, but writes to `all`. Only for groups of several ranks.
  template <typename T>
  void GatherInto(const T* mine, int64_t m, int64_t width, T* all) const;
  // Reduce-scatter: partial [m, width] of each rank → mine [Mine(m), width], summed; only for
  // several ranks.
  template <typename T>
  void Scatter(const T* partial, int64_t m, int64_t width, T* mine) const;
  // All-gather of equal shares: `every` [size, count] receives the `values` [count] of each rank.
  template <typename T>
  void GatherEqual(const T* values, int64_t count, T* every) const;
  // All-reduce in place, summed in rank order.
  void Sum(float* values, int64_t count) const;

 private:
  Collectives* ranks_;
};

// RAII: gathers all rows from the shares of the ranks. The rows are valid during the lifetime of
// this object.
template <typename T>
class GatheredRows {
 public:
  GatheredRows(const TensorGroup& group, const T* mine, int64_t m, int64_t width)
      : room_(group.alone() ? 0 : m * width), data_(group.alone() ? mine : room_.data()) {
    if (!group.alone()) group.GatherInto(mine, m, width, room_.data());
  }
  const T* data() const { return data_; }

 private:
  ScratchBuffer<T> room_;
  const T* data_;
};

// Buffer for partial sums of all rows, to be reduce-scattered into each rank's share.
template <typename T>
class PartialRows {
 public:
  PartialRows(const TensorGroup& group, T* mine, int64_t m, int64_t width)
      : group_(group), mine_(mine), m_(m), width_(width), room_(group.alone() ? 0 : m * width) {}
  T* data() { return group_.alone() ? mine_ : room_.data(); }  // [m, width]
  void Scatter() {
    if (!group_.alone()) group_.Scatter<T>(room_.data(), m_, width_, mine_);
  }

 private:
  const TensorGroup& group_;
  T* const mine_;  // [Mine(m), width]
  const int64_t m_, width_;
  ScratchBuffer<T> room_;
};

}  // namespace switchyard::train
