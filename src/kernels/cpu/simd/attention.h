// Softmax attention of one task, online over blocks of kKeyBlock keys (Milakov and Gimelshein 2018;
// FlashAttention). Blocks start at absolute multiples of kKeyBlock, each query visits only the keys
// it sees, in ascending order, and its running maximum, sum and output change once per block. So a
// query's result depends on its own keys alone: chunks, batches, pages and prefix reuse leave the
// bits as they are.
#pragma once

#include "kernels/cpu/leaves.h"
#include "kernels/cpu/simd/linear.h"
#include "kernels/cpu/simd/math.h"
#include "kernels/cpu/simd/weighted_rows.h"

namespace switchyard::kernels::cpu::simd {

template <class V>
int64_t Padded(int64_t n) {
  return (n + V::kLanes - 1) / V::kLanes * V::kLanes;
}

// The keys [begin, end) that a query sees in a block, counted from the block's start.
struct KeyRange {
  int64_t begin, end;
};

// The buffers of a task, cut from its scratch, and what it reads of the current block.
template <class V>
struct AttentionState {
  const AttentionTask& t;
  int64_t queries, acc_stride;
  float* acc;      // [queries, acc_stride] outputs before division by sum
  float* weights;  // [queries, kKeyBlock] scores, then their exponentials
  float* keys;     // [kKeyBlock, Padded(k_width)] converted to float32
  float* values;   // [kKeyBlock, Padded(v_width)], or inside keys
  const float* key_rows[kKeyBlock];
  const float* value_rows[kKeyBlock];
  float top[kQueryBlock], sum[kQueryBlock];

  explicit AttentionState(const AttentionTask& task)
      : t(task), queries(t.rows * t.group), acc_stride(Padded<V>(t.v_width)) {
    acc = t.scratch;
    weights = acc + kQueryBlock * acc_stride;
    keys = weights + kQueryBlock * kKeyBlock;
    values = keys + kKeyBlock * Padded<V>(t.k_width);
    for (int64_t i = 0; i < queries; ++i) {
      // A sink is a first score that carries no value: its exponential relative to itself is 1.
      top[i] = t.sinks != nullptr ? t.sinks[i % t.group] : -__builtin_inff();
      sum[i] = t.sinks != nullptr ? 1.0f : 0.0f;
    }
    for (int64_t c = 0; c < queries * acc_stride; c += V::kLanes) V::Store(acc + c, V::Zero());
  }

