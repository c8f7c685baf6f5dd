// Softmax attention of one task, with online softmax over blocks of kKeyBlock keys (Milakov and
// Gimelshein 2018; FlashAttention). Blocks start at absolute multiples of kKeyBlock. Each query
// visits only the keys it attends to, in ascending order, and updates its running maximum, sum and
// output once per block. A query's result therefore depends only on its own keys: chunks, batches,
// pages and prefix reuse do not change a bit. Longer sequences are accumulated part by part
// (key_parts.h).
#pragma once

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/simd/cached_keys.h"
#include "kernels/cpu/simd/key_parts.h"
#include "kernels/cpu/simd/linear.h"
#include "kernels/cpu/simd/math.h"
#include "kernels/cpu/simd/weighted_rows.h"

namespace switchyard::kernels::cpu::simd {

// Scratch buffers of a task and its state for the current block.
template <class V>
struct AttentionState : QueryKeys<V> {
  using Vectors = V;
  // Sums of the current part; in the partials buffer if other threads share the keys.
  KeySums<V> part;
  KeySums<V> total;  // sums of the preceding parts
  float* weights;    // [queries, kKeyBlock] scores, then their exponentials
  float* keys;       // [k_width, kKeyBlock] as float32
  float* values;     // [kKeyBlock, Padded(v_width)] as float32
  const float* value_rows[kKeyBlock];
  KeyAddresses next;  // addresses of the next block, for prefetch
  int64_t next_keys = 0;

  explicit AttentionState(const AttentionTask& task)
      : QueryKeys<V>(task),
        part(task.partials != nullptr ? task.partials : task.scratch, this->queries,
             this->acc_stride),
        total(task.scratch + SumsFloats(), this->queries, this->acc_stride) {
    weights = task.scratch + 2 * SumsFloats();
    keys = weights + kQueryBlock * kKeyBlock;
    values = keys + kKeyBlock * Padded<V>(task.k_width);
  }
  // Floats of one KeySums: at most PartialFloats, a multiple of the lanes.
  int64_t SumsFloats() const { return kQueryBlock * (this->acc_stride + 2); }

  // Finds the keys of the block after `block`, up to key `keys`.
  void FindNext(int64_t block, int64_t keys) {
    const int64_t left = keys - (block + 1) * kKeyBlock;
    next_keys = left <= 0 ? 0 : left < kKeyBlock ? left : kKeyBlock;
    if (next_keys > 0) ResolveKeys<V>(this->t, block + 1, {0, next_keys}, next);
  }
  // Prefetch of the next block's rows, spread over `steps` steps of the current block.
  RowPrefetch KeyPrefetch(int64_t steps) const {
    return {next.k, next_keys, this->t.k_bytes, steps};
  }
  RowPrefetch ValuePrefetch(int64_t steps) const {
    return {next.v, this->t.v_in_k ? 0 : next_keys, this->t.v_bytes, steps};
  }

  // Stores the exponentials of keys j and following to a query's row `w`.
  static void StoreWeights(float* w, int64_t j, typename V::F e) { V::Store(w + j, e); }

