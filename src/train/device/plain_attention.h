// Attention of plain operations, in the order of its formulas.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "core/parallel.h"
#include "train/device/ops.h"
#include "train/device/plain_ops.h"

namespace switchyard::train::plain {

template <typename U>
U* At(const HeadRows<U>& rows, int64_t t, int64_t head) {
  return rows.data + t * rows.row + head * rows.head;
}

// Calls body(row, its first visible key) for all rows.
template <typename Body>
void ForQueries(const AttentionShape<float>& s, const DeviceRows& rows, const Body& body) {
  for (int64_t i = 0; i < rows.sequences; ++i) {
    for (int64_t t = rows.begins[i]; t < rows.begins[i + 1]; ++t) {
      const int64_t begin = rows.begins[i];
      body(t, begin + VisibleKeys(s, t - begin).first);
    }
  }
}

template <typename C>
void Attention(const AttentionShape<float>& s, const DeviceRows& rows, HeadRows<const C> q,
               HeadRows<const C> k, HeadRows<const C> v, HeadRows<C> out, float* log_sums,
               ThreadPool& pool) {
  const int64_t group = s.heads / s.kv_heads;
  pool.Run(s.heads, [&](int64_t h) {
    std::vector<float> scores, sum(static_cast<size_t>(s.v_dim));
    ForQueries(s, rows, [&](int64_t t, int64_t first) {
      scores.clear();
      float largest = -INFINITY, total = 0;
      for (int64_t j = first; j <= t; ++j) {
        scores.push_back(s.scale * Dot(At(q, t, h), 1, At(k, j, h / group), 1, s.qk_dim));
        largest = std::max(largest, scores.back());
      }
      for (float& score : scores) total += score = std::exp(score - largest);
      std::ranges::fill(sum, 0.0f);
      for (int64_t j = first; j <= t; ++j) {
        const float p = Load(Rounded<C>(scores[static_cast<size_t>(j - first)]));
        const C* value = At(v, j, h / group);
        for (int64_t i = 0; i < s.v_dim; ++i) sum[static_cast<size_t>(i)] += p * Load(value[i]);
      }
      for (int64_t i = 0; i < s.v_dim; ++i)
        At(out, t, h)[i] = Rounded<C>(sum[static_cast<size_t>(i)] / total);
      log_sums[h * rows.m + t] = largest + std::log(total);
    });
  });
}

// A task computes the gradients of one key head and of its query heads.
template <typename C>
void AttentionGradient(const AttentionShape<float>& s, const DeviceRows& rows, HeadRows<const C> q,
                       HeadRows<const C> k, HeadRows<const C> v, HeadRows<const C> out,
                       const float* log_sums, HeadRows<const C> dout, HeadRows<C> dq,
                       HeadRows<C> dk, HeadRows<C> dv, ThreadPool& pool) {
  const int64_t group = s.heads / s.kv_heads;
  pool.Run(s.kv_heads, [&](int64_t head) {
    std::vector<float> dkeys(static_cast<size_t>(rows.m * s.qk_dim)),
        dvalues(static_cast<size_t>(rows.m * s.v_dim)), dquery(static_cast<size_t>(s.qk_dim));
    for (int64_t h = head * group; h < (head + 1) * group; ++h) {
      ForQueries(s, rows, [&](int64_t t, int64_t first) {
        const C *query = At(q, t, h), *d = At(dout, t, h);
        const float along = Dot(d, 1, At(out, t, h), 1, s.v_dim);
        std::ranges::fill(dquery, 0.0f);
        for (int64_t j = first; j <= t; ++j) {
          const C* key = At(k, j, head);
          const float p =
              std::exp(s.scale * Dot(query, 1, key, 1, s.qk_dim) - log_sums[h * rows.m + t]);
          const float dp = Dot(d, 1, At(v, j, head), 1, s.v_dim);
          const float ds = Load(Rounded<C>(p * (dp - along) * s.scale));
          const float rounded = Load(Rounded<C>(p));
          for (int64_t i = 0; i < s.v_dim; ++i)
            dvalues[static_cast<size_t>(j * s.v_dim + i)] += rounded * Load(d[i]);
          for (int64_t i = 0; i < s.qk_dim; ++i) {
            dquery[static_cast<size_t>(i)] += ds * Load(key[i]);
            dkeys[static_cast<size_t>(j * s.qk_dim + i)] += ds * Load(query[i]);
          }
        }
        for (int64_t i = 0; i < s.qk_dim; ++i)
          At(dq, t, h)[i] = Rounded<C>(dquery[static_cast<size_t>(i)]);
      });
    }
    for (int64_t t = 0; t < rows.m; ++t) {
      for (int64_t i = 0; i < s.qk_dim; ++i)
        At(dk, t, head)[i] = Rounded<C>(dkeys[static_cast<size_t>(t * s.qk_dim + i)]);
      for (int64_t i = 0; i < s.v_dim; ++i)
        At(dv, t, head)[i] = Rounded<C>(dvalues[static_cast<size_t>(t * s.v_dim + i)]);
    }
  });
}

}  // namespace switchyard::train::plain