  int64_t Position(int64_t query) const { return t.first_position + query / t.group; }
  int64_t FirstKey(int64_t query) const {
    const int64_t first = Position(query) - t.window + 1;
    return t.window > 0 && first > 0 ? first : 0;
  }
  KeyRange Range(int64_t query, int64_t block) const {
    const int64_t start = block * kKeyBlock;
    const int64_t begin = FirstKey(query) - start, end = Position(query) + 1 - start;
    return {begin > 0 ? begin : 0, end < kKeyBlock ? end : kKeyBlock};
  }
};

// A cached row as float32, zeros up to a whole vector: in place where it is that already, else
// converted to `buffer`.
template <class V>
const float* CachedRow(DType dtype, const void* cache, int64_t offset, int64_t width,
                       float* buffer) {
  const char* bytes = static_cast<const char*>(cache);
  if (dtype == DType::kF32) {
    const auto* row = reinterpret_cast<const float*>(bytes) + offset;
    if (width % V::kLanes == 0) return row;
    ConvertRow<V>(F32Row<V>{reinterpret_cast<const char*>(row)}, width, 0, buffer);
  } else if (dtype == DType::kBF16) {
    ConvertRow<V>(BF16Row<V>{bytes + 2 * offset}, width, 0, buffer);
  } else {
    ConvertRow<V>(F16Row<V>{bytes + 2 * offset}, width, 0, buffer);
  }
  return buffer;
}

// Finds and converts the keys [begin, end) of a block.
template <class V>
void LoadKeys(AttentionState<V>& s, int64_t block, KeyRange range) {
  const AttentionTask& t = s.t;
  for (int64_t j = range.begin; j < range.end; ++j) {
    const int64_t key = block * kKeyBlock + j;
    const int64_t slot = int64_t{t.pages[key / t.page_size]} * t.page_size + key % t.page_size;
    const int64_t offset = slot * t.key_stride;
    s.key_rows[j] =
        CachedRow<V>(t.dtype, t.k, offset, t.k_width, s.keys + j * Padded<V>(t.k_width));
    // A latent row is wider than its value: lanes beyond v_width of a padded value hold the rest of
    // the row, and only reach lanes of acc that are never stored.
    s.value_rows[j] = t.v_in_k ? s.key_rows[j]
                               : CachedRow<V>(t.dtype, t.v, offset, t.v_width,
                                              s.values + j * Padded<V>(t.v_width));
  }
}

// Scores of every query with the loaded keys.
template <class V>
void ScoreKeys(AttentionState<V>& s, KeyRange range) {
  const AttentionTask& t = s.t;
  LinearTask product = {};
  for (int64_t i = 0; i < s.queries; i += V::kTileRows) {
    const int64_t rows = s.queries - i < V::kTileRows ? s.queries - i : V::kTileRows;
    product.y = s.weights + i * kKeyBlock;
    product.ldy = kKeyBlock;
    for (int64_t j = range.begin; j < range.end; j += kTileCols) {
      const int64_t count = range.end - j < kTileCols ? range.end - j : kTileCols;
      F32Row<V> w[kTileCols];
      for (int c = 0; c < kTileCols; ++c) {
        w[c].p = reinterpret_cast<const char*>(s.key_rows[j + (c < count ? c : count - 1)]);
      }
      ForRows<V>(rows, [&]<int M>() {
        const float* q[M];
        for (int r = 0; r < M; ++r) {
          q[r] = t.q + (i + r) / t.group * t.ldq + (i + r) % t.group * t.k_width;
        }
        typename V::F acc[M][kTileCols];
        for (int r = 0; r < M; ++r) {
          for (int c = 0; c < kTileCols; ++c) acc[r][c] = V::Zero();
        }
        RunTile<V, F32Row<V>, M, false>(q, w, t.k_width, 0, acc);
        FinishTile<V, M>(product, 0, j, count, acc);
      });
    }
  }
}

// Turns a query's scores into exponentials relative to the new maximum, and rescales what the query
// has summed so far. Lanes outside the range count as minus infinity.
template <class V>
void Exponentiate(AttentionState<V>& s, int64_t query, KeyRange range) {
  const auto none = V::Set1(-__builtin_inff());
  float* w = s.weights + query * kKeyBlock;
  const auto scale = V::Set1(s.t.scale);
  auto highest = none;
  for (int64_t j = 0; j < kKeyBlock; j += V::kLanes) {
    auto score = none;
    if (j < range.end && j + V::kLanes > range.begin) {
      score = V::Mul(V::Load(w + j), scale);
      if (j < range.begin) score = V::KeepFrom(score, range.begin - j, none);
      if (j + V::kLanes > range.end) score = V::KeepFirst(score, range.end - j, none);
    }
    V::Store(w + j, score);
    highest = V::Max(highest, score);
  }
  const float block_top = V::ReduceMax(highest);
  const float top = block_top > s.top[query] ? block_top : s.top[query];
  auto sum = V::Zero();
  for (int64_t j = 0; j < kKeyBlock; j += V::kLanes) {
    const auto e = Exp<V>(V::Sub(V::Load(w + j), V::Set1(top)));
    V::Store(w + j, e);
    sum = V::Add(sum, e);
  }
  const auto keep = Exp<V>(V::Set1(s.top[query] - top));
  float kept[V::kLanes];
  V::Store(kept, keep);
  s.sum[query] = s.sum[query] * kept[0] + V::ReduceAdd(sum);
  s.top[query] = top;
  float* acc = s.acc + query * s.acc_stride;
  for (int64_t c = 0; c < s.acc_stride; c += V::kLanes) {
    V::Store(acc + c, V::Mul(V::Load(acc + c), keep));
  }
}

template <class V>
void AddValues(AttentionState<V>& s, int64_t block) {
  for (int64_t i = 0; i < s.queries;) {
    const KeyRange range = s.Range(i, block);
    int64_t end = i + 1;  // queries that see the same keys share the values they load
    for (; end < s.queries; ++end) {
      const KeyRange other = s.Range(end, block);
      if (other.begin != range.begin || other.end != range.end) break;
    }
    if (range.begin < range.end) {
      AddWeightedRows<V>(s.weights + i * kKeyBlock, kKeyBlock, s.value_rows, range.begin, range.end,
                         s.acc_stride, end - i, s.acc + i * s.acc_stride, s.acc_stride);
    }
    i = end;
  }
}

template <class V>
void WriteOutputs(const AttentionState<V>& s) {
  const AttentionTask& t = s.t;
  for (int64_t i = 0; i < s.queries; ++i) {
    float* out = t.out + i / t.group * t.ldo + i % t.group * t.v_width;
    const float* acc = s.acc + i * s.acc_stride;
    const auto inverse = V::Set1(1.0f / s.sum[i]);
    int64_t c = 0;
    for (; c + V::kLanes <= t.v_width; c += V::kLanes) {
      V::Store(out + c, V::Mul(V::Load(acc + c), inverse));
    }
    if (c < t.v_width) V::StoreN(out + c, V::Mul(V::Load(acc + c), inverse), t.v_width - c);
  }
}

template <class V>
void Attention(const AttentionTask& t) {
  AttentionState<V> s(t);
  const int64_t last = s.queries - 1;
  for (int64_t block = s.FirstKey(0) / kKeyBlock; block <= s.Position(last) / kKeyBlock; ++block) {
    // The first query sees the earliest keys, the last one the latest.
    const KeyRange loaded = {s.Range(0, block).begin, s.Range(last, block).end};
    LoadKeys(s, block, loaded);
    ScoreKeys(s, loaded);
    for (int64_t i = 0; i < s.queries; ++i) {
      const KeyRange range = s.Range(i, block);
      if (range.begin < range.end) Exponentiate(s, i, range);
    }
    AddValues(s, block);
  }
  WriteOutputs(s);
}

}  // namespace switchyard::kernels::cpu::simd