  KeyRange Range(int64_t query, int64_t block) const {
    const int64_t start = block * kKeyBlock;
    const int64_t begin = this->FirstKey(query) - start;
    const int64_t end = this->Position(query) + 1 - start;
    return {begin > 0 ? begin : 0, end < kKeyBlock ? end : kKeyBlock};
  }
};

// Loads the keys [begin, end) of a block.
template <class V>
void LoadKeys(AttentionState<V>& s, int64_t block, KeyRange range) {
  const AttentionTask& t = s.t;
  KeyAddresses places;
  ResolveKeys<V>(t, block, range, places);
  ForCacheType<V>(t.dtype, [&]<class Row>() {
    TransposeKeys<V, Row>(places, t.k_width, s.keys);
    const bool in_place = t.dtype == DType::kF32 && t.v_width % V::kLanes == 0;
    for (int64_t j = range.begin; j < range.end; ++j) {
      // A latent row starts with the value; an int8 row ends with one scale for the whole row.
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

constexpr int kScoreVectors = 4;  // vectors of keys per score tile

// Scores of M queries with keys from j on. Each score is one chain of FMAs along the elements, in
// ascending order.
template <class V, int M>
void ScoreTile(const AttentionState<V>& s, int64_t query, int64_t j, RowPrefetch& requests) {
  RowPrefetch left = requests;
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
    if (d % RowPrefetch::kStepInterval == 0) left.Step();
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
  requests = left;
}

// Scores of all queries with the keys of the block.
template <class V>
void ScoreKeys(AttentionState<V>& s) {
  constexpr int64_t kKeys = kScoreVectors * V::kLanes;
  const int64_t tiles = (s.queries + V::kTileRows - 1) / V::kTileRows;
  const int64_t steps = s.t.k_width / RowPrefetch::kStepInterval;
  RowPrefetch requests = s.KeyPrefetch(tiles * (kKeyBlock / kKeys) * steps);
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t query = s.queries * tile / tiles;
    ForRows<V>(s.queries * (tile + 1) / tiles - query, [&]<int M>() {
      for (int64_t j = 0; j < kKeyBlock; j += kKeys) ScoreTile<V, M>(s, query, j, requests);
    });
  }
}

constexpr int kReduceQueries = 4;  // queries per horizontal reduction

// Online softmax step for M queries that attend to the same keys of a block. Replaces scores with
// exponentials relative to the new maximum and rescales the accumulated output. Lanes outside
// `range` count as minus infinity.
template <class State, int M>
void Exponentiate(State& s, int64_t query, KeyRange range) {
  using V = typename State::Vectors;
  const auto none = V::Set1(-__builtin_inff());
  const auto scale = V::Set1(s.t.scale);
  typename V::F highest[M];
  for (int r = 0; r < M; ++r) {
    float* w = s.weights + (query + r) * kKeyBlock;
    highest[r] = none;
    for (int64_t j = 0; j < kKeyBlock; j += V::kLanes) {
      auto score = none;
      if (j < range.end && j + V::kLanes > range.begin) {
        score = V::Mul(V::Load(w + j), scale);
        if (j < range.begin) score = V::KeepFrom(score, range.begin - j, none);
        if (j + V::kLanes > range.end) score = V::KeepFirst(score, range.end - j, none);
      }
      V::Store(w + j, score);
      highest[r] = V::Max(highest[r], score);
    }
  }
  typename V::F sum[kReduceQueries];
  for (auto& of_query : sum) of_query = V::Zero();
  float kept[M];
  for (int r = 0; r < M; ++r) {
    float* w = s.weights + (query + r) * kKeyBlock;
    const float block_top = V::ReduceMax(highest[r]), old_top = s.part.top[query + r];
    const float top = block_top > old_top ? block_top : old_top;
    for (int64_t j = 0; j < kKeyBlock; j += V::kLanes) {
      const auto e = Exp<V>(V::Sub(V::Load(w + j), V::Set1(top)));
      s.StoreWeights(w, j, e);
      sum[r] = V::Add(sum[r], e);
    }
    kept[r] = 1.0f;
    if (top == old_top) continue;  // no rescaling: the accumulated output keeps its bits
    s.part.top[query + r] = top;
    const auto keep = Exp<V>(V::Set1(old_top - top));
    kept[r] = V::FirstLane(keep);
    float* acc = s.part.acc + (query + r) * s.acc_stride;
    for (int64_t c = 0; c < s.acc_stride; c += V::kLanes) {
      V::Store(acc + c, V::Mul(V::Load(acc + c), keep));
    }
  }
  float sums[kReduceQueries];
  V::ReduceAdd4(sum[0], sum[1], sum[2], sum[3], sums);
  for (int r = 0; r < M; ++r) {
    s.part.sum[query + r] = s.part.sum[query + r] * kept[r] + sums[r];
  }
}

// Computes the exponentials of all queries that attend to keys of the block. `whole`: all queries
// attend to all of its keys.
template <class State>
void ExponentiateBlock(State& s, int64_t block, bool whole) {
  int64_t i = 0;
  if (whole) {
    for (; i + kReduceQueries <= s.queries; i += kReduceQueries) {
      Exponentiate<State, kReduceQueries>(s, i, {0, kKeyBlock});
    }
  }
  for (; i < s.queries; ++i) {
    const KeyRange range = s.Range(i, block);
    if (range.begin < range.end) Exponentiate<State, 1>(s, i, range);
  }
}

template <class V>
void AddValues(AttentionState<V>& s, int64_t block, bool whole) {
  RowPrefetch requests =
      s.ValuePrefetch(WeightedRowsSteps<V>(0, kKeyBlock, s.acc_stride, s.queries));
  for (int64_t i = 0; i < s.queries;) {
    const KeyRange range = s.Range(i, block);
    // Queries with the same key range share the loads of values.
    int64_t end = whole ? s.queries : i + 1;
    for (; end < s.queries; ++end) {
      const KeyRange other = s.Range(end, block);
      if (other.begin != range.begin || other.end != range.end) break;
    }
    if (range.begin < range.end) {
      AddWeightedRows<V>(s.weights + i * kKeyBlock, kKeyBlock, s.value_rows, range.begin, range.end,
                         s.acc_stride, end - i, s.part.acc + i * s.acc_stride, s.acc_stride,
                         requests);
    }
    i = end;
  }
}

// Processes the keys of one part. LoadKeys, ScoreKeys and AddValues are overloaded on State.
template <class State>
void VisitPart(State& s, int64_t part) {
  constexpr int64_t kBlocks = kKeyPart / kKeyBlock;
  const int64_t last = s.queries - 1;
  const int64_t seen = s.Position(last) + 1, part_end = (part + 1) * kKeyPart;
  const int64_t keys = s.t.partials != nullptr && part_end < seen ? part_end : seen;
  int64_t block = part * kBlocks, end = (part + 1) * kBlocks;
  if (block < s.FirstKey(0) / kKeyBlock) block = s.FirstKey(0) / kKeyBlock;
  if (end > s.Position(last) / kKeyBlock + 1) end = s.Position(last) / kKeyBlock + 1;
  for (; block < end; ++block) {
    // The first query attends to the earliest keys, the last query to the latest.
    const KeyRange loaded = {s.Range(0, block).begin, s.Range(last, block).end};
    s.FindNext(block, keys);
    LoadKeys(s, block, loaded);
    ScoreKeys(s);
    // The last query has the latest first key, the first query the earliest last key.
    const bool whole = s.Range(last, block).begin == 0 && s.Range(0, block).end == kKeyBlock;
    ExponentiateBlock(s, block, whole);
    AddValues(s, block, whole);
  }
}

template <class State>
void Attend(const AttentionTask& t) {
  using V = typename State::Vectors;
  State s(t);
  const bool several = t.part_end - t.part_begin > 1;
  for (int64_t part = t.part_begin; part < t.part_end; ++part) {
    BeginPart<V>(s, part, s.part);
    VisitPart(s, part);
    if (several) FoldPart<V>(s, part, s.part, s.total);
  }
  if (t.partials == nullptr) WriteOutputs<V>(s, several ? s.total : s.part);
}

template <class V>
void Attention(const AttentionTask& t) {
  Attend<AttentionState<V>>(t);
}

}  // namespace switchyard::kernels::cpu::simd
