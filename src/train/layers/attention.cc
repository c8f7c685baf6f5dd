#include "train/layers/attention.h"

#include <algorithm>
#include <cmath>

#include "train/math/operands.h"
#include "train/math/row_math.h"

namespace switchyard::train {
namespace {

// Converts rows of scores to probabilities over the visible keys. Column 0 is key `key`. Columns of
// keys that are not visible become zero.
template <typename T>
void ComputeProbabilities(const AttentionShape<T>& shape, int64_t row, int64_t rows, int64_t key,
                          int64_t count, T* s, int64_t stride, T* log_sums) {
  for (int64_t r = 0; r < rows; ++r) {
    const auto [first, last] = VisibleKeys(shape, row + r);
    T* scores = s + r * stride;
    const T largest = shape.scale * Largest(scores + first - key, last - first);
    const T sum = ScaledExpSum(scores + first - key, last - first, shape.scale, largest);
    Scale(scores + first - key, last - first, T{1} / sum);
    std::fill(scores, scores + first - key, T{0});
    std::fill(scores + last - key, scores + count, T{0});
    log_sums[row + r] = largest + std::log(sum);
  }
}

template <typename T>
void ForwardHead(const AttentionShape<T>& shape, int64_t n, Rows<const T> q, Rows<const T> k,
                 Rows<const T> v, Rows<T> out, T* log_sums) {
  AttentionWorkspace<T>& memory = ThreadWorkspace<T>();
  const OperandForm form = FormOf<T>(shape.products);
  const int64_t dim = shape.v_dim, stride = TransposedStride(n),
                inner = InnerFloats(form, shape.qk_dim);
  const int64_t across = PairStride(form, dim);
  T* keys = Room(memory.keys_transposed, inner * stride);
  T* values = Room(memory.values, InnerFloats(form, n) * across);
  T* queries = Room(memory.queries, kQueryBlock * inner);
  T* s = Room(memory.scores, kQueryBlock * stride);
  PackTransposed(form, k.data, k.row, n, shape.qk_dim, keys, stride);
  PackAlongRows(form, v.data, v.row, n, dim, values, across);
  for (int64_t row = 0; row < n; row += kQueryBlock) {
    const int64_t rows = std::min(kQueryBlock, n - row);
    // Rounded down to an even key, because packed pairs of keys start at even keys. So a row may
    // include one key outside its window, which gets probability zero.
    const int64_t key = VisibleKeys(shape, row).first / 2 * 2, count = row + rows - key;
    PackOperandRows(form, q.data + row * q.row, q.row, rows, shape.qk_dim, queries);
    MultiplyPrepared<T>(form, {.a = queries,
                               .a_row = inner,
                               .b = keys + key,
                               .b_row = stride,
                               .c = s,
                               .ldc = stride,
                               .m = rows,
                               .n = count,
                               .k = inner});
    ComputeProbabilities(shape, row, rows, key, count, s, stride, log_sums);
    for (int64_t r = 0; r < rows; ++r) RoundInPlace(form, s + r * stride, count);
    for (int64_t r = 0; r < rows; r += kStrip) {
      const int64_t m = std::min(kStrip, rows - r);
      MultiplyPrepared<T>(form, {.a = s + r * stride,
                                 .a_row = stride,
                                 .b = values + InnerFloats(form, key) * across,
                                 .b_row = across,
                                 .c = out.data + (row + r) * out.row,
                                 .ldc = out.row,
                                 .m = m,
                                 .n = dim,
                                 .k = InnerFloats(form, row + r + m - key)});
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

template void Attention(const AttentionShape<float>&, const RowLayout&, HeadRows<const float>,
                        HeadRows<const float>, HeadRows<const float>, HeadRows<float>, float*,
                        ThreadPool&);
template void Attention(const AttentionShape<double>&, const RowLayout&, HeadRows<const double>,
                        HeadRows<const double>, HeadRows<const double>, HeadRows<double>, double*,
                        ThreadPool&);

}  // namespace switchyard::train
