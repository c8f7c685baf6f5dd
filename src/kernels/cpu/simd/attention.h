// Softmax attention of one task, online over blocks of kKeyBlock keys (Milakov and Gimelshein 2018;
// FlashAttention). Blocks start at absolute multiples of kKeyBlock, each query visits only the keys
// it sees, in ascending order, and its running maximum, sum and output change once per block. So a
// query's result depends on its own keys alone: chunks, batches, pages and prefix reuse leave the
// bits as they are.
#pragma once

#include "kernels/cpu/leaves.h"
#include "kernels/cpu/simd/cached_keys.h"
#include "kernels/cpu/simd/linear.h"
#include "kernels/cpu/simd/math.h"
#include "kernels/cpu/simd/weighted_rows.h"

namespace switchyard::kernels::cpu::simd {

// The buffers of a task, cut from its scratch, and what it reads of the current block.
template <class V>
struct AttentionState {
  const AttentionTask& t;
  int64_t queries, acc_stride;
  float* acc;      // [queries, acc_stride] outputs before division by sum
  float* weights;  // [queries, kKeyBlock] scores, then their exponentials
  float* keys;     // [k_width, kKeyBlock] as float32
  float* values;   // [kKeyBlock, Padded(v_width)] as float32
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

// Brings the keys [begin, end) of a block in, and asks for those that follow it.
template <class V>
void LoadKeys(AttentionState<V>& s, int64_t block, KeyRange range, int64_t keys) {
  const AttentionTask& t = s.t;
  KeyPlaces next = {};
  const int64_t left = keys - (block + 1) * kKeyBlock;
  if (left > 0) FindKeys<V>(t, block + 1, {0, left < kKeyBlock ? left : kKeyBlock}, next);
  KeyPlaces places;
  FindKeys<V>(t, block, range, places);
  ForCacheType<V>(t.dtype, [&]<class Row>() {
    TransposeKeys<V, Row>(places, t.k_width, s.keys);
    const bool in_place = t.dtype == DType::kF32 && t.v_width % V::kLanes == 0;
    for (int64_t j = range.begin; j < range.end; ++j) {
      if (j < left) {
        Prefetch<V>(next.k[j], t.k_bytes);
        if (!t.v_in_k) Prefetch<V>(next.v[j], t.v_bytes);
      }
      // In a latent row the value comes first, and an int8 row has one scale behind all.
      const char* value = t.v_in_k ? places.k[j] : places.v[j];
      if (in_place) {
        s.value_rows[j] = reinterpret_cast<const float*>(value);
        continue;
      }
      float* to = s.values + j * s.acc_stride;
      Row row;
      MakeCacheRow(value, t.v_in_k ? t.k_width : t.v_width, &row);
      ConvertRow<V>(row, t.v_width, 0, to);
      s.value_rows[j] = to;
    }
  });
}

constexpr int kScoreVectors = 4;  // keys of a tile of scores, in vectors

// Scores of M queries with the keys from j on: for each one chain of multiply-adds along the
// elements, in ascending order.
template <class V, int M>
void ScoreTile(const AttentionState<V>& s, int64_t query, int64_t j) {
  const AttentionTask& t = s.t;
  const float* q[M];
  for (int r = 0; r < M; ++r) {
    q[r] = t.q + (query + r) / t.group * t.ldq + (query + r) % t.group * t.k_width;
  }
  typename V::F acc[M][kScoreVectors];
  for (int r = 0; r < M; ++r) {
    for (int v = 0; v < kScoreVectors; ++v) acc[r][v] = V::Zero();
  }
  const float* keys = s.keys + j;
  for (int64_t d = 0; d < t.k_width; ++d, keys += kKeyBlock) {
    typename V::F column[kScoreVectors];
    for (int v = 0; v < kScoreVectors; ++v) column[v] = V::Load(keys + v * V::kLanes);
    for (int r = 0; r < M; ++r) {
      const auto element = V::Set1(q[r][d]);
      for (int v = 0; v < kScoreVectors; ++v) acc[r][v] = V::Fma(element, column[v], acc[r][v]);
    }
  }
  for (int r = 0; r < M; ++r) {
    float* out = s.weights + (query + r) * kKeyBlock + j;
    for (int v = 0; v < kScoreVectors; ++v) V::Store(out + v * V::kLanes, acc[r][v]);
  }
}

// Scores of every query with the keys of the block.
template <class V>
void ScoreKeys(AttentionState<V>& s) {
  const int64_t tiles = (s.queries + V::kTileRows - 1) / V::kTileRows;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t query = s.queries * tile / tiles;
    ForRows<V>(s.queries * (tile + 1) / tiles - query, [&]<int M>() {
      for (int64_t j = 0; j < kKeyBlock; j += kScoreVectors * V::kLanes) {
        ScoreTile<V, M>(s, query, j);
      }
    });
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
    LoadKeys(s, block, loaded, s.Position(last) + 1);
    ScoreKeys(s);
    for (int64_t i = 0; i < s.queries; ++i) {
      const KeyRange range = s.Range(i, block);
      if (range.begin < range.end) Exponentiate(s, i, range);
    }
    AddValues(s, block);
  }
  WriteOutputs(s);
}

}  // namespace switchyard::kernels::cpu::simd
