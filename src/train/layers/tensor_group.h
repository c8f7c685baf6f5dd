// How the ranks of a tensor-parallel group share the rows of a micro-batch.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/device/collectives.h"
#include "moe/types.h"
#include "train/math/workspace.h"

namespace switchyard::train {

// All ranks of the group have the same micro-batch of m rows. Between matrices that are cut, each
// holds its share of the rows alone (norms, residuals, router, experts: Korthikanti et al.,
// arXiv:2205.05198, sequence parallelism); before a matrix cut by outputs the rows are gathered,
// and the partial sums behind a matrix cut by inputs are added up, in rank order, each rank getting
// those of its rows. One is the transpose of the other. So every gradient of a tensor that is whole
// on each rank is a part of it, and adding up over the group makes it complete.
//
// A group of one copies nothing. Used by the rank's thread; every rank makes the same calls.
class TensorGroup {
 public:
  explicit TensorGroup(Collectives* ranks = nullptr) : ranks_(ranks) {}  // null: one alone

  int rank() const { return ranks_ == nullptr ? 0 : ranks_->rank(); }
  int size() const { return ranks_ == nullptr ? 1 : ranks_->size(); }
  bool alone() const { return size() == 1; }
  // This rank's of m rows, or of n heads, outputs, …
  Share Mine(int64_t n) const { return EvenShare(n, size(), rank()); }

  // mine [Mine(m), width] → all rows [m, width], which lie in `room`, or are `mine` where the rank
  // is alone.
  template <typename T>
  const T* Gather(const T* mine, int64_t m, int64_t width, std::vector<T>* room) const;
  // The same into `all`; only where the rank is not alone.
  template <typename T>
  void GatherInto(const T* mine, int64_t m, int64_t width, T* all) const;
  // partial [m, width] of each rank → mine [Mine(m), width], their sums; only where the rank is not
  // alone.
  template <typename T>
  void Scatter(const T* partial, int64_t m, int64_t width, T* mine) const;
  // every [size, count]: values [count] of each rank.
  template <typename T>
  void GatherEqual(const T* values, int64_t count, T* every) const;
  // Adds up in place, in rank order.
  void Sum(float* values, int64_t count) const;

 private:
  Collectives* ranks_;
};

// All rows of which each rank has its share, for as long as this lives.
template <typename T>
class GatheredRows {
 public:
  GatheredRows(const TensorGroup& group, const T* mine, int64_t m, int64_t width)
      : room_(group.alone() ? 0 : m * width), data_(group.alone() ? mine : room_.data()) {
    if (!group.alone()) group.GatherInto(mine, m, width, room_.data());
  }
  const T* data() const { return data_; }

 private:
  Temporary<T> room_;
  const T* data_;
};

// Where partial sums of all rows are written, to be added up into each rank's share of them.
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
  Temporary<T> room_;
};

}  // namespace switchyard::train
