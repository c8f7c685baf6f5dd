// Used by the forward and the backward pass of attention: the range of visible keys, and the
// workspace of a task.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "train/layers/attention.h"

namespace switchyard::train {

constexpr int64_t kQueryBlock = 24;  // query rows of a score block; must be even
// Query rows that one product multiplies with their visible keys; must be even.
constexpr int64_t kStrip = 6;

// The range of visible keys of row r of a sequence: the first key, and one past the last key.
template <typename T>
std::pair<int64_t, int64_t> VisibleKeys(const AttentionShape<T>& shape, int64_t r) {
  return {shape.window > 0 ? std::max<int64_t>(0, r + 1 - shape.window) : 0, r + 1};
}

// Copies of the head that a task processes, packed in the form that the products need
// (math/operands.h).
template <typename T>
struct AttentionWorkspace {
  std::vector<T> keys_transposed, values_transposed;        // [d, stride]
  std::vector<T> queries, douts;                            // [n, d]
  std::vector<T> keys, values, queries_along, douts_along;  // [n, d], packed for products along n
  std::vector<T> dkeys, dvalues;                            // [n, d]
  std::vector<T> scores, dscores, scores_along, dscores_along, dscores_rows, along;
};
template <typename T>
AttentionWorkspace<T>& ThreadWorkspace() {
  static thread_local AttentionWorkspace<T> memory;
  return memory;
}
template <typename T>
T* Room(std::vector<T>& v, int64_t count) {
  if (static_cast<int64_t>(v.size()) < count) v.resize(count);
  return v.data();
}

// Rows [begin, end) of one head.
template <typename T>
struct Rows {
  T* data;
  int64_t row;  // row stride in elements
};
template <typename T>
Rows<T> Of(const HeadRows<T>& t, int64_t head, int64_t begin) {
  return {t.data + head * t.head + begin * t.row, t.row};
}

}  // namespace switchyard::train
