// Backward pass of attention, in blocks of kBlock rows × kBlock keys.
#include <algorithm>

#include "train/layers/attention.h"
#include "train/math/operands.h"
#include "train/math/row_math.h"

namespace switchyard::train {
namespace {

constexpr int64_t kBlock = 128;                // rows and keys of a block
constexpr int64_t kBlockStride = kBlock + 16;  // an odd number of cache lines

// Packed operands of one query head of a sequence. Operands with suffix _along are packed for
// products that sum over the rows (or keys) of the sequence.
template <typename T>
struct BackwardHead {
  const AttentionShape<T>& shape;
  OperandForm form;
  int64_t n, stride;  // rows; row stride of the transposed keys and values
  const T *queries, *douts, *keys_transposed, *values_transposed;
  const T *keys_along, *queries_along, *douts_along;
  // [n] log_sums: see Attention. along: out · dout of each row (delta in FlashAttention-2).
  const T *log_sums, *along;
  // [kBlock, kBlockStride] each. p: the probabilities; ds: the gradients of the scores. The other
  // three are copies of p and ds that are packed for products. If nothing is rounded, they point to
  // p and ds.
  T *p, *ds, *p_along, *ds_along, *ds_rows;
  T *dkeys, *dvalues;
  Rows<T> dq;
};

// Packs rows [i, i + m) of a block for the products.
template <typename T>
void PackBlockRows(const BackwardHead<T>& h, int64_t i, int64_t m, int64_t keys) {
  if (h.form == OperandForm::kPlain) return;
  const int64_t at = i * kBlockStride, on = InnerFloats(h.form, i) * kBlockStride;
  PackAlongRows(h.form, h.p + at, kBlockStride, m, keys, h.p_along + on, kBlockStride);
  PackAlongRows(h.form, h.ds + at, kBlockStride, m, keys, h.ds_along + on, kBlockStride);
  for (int64_t r = 0; r < m; ++r) {
    T* to = h.ds_rows + at + r * kBlockStride;
    PackOperandRows(h.form, h.ds + at + r * kBlockStride, kBlockStride, 1, keys, to);
  }
}

// Computes the probabilities p, and the gradients ds of the unscaled scores q · k, for rows from
// `row` and keys from `key`. Both are zero where the key is not visible to the row.
template <typename T>
void ComputeBlock(const BackwardHead<T>& h, int64_t row, int64_t rows, int64_t key, int64_t keys) {
  for (int64_t i = 0; i < rows; i += kQueryBlock) {
    const int64_t m = std::min(kQueryBlock, rows - i);
    const int64_t n = std::min(keys, row + i + m - key);
    T* p = h.p + i * kBlockStride;
    T* ds = h.ds + i * kBlockStride;
    const auto scores = [&](const T* a, int64_t d, const T* b, T* c) {
      const int64_t inner = InnerFloats(h.form, d);
      MultiplyPrepared<T>(h.form, {.a = a + (row + i) * inner,
                                   .a_row = inner,
                                   .b = b + key,
                                   .b_row = h.stride,
                                   .c = c,
                                   .ldc = kBlockStride,
                                   .m = m,
                                   .n = n,
                                   .k = inner});
    };
    scores(h.queries, h.shape.qk_dim, h.keys_transposed, p);
    scores(h.douts, h.shape.v_dim, h.values_transposed, ds);
    for (int64_t r = 0; r < m; ++r) {
      const auto seen = VisibleKeys(h.shape, row + i + r);
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
    PackBlockRows(h, i, m, keys);
  }
}

// dq (+)= dS · K for the rows of a block. In diagonal blocks, row r uses only keys 0 to r.
template <typename T>
void AddToQueries(const BackwardHead<T>& h, int64_t row, int64_t rows, int64_t key, int64_t keys,
                  bool accumulate) {
  const int64_t strip = row == key ? kStrip : rows, qk = h.shape.qk_dim;
  const int64_t across = PairStride(h.form, qk);
  for (int64_t i = 0; i < rows; i += strip) {
    const int64_t m = std::min(strip, rows - i);
    MultiplyPrepared<T>(h.form, {.a = h.ds_rows + i * kBlockStride,
                                 .a_row = kBlockStride,
                                 .b = h.keys_along + InnerFloats(h.form, key) * across,
                                 .b_row = across,
                                 .c = h.dq.data + (row + i) * h.dq.row,
                                 .ldc = h.dq.row,
                                 .m = m,
                                 .n = qk,
                                 .k = InnerFloats(h.form, std::min(keys, row + i + m - key)),
                                 .accumulate = accumulate});
  }
}

// dk += dSᵀ · Q and dv += Pᵀ · dout for the keys of a block. In diagonal blocks, key j is visible
// only to rows j and later.
template <typename T>
void AddToKeys(const BackwardHead<T>& h, int64_t row, int64_t rows, int64_t key, int64_t keys) {
  const int64_t strip = row == key ? kStrip : keys;
  for (int64_t j = 0; j < keys; j += strip) {
    const int64_t from = row == key ? j : 0;
    const auto add = [&](const T* a, const T* b, int64_t n, T* c) {
      const int64_t across = PairStride(h.form, n);
      MultiplyPrepared<T>(h.form, {.a = a + InnerFloats(h.form, from) * kBlockStride + j,
                                   .a_row = 1,
                                   .a_col = kBlockStride,
                                   .b = b + InnerFloats(h.form, row + from) * across,
                                   .b_row = across,
                                   .c = c + (key + j) * n,
                                   .ldc = n,
                                   .m = std::min(strip, keys - j),
                                   .n = n,
                                   .k = InnerFloats(h.form, rows - from),
                                   .accumulate = true});
    };
    add(h.ds_along, h.queries_along, h.shape.qk_dim, h.dkeys);
    add(h.p_along, h.douts_along, h.shape.v_dim, h.dvalues);
  }
}

template <typename T>
void Backward(const BackwardHead<T>& h) {
  for (int64_t row = 0; row < h.n; row += kBlock) {
    const int64_t rows = std::min(kBlock, h.n - row);
    const int64_t begin = VisibleKeys(h.shape, row).first / kBlock * kBlock;
    for (int64_t key = begin; key <= row; key += kBlock) {
      const int64_t keys = std::min(kBlock, h.n - key);
      ComputeBlock(h, row, rows, key, keys);
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

// Packs `in` for products that sum over the rows. If nothing is rounded, returns `plain`, which is
// already packed.
template <typename T>
const T* PackedAlongRows(OperandForm form, Rows<const T> in, int64_t n, int64_t d, const T* plain,
                         std::vector<T>& memory) {
  if (form == OperandForm::kPlain && plain != nullptr) return plain;
  const int64_t across = PairStride(form, d);
  T* out = Room(memory, InnerFloats(form, n) * across);
  PackAlongRows(form, in.data, in.row, n, d, out, across);
  return out;
}

// Computes the gradients of one key head of a sequence, and of the query heads that use this key
// head. The query heads are processed in order, and each adds to the gradients of the key head.
template <typename T>
void BackwardGroup(const AttentionShape<T>& shape, const HeadTensors<T>& t, int64_t g,
                   int64_t begin, int64_t n, const T* log_sums, int64_t all_rows) {
  AttentionWorkspace<T>& memory = ThreadWorkspace<T>();
  const OperandForm form = FormOf<T>(shape.products);
  const bool plain = form == OperandForm::kPlain;
  const int64_t qk = shape.qk_dim, dim = shape.v_dim, stride = TransposedStride(n);
  const int64_t group = shape.heads / shape.kv_heads, block = kBlock * kBlockStride;
  const Rows<const T> k = Of(t.k, g, begin), v = Of(t.v, g, begin);
  T* keys_transposed = Room(memory.keys_transposed, InnerFloats(form, qk) * stride);
  T* values_transposed = Room(memory.values_transposed, InnerFloats(form, dim) * stride);
  T* queries = Room(memory.queries, n * InnerFloats(form, qk));
  T* douts = Room(memory.douts, n * InnerFloats(form, dim));
  T* dkeys = Room(memory.dkeys, n * qk);
  T* dvalues = Room(memory.dvalues, n * dim);
  T* along = Room(memory.along, n);
  T *p = Room(memory.scores, block), *ds = Room(memory.dscores, block);
  PackTransposed(form, k.data, k.row, n, qk, keys_transposed, stride);
  PackTransposed(form, v.data, v.row, n, dim, values_transposed, stride);
  const T* keys_along = PackedAlongRows<T>(form, k, n, qk, nullptr, memory.keys);
  std::fill_n(dkeys, n * qk, T{0});
  std::fill_n(dvalues, n * dim, T{0});
  for (int64_t h = g * group; h < (g + 1) * group; ++h) {
    const Rows<const T> q = Of(t.q, h, begin), out = Of(t.out, h, begin);
    const Rows<const T> dout = Of(t.dout, h, begin);
    PackOperandRows(form, q.data, q.row, n, qk, queries);
    PackOperandRows(form, dout.data, dout.row, n, dim, douts);
    for (int64_t r = 0; r < n; ++r)  // equals Σ_j p_j · dp_j
      along[r] = Dot(out.data + r * out.row, dout.data + r * dout.row, dim);
    Backward(BackwardHead<T>{
        .shape = shape,
        .form = form,
        .n = n,
        .stride = stride,
        .queries = queries,
        .douts = douts,
        .keys_transposed = keys_transposed,
        .values_transposed = values_transposed,
        .keys_along = keys_along,
        .queries_along = PackedAlongRows<T>(form, q, n, qk, queries, memory.queries_along),
        .douts_along = PackedAlongRows<T>(form, dout, n, dim, douts, memory.douts_along),
        .log_sums = log_sums + h * all_rows + begin,
        .along = along,
        .p = p,
        .ds = ds,
        .p_along = plain ? p : Room(memory.scores_along, block),
        .ds_along = plain ? ds : Room(memory.dscores_along, block),
        .ds_rows = plain ? ds : Room(memory.dscores_rows, block),
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
#define SWITCHYARD_ATTENTION_GRADIENT(T)                                                         \
  template void AttentionGradient(const AttentionShape<T>&, const RowLayout&, HeadRows<const T>, \
                                  HeadRows<const T>, HeadRows<const T>, HeadRows<const T>,       \
                                  const T*, HeadRows<const T>, HeadRows<T>, HeadRows<T>,         \
                                  HeadRows<T>, ThreadPool&);
SWITCHYARD_ATTENTION_GRADIENT(float)
SWITCHYARD_ATTENTION_GRADIENT(double)
// NOLINTEND(bugprone-macro-parentheses)

}  // namespace switchyard::train
