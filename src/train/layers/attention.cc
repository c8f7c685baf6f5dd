#include "train/layers/attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "train/layers/row_math.h"
#include "train/math/product.h"

namespace switchyard::train {
namespace {

constexpr int64_t kQueries = 24;  // rows whose scores are made at once
constexpr int64_t kStrip = 6;     // rows of a product that stops at the last key they see
constexpr int64_t kBlock = 128;   // rows and keys of a block of the backward pass

// First and one past the last key that row r of a sequence sees.
template <typename T>
std::pair<int64_t, int64_t> Seen(const AttentionShape<T>& shape, int64_t r) {
  return {shape.window > 0 ? std::max<int64_t>(0, r + 1 - shape.window) : 0, r + 1};
}

// What a task copies of its head, packed: rows without gaps, and turned over for products with q.
template <typename T>
struct HeadMemory {
  std::vector<T> keys, keys_turned, values, values_turned;  // [n, d], [d, stride]
  std::vector<T> queries, douts;                            // [n, d]
  std::vector<T> dkeys, dvalues;                            // [n, d]
  std::vector<T> scores, dscores, along;
};
template <typename T>
HeadMemory<T>& ThreadMemory() {
  static thread_local HeadMemory<T> memory;
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
  int64_t row;  // stride
};
template <typename T>
Rows<T> Of(const HeadRows<T>& t, int64_t head, int64_t begin) {
  return {t.data + head * t.head + begin * t.row, t.row};
}

template <typename T>
void ForwardHead(const AttentionShape<T>& shape, int64_t n, Rows<const T> q, Rows<const T> k,
                 Rows<const T> v, Rows<T> out, T* log_sums) {
  HeadMemory<T>& memory = ThreadMemory<T>();
  const int64_t qk = shape.qk_dim, dim = shape.v_dim, stride = TurnedStride(n);
  T* keys = Room(memory.keys_turned, qk * stride);
  T* values = Room(memory.values, n * dim);
  T* queries = Room(memory.queries, kQueries * qk);
  T* s = Room(memory.scores, kQueries * stride);
  Turn(k.data, k.row, n, qk, keys, stride);
  CopyRows(v.data, v.row, n, dim, values, dim);
  for (int64_t row = 0; row < n; row += kQueries) {
    const int64_t rows = std::min(kQueries, n - row);
    const int64_t key = Seen(shape, row).first, count = row + rows - key;
    CopyRows(q.data + row * q.row, q.row, rows, qk, queries, qk);
    MultiplyHere<T>({.a = queries,
                     .a_row = qk,
                     .b = keys + key,
                     .b_row = stride,
                     .c = s,
                     .ldc = stride,
                     .m = rows,
                     .n = count,
                     .k = qk});
    for (int64_t r = 0; r < rows; ++r) {
      const auto [first, last] = Seen(shape, row + r);
      T* scores = s + r * stride;
      const T largest = shape.scale * Largest(scores + first - key, last - first);
      const T sum = ScaledExpSum(scores + first - key, last - first, shape.scale, largest);
      Scale(scores + first - key, last - first, T{1} / sum);
      std::fill(scores, scores + first - key, T{0});
      std::fill(scores + last - key, scores + count, T{0});
      log_sums[row + r] = largest + std::log(sum);
    }
    for (int64_t r = 0; r < rows; r += kStrip) {
      const int64_t m = std::min(kStrip, rows - r);
      MultiplyHere<T>({.a = s + r * stride,
                       .a_row = stride,
                       .b = values + key * dim,
                       .b_row = dim,
                       .c = out.data + (row + r) * out.row,
                       .ldc = out.row,
                       .m = m,
                       .n = dim,
                       .k = row + r + m - key});
    }
  }
}

}  // namespace

template <typename T>
void Attention(const AttentionShape<T>& shape, const RowLayout& rows, HeadRows<const T> q,
               HeadRows<const T> k, HeadRows<const T> v, HeadRows<T> out, T* log_sums,
               ThreadPool& pool) {
  const int64_t group = shape.heads / shape.kv_heads;
  pool.Run(rows.sequences() * shape.heads, [&](int64_t task) {
    const int64_t s = task / shape.heads, h = task % shape.heads, g = h / group;
    const int64_t begin = rows.begins[s], n = rows.begins[s + 1] - begin;
    ForwardHead(shape, n, Of(q, h, begin), Of(k, g, begin), Of(v, g, begin), Of(out, h, begin),
                log_sums + h * rows.rows() + begin);
  });
}

namespace {

// One query head of a sequence, packed.
template <typename T>
struct BackwardHead {
  const AttentionShape<T>& shape;
  int64_t n, stride;  // rows; of keys and values that are turned over
  const T *queries, *douts, *keys, *keys_turned, *values_turned;
  const T *log_sums, *along;
  T *p, *ds;  // [kBlock, kBlockStride]
  T *dkeys, *dvalues;
  Rows<T> dq;
};
constexpr int64_t kBlockStride = kBlock + 16;  // an odd number of cache lines

// Probabilities and gradients of q · k, before the scale: rows from `row` on by keys from
// `key` on. Where no row sees a key both are zero.
template <typename T>
void MakeBlock(const BackwardHead<T>& h, int64_t row, int64_t rows, int64_t key, int64_t keys) {
  for (int64_t i = 0; i < rows; i += kQueries) {
    const int64_t m = std::min(kQueries, rows - i);
    const int64_t n = std::min(keys, row + i + m - key);
    T* p = h.p + i * kBlockStride;
    T* ds = h.ds + i * kBlockStride;
    const auto scores = [&](const T* a, int64_t k, const T* b, T* c) {
      MultiplyHere<T>({.a = a + (row + i) * k,
                       .a_row = k,
                       .b = b + key,
                       .b_row = h.stride,
                       .c = c,
                       .ldc = kBlockStride,
                       .m = m,
                       .n = n,
                       .k = k});
    };
    scores(h.queries, h.shape.qk_dim, h.keys_turned, p);
    scores(h.douts, h.shape.v_dim, h.values_turned, ds);
    for (int64_t r = 0; r < m; ++r) {
      const auto seen = Seen(h.shape, row + i + r);
      const int64_t first = std::clamp<int64_t>(seen.first - key, 0, keys);
      const int64_t last = std::clamp<int64_t>(seen.second - key, first, keys);
      T* prow = p + r * kBlockStride;
      T* dsrow = ds + r * kBlockStride;
      SoftmaxGradient(prow + first, dsrow + first, last - first, h.shape.scale,
                      h.log_sums[row + i + r], h.along[row + i + r]);
      for (T* x : {prow, dsrow}) {
        std::fill(x, x + first, T{0});
        std::fill(x + last, x + keys, T{0});
      }
    }
  }
}

// dq of the rows += dS · K; on the diagonal rows see the keys up to their own.
template <typename T>
void AddToQueries(const BackwardHead<T>& h, int64_t row, int64_t rows, int64_t key, int64_t keys,
                  bool accumulate) {
  const int64_t strip = row == key ? kStrip : rows, qk = h.shape.qk_dim;
  for (int64_t i = 0; i < rows; i += strip) {
    const int64_t m = std::min(strip, rows - i);
    MultiplyHere<T>({.a = h.ds + i * kBlockStride,
                     .a_row = kBlockStride,
                     .b = h.keys + key * qk,
                     .b_row = qk,
                     .c = h.dq.data + (row + i) * h.dq.row,
                     .ldc = h.dq.row,
                     .m = m,
                     .n = qk,
                     .k = std::min(keys, row + i + m - key),
                     .accumulate = accumulate});
  }
}

// dk += dSᵀ · Q and dv += Pᵀ · dout; on the diagonal keys are seen by the rows from their own on.
template <typename T>
void AddToKeys(const BackwardHead<T>& h, int64_t row, int64_t rows, int64_t key, int64_t keys) {
  const int64_t strip = row == key ? kStrip : keys;
  for (int64_t j = 0; j < keys; j += strip) {
    const int64_t from = row == key ? j : 0;
    const auto add = [&](const T* a, const T* b, int64_t n, T* c) {
      MultiplyHere<T>({.a = a + from * kBlockStride + j,
                       .a_row = 1,
                       .a_col = kBlockStride,
                       .b = b + (row + from) * n,
                       .b_row = n,
                       .c = c + (key + j) * n,
                       .ldc = n,
                       .m = std::min(strip, keys - j),
                       .n = n,
                       .k = rows - from,
                       .accumulate = true});
    };
    add(h.ds, h.queries, h.shape.qk_dim, h.dkeys);
    add(h.p, h.douts, h.shape.v_dim, h.dvalues);
  }
}

template <typename T>
void Backward(const BackwardHead<T>& h) {
  for (int64_t row = 0; row < h.n; row += kBlock) {
    const int64_t rows = std::min(kBlock, h.n - row);
    const int64_t begin = Seen(h.shape, row).first / kBlock * kBlock;
    for (int64_t key = begin; key <= row; key += kBlock) {
      const int64_t keys = std::min(kBlock, h.n - key);
      MakeBlock(h, row, rows, key, keys);
      AddToQueries(h, row, rows, key, keys, key > begin);
      AddToKeys(h, row, rows, key, keys);
    }
  }
}

template <typename T>
struct HeadTensors {
  HeadRows<const T> q, k, v, out, dout;
  HeadRows<T> dq, dk, dv;
};

// A key head of a sequence: its query heads add to its gradients one after the other.
template <typename T>
void BackwardGroup(const AttentionShape<T>& shape, const HeadTensors<T>& t, int64_t g,
                   int64_t begin, int64_t n, const T* log_sums, int64_t all_rows) {
  HeadMemory<T>& memory = ThreadMemory<T>();
  const int64_t qk = shape.qk_dim, dim = shape.v_dim, stride = TurnedStride(n);
  const int64_t group = shape.heads / shape.kv_heads;
  const Rows<const T> k = Of(t.k, g, begin), v = Of(t.v, g, begin);
  T* keys = Room(memory.keys, n * qk);
  T* keys_turned = Room(memory.keys_turned, qk * stride);
  T* values_turned = Room(memory.values_turned, dim * stride);
  T* queries = Room(memory.queries, n * qk);
  T* douts = Room(memory.douts, n * dim);
  T* dkeys = Room(memory.dkeys, n * qk);
  T* dvalues = Room(memory.dvalues, n * dim);
  T* along = Room(memory.along, n);
  CopyRows(k.data, k.row, n, qk, keys, qk);
  Turn(k.data, k.row, n, qk, keys_turned, stride);
  Turn(v.data, v.row, n, dim, values_turned, stride);
  std::fill_n(dkeys, n * qk, T{0});
  std::fill_n(dvalues, n * dim, T{0});
  for (int64_t h = g * group; h < (g + 1) * group; ++h) {
    const Rows<const T> q = Of(t.q, h, begin), out = Of(t.out, h, begin);
    const Rows<const T> dout = Of(t.dout, h, begin);
    CopyRows(q.data, q.row, n, qk, queries, qk);
    CopyRows(dout.data, dout.row, n, dim, douts, dim);
    for (int64_t r = 0; r < n; ++r)  // Σ_j p_j · dp_j
      along[r] = Dot(out.data + r * out.row, dout.data + r * dout.row, dim);
    Backward(BackwardHead<T>{.shape = shape,
                             .n = n,
                             .stride = stride,
                             .queries = queries,
                             .douts = douts,
                             .keys = keys,
                             .keys_turned = keys_turned,
                             .values_turned = values_turned,
                             .log_sums = log_sums + h * all_rows + begin,
                             .along = along,
                             .p = Room(memory.scores, kBlock * kBlockStride),
                             .ds = Room(memory.dscores, kBlock * kBlockStride),
                             .dkeys = dkeys,
                             .dvalues = dvalues,
                             .dq = Of(t.dq, h, begin)});
  }
  const Rows<T> dk = Of(t.dk, g, begin), dv = Of(t.dv, g, begin);
  CopyRows(dkeys, qk, n, qk, dk.data, dk.row);
  CopyRows(dvalues, dim, n, dim, dv.data, dv.row);
}

}  // namespace

template <typename T>
void AttentionGradient(const AttentionShape<T>& shape, const RowLayout& rows, HeadRows<const T> q,
                       HeadRows<const T> k, HeadRows<const T> v, HeadRows<const T> out,
                       const T* log_sums, HeadRows<const T> dout, HeadRows<T> dq, HeadRows<T> dk,
                       HeadRows<T> dv, ThreadPool& pool) {
  const HeadTensors<T> tensors{q, k, v, out, dout, dq, dk, dv};
  pool.Run(rows.sequences() * shape.kv_heads, [&](int64_t task) {
    const int64_t s = task / shape.kv_heads, g = task % shape.kv_heads;
    const int64_t begin = rows.begins[s], n = rows.begins[s + 1] - begin;
    BackwardGroup(shape, tensors, g, begin, n, log_sums, rows.rows());
  });
}

// NOLINTBEGIN(bugprone-macro-parentheses): T is a type
#define SWITCHYARD_ATTENTION(T)                                                                  \
  template void Attention(const AttentionShape<T>&, const RowLayout&, HeadRows<const T>,         \
                          HeadRows<const T>, HeadRows<const T>, HeadRows<T>, T*, ThreadPool&);   \
  template void AttentionGradient(const AttentionShape<T>&, const RowLayout&, HeadRows<const T>, \
                                  HeadRows<const T>, HeadRows<const T>, HeadRows<const T>,       \
                                  const T*, HeadRows<const T>, HeadRows<T>, HeadRows<T>,         \
                                  HeadRows<T>, ThreadPool&);
SWITCHYARD_ATTENTION(float)
SWITCHYARD_ATTENTION(double)
// NOLINTEND(bugprone-macro-parentheses)

}  // namespace switchyard::train
