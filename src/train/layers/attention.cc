#include "train/layers/attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "train/layers/pointwise.h"
#include "train/math/product.h"

namespace switchyard::train {
namespace {

constexpr int64_t kQueries = 64;  // rows whose scores are made at once

// A run of query rows of one sequence and head, and the keys that some of them see. Rows count from
// the beginning of the pass.
struct Block {
  int64_t row, rows;
  int64_t key, keys;
};

Block BlockAt(int64_t begin, int64_t end, int64_t row, int32_t window) {
  const int64_t rows = std::min(kQueries, end - row);
  const int64_t key = window > 0 ? std::max(begin, row - window + 1) : begin;
  return {row, rows, key, row + rows - key};
}

// First and one past the last key that row r of the block sees, counted from block.key.
template <typename T>
std::pair<int64_t, int64_t> Seen(const AttentionShape<T>& shape, const Block& b, int64_t r) {
  const int64_t last = b.row + r + 1 - b.key;
  return {shape.window > 0 ? std::max<int64_t>(0, last - shape.window) : 0, last};
}

template <typename T>
struct Scratch {
  std::vector<T> scores, dscores, dots;
};
template <typename T>
Scratch<T>& ThreadScratch(int64_t count) {
  static thread_local Scratch<T> scratch;
  for (auto* v : {&scratch.scores, &scratch.dscores})
    if (static_cast<int64_t>(v->size()) < count) v->resize(count);
  return scratch;
}

// s [rows, keys] = scale · a[row …] · b[key …]ᵀ
template <typename T>
void RowsTimesKeys(const Block& b, const T* a, int64_t lda, const T* keys, int64_t ldb, int64_t n,
                   T scale, T* s) {
  MultiplyHere<T>({.a = a + b.row * lda,
                   .a_row = lda,
                   .b = keys + b.key * ldb,
                   .b_row = 1,
                   .b_col = ldb,
                   .c = s,
                   .ldc = b.keys,
                   .m = b.rows,
                   .n = b.keys,
                   .k = n,
                   .scale = scale});
}

template <typename T>
void ForwardBlock(const AttentionShape<T>& shape, const Block& b, const T* q, int64_t ldq,
                  const T* k, int64_t ldk, const T* v, int64_t ldv, T* out, int64_t ldo,
                  T* log_sums) {
  T* s = ThreadScratch<T>(b.rows * b.keys).scores.data();
  RowsTimesKeys(b, q, ldq, k, ldk, shape.qk_dim, shape.scale, s);
  for (int64_t r = 0; r < b.rows; ++r) {
    const auto [first, last] = Seen(shape, b, r);
    T* row = s + r * b.keys;
    const T largest = *std::max_element(row + first, row + last);
    const T sum = ExpSum(row + first, last - first, largest);
    const T inverse = T{1} / sum;
    for (int64_t j = first; j < last; ++j) row[j] *= inverse;
    std::fill(row, row + first, T{0});
    std::fill(row + last, row + b.keys, T{0});
    log_sums[b.row + r] = largest + std::log(sum);
  }
  MultiplyHere<T>({.a = s,
                   .a_row = b.keys,
                   .b = v + b.key * ldv,
                   .b_row = ldv,
                   .c = out + b.row * ldo,
                   .ldc = ldo,
                   .m = b.rows,
                   .n = shape.v_dim,
                   .k = b.keys});
}

}  // namespace

template <typename T>
void Attention(const AttentionShape<T>& shape, const RowLayout& rows, HeadRows<const T> q,
               HeadRows<const T> k, HeadRows<const T> v, HeadRows<T> out, T* log_sums,
               ThreadPool& pool) {
  const int64_t group = shape.heads / shape.kv_heads;
  pool.Run(rows.sequences() * shape.heads, [&](int64_t task) {
    const int64_t s = task / shape.heads, h = task % shape.heads, g = h / group;
    const int64_t begin = rows.begins[s], end = rows.begins[s + 1];
    for (int64_t row = begin; row < end; row += kQueries) {
      ForwardBlock(shape, BlockAt(begin, end, row, shape.window), q.data + h * q.head, q.row,
                   k.data + g * k.head, k.row, v.data + g * v.head, v.row, out.data + h * out.head,
                   out.row, log_sums + h * rows.rows());
    }
  });
}

namespace {

template <typename T>
struct HeadTensors {
  HeadRows<const T> q, k, v, out, dout;
  HeadRows<T> dq, dk, dv;
};

// Adds to dk and dv, writes dq.
template <typename T>
void BackwardBlock(const AttentionShape<T>& shape, const Block& b, const HeadTensors<T>& t,
                   int64_t h, int64_t g, const T* log_sums) {
  Scratch<T>& scratch = ThreadScratch<T>(b.rows * b.keys);
  T* p = scratch.scores.data();
  T* ds = scratch.dscores.data();
  const T* q = t.q.data + h * t.q.head;
  const T* k = t.k.data + g * t.k.head;
  const T* v = t.v.data + g * t.v.head;
  const T* out = t.out.data + h * t.out.head;
  const T* dout = t.dout.data + h * t.dout.head;
  RowsTimesKeys(b, q, t.q.row, k, t.k.row, shape.qk_dim, shape.scale, p);
  RowsTimesKeys(b, dout, t.dout.row, v, t.v.row, shape.v_dim, T{1}, ds);
  for (int64_t r = 0; r < b.rows; ++r) {
    const auto [first, last] = Seen(shape, b, r);
    T* prow = p + r * b.keys;
    T* drow = ds + r * b.keys;
    ExpSum(prow + first, last - first, log_sums[b.row + r]);
    std::fill(prow, prow + first, T{0});
    std::fill(prow + last, prow + b.keys, T{0});
    const T* o = out + (b.row + r) * t.out.row;
    const T* d = dout + (b.row + r) * t.dout.row;
    T along = 0;  // Σ_j p_j · dp_j = dout · out
    for (int64_t i = 0; i < shape.v_dim; ++i) along += o[i] * d[i];
    for (int64_t j = 0; j < b.keys; ++j) drow[j] = prow[j] * (drow[j] - along) * shape.scale;
  }
  MultiplyHere<T>({.a = ds,
                   .a_row = b.keys,
                   .b = k + b.key * t.k.row,
                   .b_row = t.k.row,
                   .c = t.dq.data + h * t.dq.head + b.row * t.dq.row,
                   .ldc = t.dq.row,
                   .m = b.rows,
                   .n = shape.qk_dim,
                   .k = b.keys});
  MultiplyHere<T>({.a = ds,
                   .a_row = 1,
                   .a_col = b.keys,
                   .b = q + b.row * t.q.row,
                   .b_row = t.q.row,
                   .c = t.dk.data + g * t.dk.head + b.key * t.dk.row,
                   .ldc = t.dk.row,
                   .m = b.keys,
                   .n = shape.qk_dim,
                   .k = b.rows,
                   .accumulate = true});
  MultiplyHere<T>({.a = p,
                   .a_row = 1,
                   .a_col = b.keys,
                   .b = dout + b.row * t.dout.row,
                   .b_row = t.dout.row,
                   .c = t.dv.data + g * t.dv.head + b.key * t.dv.row,
                   .ldc = t.dv.row,
                   .m = b.keys,
                   .n = shape.v_dim,
                   .k = b.rows,
                   .accumulate = true});
}

}  // namespace

template <typename T>
void AttentionGradient(const AttentionShape<T>& shape, const RowLayout& rows, HeadRows<const T> q,
                       HeadRows<const T> k, HeadRows<const T> v, HeadRows<const T> out,
                       const T* log_sums, HeadRows<const T> dout, HeadRows<T> dq, HeadRows<T> dk,
                       HeadRows<T> dv, ThreadPool& pool) {
  const int64_t group = shape.heads / shape.kv_heads;
  const HeadTensors<T> tensors{q, k, v, out, dout, dq, dk, dv};
  // A key head's gradients are one task's: its query heads add to them one after the other.
  pool.Run(rows.sequences() * shape.kv_heads, [&](int64_t task) {
    const int64_t s = task / shape.kv_heads, g = task % shape.kv_heads;
    const int64_t begin = rows.begins[s], end = rows.begins[s + 1];
    for (int64_t t = begin; t < end; ++t) {
      std::fill_n(dk.data + t * dk.row + g * dk.head, shape.qk_dim, T{0});
      std::fill_n(dv.data + t * dv.row + g * dv.head, shape.v_dim, T{0});
    }
    for (int64_t h = g * group; h < (g + 1) * group; ++h) {
      for (int64_t row = begin; row < end; row += kQueries) {
        BackwardBlock(shape, BlockAt(begin, end, row, shape.window), tensors, h, g,
                      log_sums + h * rows.rows());
      }
    }
  });
}

#define SWITCHYARD_ATTENTION(T)                                                                  \
  template void Attention(const AttentionShape<T>&, const RowLayout&, HeadRows<const T>,         \
                          HeadRows<const T>, HeadRows<const T>, HeadRows<T>, T*, ThreadPool&);   \
  template void AttentionGradient(const AttentionShape<T>&, const RowLayout&, HeadRows<const T>, \
                                  HeadRows<const T>, HeadRows<const T>, HeadRows<const T>,       \
                                  const T*, HeadRows<const T>, HeadRows<T>, HeadRows<T>,         \
                                  HeadRows<T>, ThreadPool&);
SWITCHYARD_ATTENTION(float)
SWITCHYARD_ATTENTION(double)

}  // namespace switchyard::train
