#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "core/check.h"
#include "kernels/cache_rows.h"
#include "kernels/reference.h"

namespace switchyard::kernels::reference {
namespace {

// Dequantizes row `index` of a cache whose rows have n elements.
void ReadRow(const void* cache, DType dtype, int64_t index, int64_t n, float* row) {
  ReadCacheRow(dtype, static_cast<const char*>(cache) + index * CacheRowBytes(dtype, n), n, row);
}

// The rows of one head's keys or values from key `first` on, which all query rows and query heads
// share. [kv_len - first, width]
struct Rows {
  int64_t first, width;
  std::vector<float> data;

  Rows(const SequenceSpan& s, int64_t page_size, int64_t from, const void* cache, DType dtype,
       int64_t kv_heads, int64_t head, int64_t n)
      : first(from), width(n), data((s.kv_len - from) * n) {
    for (int64_t key = first; key < s.kv_len; ++key) {
      const int64_t index = s.SlotOf(key, page_size) * kv_heads + head;
      ReadRow(cache, dtype, index, width, data.data() + (key - first) * width);
    }
  }
  const float* operator[](int64_t key) const { return data.data() + (key - first) * width; }
};

// Softmax over scores and an optional sink; writes probabilities to scores.
void Softmax(std::vector<double>& scores, const float* sink) {
  double top = sink != nullptr ? *sink : -std::numeric_limits<double>::infinity();
  for (double s : scores) top = std::max(top, s);
  double sum = sink != nullptr ? std::exp(*sink - top) : 0.0;
  for (double& s : scores) sum += s = std::exp(s - top);
  for (double& s : scores) s /= sum;
}

}  // namespace

void Attention(const AttentionParams& p) {
  CHECK((p.k_scales == nullptr && p.v_scales == nullptr) || p.kv_dtype == DType::kF8E4M3);
  const int64_t group = p.heads / p.kv_heads, v_width = p.value_width();
  const auto first_key = [&](int64_t position) {
    if (p.chunk > 0) return position - position % p.chunk;
    return p.window > 0 ? std::max<int64_t>(0, position - p.window + 1) : int64_t{0};
  };
  for (const SequenceSpan& s : p.sequences) {
    if (s.rows == 0) continue;
    const int64_t begin = first_key(s.kv_len - s.rows);
    for (int64_t kv_head = 0; kv_head < p.kv_heads; ++kv_head) {
      const Rows keys(s, p.page_size, begin, p.k_cache, p.kv_dtype, p.kv_heads, kv_head,
                      p.head_dim);
      const Rows values(s, p.page_size, begin, p.v_cache, p.kv_dtype, p.kv_heads, kv_head, v_width);
      const double k_scale = p.k_scales != nullptr ? p.k_scales[kv_head] : 1.0;
      const double v_scale = p.v_scales != nullptr ? p.v_scales[kv_head] : 1.0;
      for (int64_t i = 0; i < s.rows * group; ++i) {
        const int64_t r = i / group, h = kv_head * group + i % group;
        const int64_t position = s.kv_len - s.rows + r, first = first_key(position);
        const float* q = p.q + (s.row_begin + r) * p.ldq + h * p.head_dim;
        std::vector<double> scores(position + 1 - first);
        for (int64_t j = first; j <= position; ++j) {
          const float* const key = keys[j];
          double sum = 0;
          for (int64_t d = 0; d < p.head_dim; ++d) sum += double{q[d]} * key[d];
          scores[j - first] = sum * k_scale * p.scale;
        }
        Softmax(scores, p.sinks != nullptr ? p.sinks + h : nullptr);
        float* out = p.out + (s.row_begin + r) * p.ldo + h * v_width;
        std::vector<double> sums(v_width);
        for (int64_t j = first; j <= position; ++j) {
          const float* const value = values[j];
          for (int64_t d = 0; d < v_width; ++d) sums[d] += scores[j - first] * value[d];
        }
        for (int64_t d = 0; d < v_width; ++d)
          out[d] = static_cast<float>(sums[d] * v_scale * p.value_scale);
      }
    }
  }
}

void LatentAttention(const LatentAttentionParams& p) {
  const int64_t width = p.lora + p.rope;
  const double cache_scale = p.cache_scale != nullptr ? *p.cache_scale : 1.0;
  for (const SequenceSpan& s : p.sequences) {
    if (s.rows == 0) continue;
    const Rows rows(s, p.page_size, 0, p.cache, p.kv_dtype, 1, 0, width);
    for (int64_t r = 0; r < s.rows; ++r) {
      const int64_t position = s.kv_len - s.rows + r;
      for (int64_t h = 0; h < p.heads; ++h) {
        const float* q = p.q + (s.row_begin + r) * p.ldq + h * width;
        std::vector<double> scores(position + 1);
        for (int64_t j = 0; j <= position; ++j) {
          const float* const key = rows[j];
          double sum = 0;
          for (int64_t d = 0; d < width; ++d) sum += double{q[d]} * key[d];
          scores[j] = sum * cache_scale * p.scale;
        }
        Softmax(scores, nullptr);
        float* out = p.out + (s.row_begin + r) * p.ldo + h * p.lora;
        std::vector<double> sums(p.lora);
        for (int64_t j = 0; j <= position; ++j) {
          const float* const value = rows[j];
          for (int64_t d = 0; d < p.lora; ++d) sums[d] += scores[j] * value[d];
        }
        for (int64_t d = 0; d < p.lora; ++d) out[d] = static_cast<float>(sums[d] * cache_scale);
      }
    }
  }
}

void SelectKeys(const SelectKeysParams& p) {
  for (const SequenceSpan& s : p.sequences) {
    for (int64_t r = 0; r < s.rows; ++r) {
      const int64_t keys = s.kv_len - s.rows + r + 1;
      if (keys <= p.topk) continue;
      const float* const q = p.q + (s.row_begin + r) * p.ldq;
      const float* const weights = p.weights + (s.row_begin + r) * p.heads;
      std::vector<float> scores(keys), key(p.head_dim);
      for (int64_t j = 0; j < keys; ++j) {
        ReadRow(p.cache, p.kv_dtype, s.SlotOf(j, p.page_size), p.head_dim, key.data());
        double score = 0;
        for (int64_t h = 0; h < p.heads; ++h) {
          double product = 0;
          for (int64_t d = 0; d < p.head_dim; ++d)
            product += double{q[h * p.head_dim + d]} * key[d];
          score += weights[h] * (product < 0 ? 0.0 : product);  // keeps NaN
        }
        scores[j] =
            std::isnan(score) ? -std::numeric_limits<float>::infinity() : static_cast<float>(score);
      }
      std::vector<int64_t> order(keys);
      std::iota(order.begin(), order.end(), 0);
      std::ranges::stable_sort(order, std::greater(), [&](int64_t j) { return scores[j]; });
      std::sort(order.begin(), order.begin() + p.topk);
      for (int64_t i = 0; i < p.topk; ++i)
        p.selected[(s.row_begin + r) * p.topk + i] =
            static_cast<int32_t>(s.SlotOf(order[i], p.page_size));
    }
  }
}

}  // namespace switchyard::kernels::reference
