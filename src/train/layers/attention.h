// Causal attention over packed sequences, forward and backward.
#pragma once

#include <cstdint>

#include "core/parallel.h"
#include "train/layers/rows.h"
#include "train/math/product_dtype.h"

namespace switchyard::train {

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

}  // namespace switchyard::train
