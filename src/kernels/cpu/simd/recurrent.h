// Kernels of recurrent layers for one vector type.
#pragma once

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/simd/math.h"
#include "kernels/cpu/simd/pointwise.h"

namespace switchyard::kernels::cpu::simd {

// y[c] = silu(Σ_j weight[j · stride + c] · rows[j][c]), in the order of j.
template <class V>
void ShortConvRow(const float* const* rows, const float* weight, int64_t stride, int64_t width,
                  float* y, int64_t n) {
  ForVectors<V>(n, [&](int64_t i, auto load, auto store) {
    auto sum = V::Zero();
    for (int64_t j = 0; j < width; ++j)
      sum = V::Fma(load(weight + j * stride + i), load(rows[j] + i), sum);
    store(y + i, V::Mul(sum, Sigmoid<V>(sum)));
  });
}

// A block of columns has this many vectors. With two chains of sums for each, there are enough
// independent sums to hide the latency of a multiply-add.
constexpr int kDeltaVectors = 4;

// One row: reads the block's state at `from`, writes the new one to `to`, which may be the same.
// kWhole: all vectors of the block are whole; else the block has t.columns columns.
template <class V, bool kWhole>
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
  const F decay = V::Set1(t.gates[row * t.gates_ld]);
  const F step = V::Set1(t.gates[row * t.gates_ld + 1]);
  F sums[2][kN], delta[kN];
  for (int c = 0; c < kN; ++c) sums[0][c] = sums[1][c] = V::Zero();
  const auto predict = [&](int64_t i, int chain) {
    const F key = V::Set1(k[i]);
    for (int c = 0; c < kN; ++c)
      sums[chain][c] = V::Fma(key, load(from + i * from_stride, c), sums[chain][c]);
  };
  int64_t i = 0;
  for (; i + 2 <= t.key_dim; i += 2) {
    predict(i, 0);
    predict(i + 1, 1);
  }
  if (i < t.key_dim) predict(i, 0);
  for (int c = 0; c < kN; ++c) {
    const F predicted = V::Mul(decay, V::Add(sums[0][c], sums[1][c]));
    delta[c] = V::Mul(step, V::Sub(load(v, c), predicted));
    sums[0][c] = sums[1][c] = V::Zero();
  }
  const auto update = [&](int64_t i, int chain) {
    const F key = V::Set1(k[i]), query = V::Set1(q[i]);
    for (int c = 0; c < kN; ++c) {
      const F s = V::Fma(key, delta[c], V::Mul(decay, load(from + i * from_stride, c)));
      store(to + i * to_stride, s, c);
      sums[chain][c] = V::Fma(query, s, sums[chain][c]);
    }
  };
  for (i = 0; i + 2 <= t.key_dim; i += 2) {
    update(i, 0);
    update(i + 1, 1);
  }
  if (i < t.key_dim) update(i, 0);
  for (int c = 0; c < kN; ++c) store(t.out + row * t.ldo, V::Add(sums[0][c], sums[1][c]), c);
}

template <class V, bool kWhole>
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
    DeltaRow<V, kWhole>(t, row, from, from_stride, last ? t.to : t.scratch,
                        last ? t.stride : kStride);
    from = t.scratch;
    from_stride = kStride;
    for (int copy = 0; copy < 2; ++copy) {
      if (t.copy_to[copy] == nullptr || t.copy_rows[copy] != row + 1) continue;
      for (int64_t i = 0; i < t.key_dim; ++i)
        ForVectors<V>(t.columns, [&](int64_t c, auto load, auto store) {
          store(t.copy_to[copy] + i * t.stride + c, load(t.scratch + i * kStride + c));
        });
    }
  }
}

template <class V>
void Delta(const DeltaTask& t) {
  t.columns == kDeltaVectors* V::kLanes ? DeltaRows<V, true>(t) : DeltaRows<V, false>(t);
}

}  // namespace switchyard::kernels::cpu::simd
