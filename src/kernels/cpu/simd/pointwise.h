// Element-wise kernels and RMSNorm for one vector type.
#pragma once

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/simd/math.h"
#include "kernels/cpu/simd/rows.h"
#include "kernels/cpu/simd/weighted_rows.h"

namespace switchyard::kernels::cpu::simd {

// Calls body(offset, load, store) per whole vector and once for the tail. load(p) and store(p, v)
// access only the lanes that exist.
template <class V, class Body>
void ForVectors(int64_t n, const Body& body) {
  using F = typename V::F;
  int64_t i = 0;
  for (; i + V::kLanes <= n; i += V::kLanes) {
    body(
        i, [](const float* p) { return V::Load(p); }, [](float* p, F v) { V::Store(p, v); });
  }
  if (i < n) {
    const int64_t left = n - i;
    body(
        i, [left](const float* p) { return V::LoadN(p, left); },
        [left](float* p, F v) { V::StoreN(p, v, left); });
  }
}

template <class V>
void SwiGlu(float* gate, const float* up, int64_t n) {
  ForVectors<V>(n, [&](int64_t i, auto load, auto store) {
    const auto g = load(gate + i);
    store(gate + i, V::Mul(V::Mul(g, Sigmoid<V>(g)), load(up + i)));
  });
}

template <class V>
void SwiGluClamped(float* gate, const float* up, int64_t n, float alpha, float limit) {
  const auto high = V::Set1(limit), low = V::Set1(-limit);
  ForVectors<V>(n, [&](int64_t i, auto load, auto store) {
    const auto g = V::Min(high, load(gate + i));
    const auto u = V::Max(low, V::Min(high, load(up + i)));
    const auto glu = V::Mul(g, Sigmoid<V>(V::Mul(V::Set1(alpha), g)));
    store(gate + i, V::Mul(glu, V::Add(u, V::Set1(1.0f))));
  });
}

template <class V>
void Add(float* y, const float* x, int64_t n) {
  ForVectors<V>(
      n, [&](int64_t i, auto load, auto store) { store(y + i, V::Add(load(y + i), load(x + i))); });
}

template <class V>
void Rotate(float* a, float* b, const float* cosine, const float* sine, int64_t n) {
  ForVectors<V>(n, [&](int64_t i, auto load, auto store) {
    const auto x = load(a + i), y = load(b + i), c = load(cosine + i), s = load(sine + i);
    store(a + i, V::Sub(V::Mul(x, c), V::Mul(y, s)));
    store(b + i, V::Add(V::Mul(y, c), V::Mul(x, s)));
  });
}

// The sum of squares uses four chains of vectors for any n.
template <class V>
void RmsNorm(const float* x, const float* weight, float* y, int64_t n, float eps) {
  typename V::F squares[4] = {V::Zero(), V::Zero(), V::Zero(), V::Zero()};
  int64_t chain = 0;
  ForVectors<V>(n, [&](int64_t i, auto load, auto) {
    const auto v = load(x + i);
    squares[chain & 3] = V::Fma(v, v, squares[chain & 3]);
    ++chain;
  });
  const auto sum = V::Add(V::Add(squares[0], squares[1]), V::Add(squares[2], squares[3]));
  const float mean = V::ReduceAdd(sum) / static_cast<float>(n);
  const auto scale = V::Set1(1.0f / __builtin_sqrtf(mean + eps));
  ForVectors<V>(n, [&](int64_t i, auto load, auto store) {
    store(y + i, V::Mul(V::Mul(load(x + i), scale), load(weight + i)));
  });
}

template <class V>
void Narrow(DType dtype, const float* x, void* out, int64_t n) {
  if (dtype == DType::kF32) {
    __builtin_memcpy(out, x, n * sizeof(float));
    return;
  }
  auto* p = static_cast<char*>(out);
  const bool bf16 = dtype == DType::kBF16;
  int64_t i = 0;
  for (; i + V::kLanes <= n; i += V::kLanes) {
    bf16 ? V::StoreBF16(p + 2 * i, V::Load(x + i)) : V::StoreF16(p + 2 * i, V::Load(x + i));
  }
  if (i == n) return;
  const auto tail = V::LoadN(x + i, n - i);
  bf16 ? V::StoreBF16N(p + 2 * i, tail, n - i) : V::StoreF16N(p + 2 * i, tail, n - i);
}

template <class V>
void Round(DType dtype, float* x, int64_t n) {
  const bool bf16 = dtype == DType::kBF16;
  alignas(64) char narrow[2 * V::kLanes];
  ForVectors<V>(n, [&](int64_t i, auto load, auto store) {
    const auto v = load(x + i);
    bf16 ? V::StoreBF16(narrow, v) : V::StoreF16(narrow, v);
    store(x + i, bf16 ? V::BF16(narrow) : V::F16(narrow));
  });
}

// x · W with W as stored, one block of columns at a time: converts the block's rows once, then
// accumulates them weighted by x.

template <class V>
void Columns(const ColumnsTask& t) {
  const int64_t width = t.end - t.begin;
  float* panel = t.scratch;                           // [kColumnDepth, kColumnBlock]
  float* acc = panel + kColumnDepth * kColumnBlock;   // [kColumnBatch, kColumnBlock]
  float* scales = acc + kColumnBatch * kColumnBlock;  // ScaleFloats(kColumnBlock)
  const float* rows[kColumnDepth];
  for (int64_t r = 0; r < kColumnDepth; ++r) rows[r] = panel + r * kColumnBlock;
  WeightRef part = t.w;
  part.col0 += t.begin;
  part.skip = t.begin;
  part.k = width;
  const int64_t padded = (width + V::kLanes - 1) / V::kLanes * V::kLanes;
  for (int64_t i = 0; i < t.m; i += kColumnBatch) {
    const int64_t m = t.m - i < kColumnBatch ? t.m - i : kColumnBatch;
    for (int64_t c = 0; c < m * kColumnBlock; c += V::kLanes) V::Store(acc + c, V::Zero());
    for (int64_t r = 0; r < t.w.n; r += kColumnDepth) {
      const int64_t depth = t.w.n - r < kColumnDepth ? t.w.n - r : kColumnDepth;
      ConvertRows<V>(part, r, depth, scales, kColumnBlock, panel);
      RowPrefetch none;
      AddWeightedRows<V>(t.x + i * t.ldx + r, t.ldx, rows, 0, depth, padded, m, acc, kColumnBlock,
                         none);
    }
    for (int64_t row = 0; row < m; ++row) {
      for (int64_t c = 0; c < width; ++c) {
        t.y[(i + row) * t.ldy + t.begin + c] = acc[row * kColumnBlock + c];
      }
    }
  }
}

}  // namespace switchyard::kernels::cpu::simd
