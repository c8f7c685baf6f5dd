// Causal attention over packed sequences, forward and backward.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/parallel.h"
#include "train/layers/pointwise.h"
#include "train/math/product.h"

namespace switchyard::train {

// Causal attention over packed sequences, forward and backward.

// [rows, heads, n]: element (t, h, i) is at data[t · row + h · head + i].
template <typename T>
struct HeadRows {
  T* data = nullptr;
  int64_t row = 0, head = 0;
};

template <typename T>
struct AttentionShape {
  int64_t heads = 0, kv_heads = 0;  // query head h reads key head h / (heads / kv_heads)
  int64_t qk_dim = 0, v_dim = 0;    // qk_dim: head dimension of q and k; v_dim: of v and the output
  T scale = 1;                      // factor of the scores
  int32_t window = 0;               // position p attends to key j if p - j < window; 0: all
  // Dtype of all products. With bfloat16, queries, keys, values, probabilities and their gradients
  // are rounded; softmax and accumulation are float32. T = double supports only kFloat32, which
  // then rounds nothing: its products are float64.
  ProductDtype products = ProductDtype::kFloat32;
};

// out = softmax(scale · q kᵀ) v within each sequence. log_sums [heads, rows]: the log-sum-exp of
// each row's scores, for the backward pass. Scores are computed in blocks of rows and not stored;
// the gradients follow FlashAttention-2 (Dao, arXiv:2307.08691).
template <typename T>
void Attention(const AttentionShape<T>& shape, const RowLayout& rows, HeadRows<const T> q,
               HeadRows<const T> k, HeadRows<const T> v, HeadRows<T> out, T* log_sums,
               ThreadPool& pool);

// Writes dq, dk and dv. out and log_sums are the results of Attention.
template <typename T>
void AttentionGradient(const AttentionShape<T>& shape, const RowLayout& rows, HeadRows<const T> q,
                       HeadRows<const T> k, HeadRows<const T> v, HeadRows<const T> out,
                       const T* log_sums, HeadRows<const T> dout, HeadRows<T> dq, HeadRows<T> dk,
                       HeadRows<T> dv, ThreadPool& pool);

// Used by the forward and the backward pass of attention: the range of visible keys, and the
// workspace of a task.

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
