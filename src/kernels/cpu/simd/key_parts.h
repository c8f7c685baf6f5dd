// Partial softmax sums over parts of the keys (split-KV), and their merge. Parts start at absolute
// multiples of kKeyPart and merge in ascending order, whichever thread computed them. Threads can
// therefore share the keys of one sequence without changing a bit.
#pragma once

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/simd/cached_keys.h"
#include "kernels/cpu/simd/math.h"

namespace switchyard::kernels::cpu::simd {

// Partial sums of a task's queries over some keys, in a buffer of PartialFloats.
template <class V>
struct KeySums {
  float* acc;  // [queries, Padded(v_width)] exponentials times values
  float* top;  // [queries] running maximum, the reference of the exponentials
  float* sum;  // [queries] sum of exponentials

  KeySums(float* memory, int64_t queries, int64_t acc_stride)
      : acc(memory), top(memory + queries * acc_stride), sum(top + queries) {}
};

// A task's queries, and the keys that each of them attends to.
template <class V>
struct QueryKeys {
  const AttentionTask& t;
  int64_t queries, acc_stride;

  explicit QueryKeys(const AttentionTask& task)
      : t(task), queries(t.rows * t.group), acc_stride(Padded<V>(t.v_width)) {}

  int64_t Position(int64_t query) const { return t.first_position + query / t.group; }
  int64_t FirstKey(int64_t query) const {
    if (t.chunk > 0) return Position(query) / t.chunk * t.chunk;
    const int64_t first = Position(query) - t.window + 1;
    return t.window > 0 && first > 0 ? first : 0;
  }
  int64_t FirstPart(int64_t query) const { return FirstKey(query) / kKeyPart; }
  bool Sees(int64_t query, int64_t part) const {
    return FirstPart(query) <= part && part <= Position(query) / kKeyPart;
  }
};

// Initialises the sums of a part.
template <class V>
void BeginPart(const QueryKeys<V>& q, int64_t part, const KeySums<V>& sums) {
  for (int64_t i = 0; i < q.queries; ++i) {
    // A sink acts as a first score without a value: its exponential relative to itself is 1.
    const bool sink = q.t.sinks != nullptr && part == q.FirstPart(i);
    sums.top[i] = sink ? q.t.sinks[i % q.t.group] : -__builtin_inff();
    sums.sum[i] = sink ? 1.0f : 0.0f;
  }
  for (int64_t c = 0; c < q.queries * q.acc_stride; c += V::kLanes) {
    V::Store(sums.acc + c, V::Zero());
  }
}

// Merges a part into the sums of the parts before it.
template <class V>
void FoldPart(const QueryKeys<V>& q, int64_t part, const KeySums<V>& from, const KeySums<V>& to) {
  for (int64_t i = 0; i < q.queries; ++i) {
    if (!q.Sees(i, part)) continue;
    const float* add = from.acc + i * q.acc_stride;
    float* acc = to.acc + i * q.acc_stride;
    if (part == q.FirstPart(i)) {
      to.top[i] = from.top[i];
      to.sum[i] = from.sum[i];
      for (int64_t c = 0; c < q.acc_stride; c += V::kLanes) V::Store(acc + c, V::Load(add + c));
      continue;
    }
    const float top = from.top[i] > to.top[i] ? from.top[i] : to.top[i];
    const auto keep = Exp<V>(V::Set1(to.top[i] - top));
    const auto weight = Exp<V>(V::Set1(from.top[i] - top));
    float kept[V::kLanes], weighted[V::kLanes];
    V::Store(kept, keep);
    V::Store(weighted, weight);
    to.sum[i] = to.sum[i] * kept[0] + from.sum[i] * weighted[0];
    to.top[i] = top;
    for (int64_t c = 0; c < q.acc_stride; c += V::kLanes) {
      V::Store(acc + c, V::Fma(V::Load(add + c), weight, V::Mul(V::Load(acc + c), keep)));
    }
  }
}

template <class V>
void WriteOutputs(const QueryKeys<V>& q, const KeySums<V>& sums) {
  const AttentionTask& t = q.t;
  for (int64_t i = 0; i < q.queries; ++i) {
    float* out = t.out + i / t.group * t.ldo + i % t.group * t.v_width;
    const float* acc = sums.acc + i * q.acc_stride;
    const auto inverse = V::Set1(t.value_scale / sums.sum[i]);
    int64_t c = 0;
    // Adding zero turns -0 into 0: in bfloat16 products, keys of zero weight can set a zero's sign.
    const auto output = [&](int64_t at) {
      return V::Add(V::Mul(V::Load(acc + at), inverse), V::Zero());
    };
    for (; c + V::kLanes <= t.v_width; c += V::kLanes) V::Store(out + c, output(c));
    if (c < t.v_width) V::StoreN(out + c, output(c), t.v_width - c);
  }
}

// Computes outputs from the partial sums of tasks of one part each.
template <class V>
void MergeAttention(const AttentionTask& t) {
  const QueryKeys<V> q(t);
  const KeySums<V> total(t.scratch, q.queries, q.acc_stride);
  for (int64_t part = t.part_begin; part < t.part_end; ++part) {
    float* memory = t.partials + (part - t.part_begin) * t.partial_stride;
    FoldPart(q, part, KeySums<V>(memory, q.queries, q.acc_stride), total);
  }
  WriteOutputs(q, total);
}

}  // namespace switchyard::kernels::cpu::simd
