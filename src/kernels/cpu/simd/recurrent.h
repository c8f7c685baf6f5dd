// Kernels of recurrent layers for one vector type.
#pragma once

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/simd/math.h"
#include "kernels/cpu/simd/pointwise.h"
#include "kernels/state_rule.h"

namespace switchyard::kernels::cpu::simd {

// y[c] = silu(bias[c] + Σ_j weight[j · stride + c] · rows[j][c]), in the order of j. Null bias: 0.
template <class V>
void ShortConvRow(const float* const* rows, const float* weight, int64_t stride, int64_t width,
                  const float* bias, float* y, int64_t n) {
  ForVectors<V>(n, [&](int64_t i, auto load, auto store) {
    auto sum = bias == nullptr ? V::Zero() : load(bias + i);
    for (int64_t j = 0; j < width; ++j)
      sum = V::Fma(load(weight + j * stride + i), load(rows[j] + i), sum);
    store(y + i, V::Mul(sum, Sigmoid<V>(sum)));
  });
}

// x[i] = x[i] · sigmoid(gate[i])
template <class V>
void MultiplyBySigmoid(float* x, const float* gate, int64_t n) {
  ForVectors<V>(n, [&](int64_t i, auto load, auto store) {
    store(x + i, V::Mul(load(x + i), Sigmoid<V>(load(gate + i))));
  });
}

// decays[i] = exp(rate · softplus(x)), or with a bound exp(bound · sigmoid(−rate · x)), where
// x = a[i] + bias[i].
template <class V>
void KeyDecays(const float* a, const float* bias, float rate, float bound, float* decays,
               int64_t n) {
  if (bound < 0.0f)
    return ForVectors<V>(n, [&](int64_t i, auto load, auto store) {
      const auto x = V::Mul(V::Set1(-rate), V::Add(load(a + i), load(bias + i)));
      store(decays + i, Exp<V>(V::Mul(V::Set1(bound), Sigmoid<V>(x))));
    });
  ForVectors<V>(n, [&](int64_t i, auto load, auto store) {
    const auto step = SoftPlus<V>(V::Add(load(a + i), load(bias + i)));
    store(decays + i, Exp<V>(V::Mul(V::Set1(rate), step)));
  });
}

// A block of columns has this many vectors. With two chains of sums for each, there are enough
// independent sums to hide the latency of a multiply-add.
constexpr int kDeltaVectors = 4;

// One row: reads the block's state at `from`, writes the new one to `to`, which may be the same.
// kWhole: all vectors of the block are whole; else the block has t.columns columns.
template <class V, bool kWhole, StateRule kRule>
void DeltaRow(const DeltaTask& t, int64_t row, const float* from, int64_t from_stride, float* to,
              int64_t to_stride) {
  using F = typename V::F;
  constexpr int kN = kDeltaVectors;
  const float *q = t.q + row * t.ld, *k = t.k + row * t.ld, *v = t.v + row * t.ld;
  const auto lanes = [&](int c) {
    const int64_t left = t.columns - c * V::kLanes;
    return left < 0 ? 0 : left < V::kLanes ? left : V::kLanes;
  };
  const auto load = [&](const float* p, int c) {
    if constexpr (kWhole) return V::Load(p + c * V::kLanes);
    if (lanes(c) == 0) return V::Zero();
    return V::LoadN(p + c * V::kLanes, lanes(c));
  };
  const auto store = [&](float* p, F x, int c) {
    if constexpr (kWhole) return V::Store(p + c * V::kLanes, x);
    if (lanes(c) > 0) V::StoreN(p + c * V::kLanes, x, lanes(c));
  };
  constexpr bool kByKey = kRule == StateRule::kKeyDelta, kSums = kRule == StateRule::kMamba2;
  const float* gates = t.gates + row * t.gates_ld;
  const F decay = V::Set1(gates[0]);
  const F step = V::Set1(gates[kByKey ? t.key_dim : 1]);
  F sums[2][kN], delta[kN];
  for (int c = 0; c < kN; ++c) sums[0][c] = sums[1][c] = V::Zero();
  const auto predict = [&](int64_t i, int chain) {
    const F key = V::Set1(kByKey ? k[i] * gates[i] : k[i]);
    for (int c = 0; c < kN; ++c)
      sums[chain][c] = V::Fma(key, load(from + i * from_stride, c), sums[chain][c]);
  };
  int64_t i = 0;
  for (; i + 2 <= t.key_dim && !kSums; i += 2) {
    predict(i, 0);
    predict(i + 1, 1);
  }
  if (i < t.key_dim && !kSums) predict(i, 0);
  for (int c = 0; c < kN; ++c) {
    F change = load(v, c);
    if constexpr (!kSums) {
      const F predicted = V::Add(sums[0][c], sums[1][c]);
      change = V::Sub(change, kByKey ? predicted : V::Mul(decay, predicted));
    }
    delta[c] = V::Mul(step, change);
    sums[0][c] = sums[1][c] = V::Zero();
  }
  const auto update = [&](int64_t i, int chain) {
    const F key = V::Set1(k[i]), query = V::Set1(q[i]);
    const F kept = kByKey ? V::Set1(gates[i]) : decay;
    for (int c = 0; c < kN; ++c) {
      const F s = V::Fma(key, delta[c], V::Mul(kept, load(from + i * from_stride, c)));
      store(to + i * to_stride, s, c);
      sums[chain][c] = V::Fma(query, s, sums[chain][c]);
    }
  };
  for (i = 0; i + 2 <= t.key_dim; i += 2) {
    update(i, 0);
    update(i + 1, 1);
  }
  if (i < t.key_dim) update(i, 0);
  for (int c = 0; c < kN; ++c) {
    F out = V::Add(sums[0][c], sums[1][c]);
    if constexpr (kSums) out = V::Fma(V::Set1(t.skip), load(v, c), out);
    store(t.out + row * t.ldo, out, c);
  }
}

template <class V, bool kWhole, StateRule kRule>
void DeltaRows(const DeltaTask& t) {
  constexpr int64_t kStride = kDeltaVectors * V::kLanes;
  const float* from = t.from;
  int64_t from_stride = t.stride;
  if (from == nullptr) {
    for (int64_t i = 0; i < t.key_dim * kStride; i += V::kLanes) V::Store(t.scratch + i, V::Zero());
    from = t.scratch;
    from_stride = kStride;
  }
  for (int64_t row = 0; row < t.rows; ++row) {
    const bool last = row + 1 == t.rows;
    DeltaRow<V, kWhole, kRule>(t, row, from, from_stride, last ? t.to : t.scratch,
                               last ? t.stride : kStride);
    from = t.scratch;
    from_stride = kStride;
    for (int copy = 0; copy < kMaxStateCopies && t.copy_to[copy] != nullptr; ++copy) {
      if (t.copy_rows[copy] != row + 1) continue;
      for (int64_t i = 0; i < t.key_dim; ++i)
        ForVectors<V>(t.columns, [&](int64_t c, auto load, auto store) {
          store(t.copy_to[copy] + i * t.stride + c, load(t.scratch + i * kStride + c));
        });
    }
  }
}

template <class V, StateRule kRule>
void DeltaByRule(const DeltaTask& t) {
  t.columns == kDeltaVectors* V::kLanes ? DeltaRows<V, true, kRule>(t)
                                        : DeltaRows<V, false, kRule>(t);
}

template <class V>
void Delta(const DeltaTask& t) {
  switch (t.rule) {
    case StateRule::kDelta:
      return DeltaByRule<V, StateRule::kDelta>(t);
    case StateRule::kKeyDelta:
      return DeltaByRule<V, StateRule::kKeyDelta>(t);
    case StateRule::kMamba2:
    case StateRule::kFixed:  // its `skip` is 0
      return DeltaByRule<V, StateRule::kMamba2>(t);
  }
}

}  // namespace switchyard::kernels::cpu::simd
