// Kernels written once for all instruction sets, over the vector types of src/kernels (V).
#pragma once

#include <immintrin.h>

#include "kernels/cpu/simd/math.h"
#include "train/math/kernel_table.h"

namespace switchyard::train::simd {

constexpr int64_t kDepth = 256;  // k-block: a strip of B stays in L1 or L2

// Register tile: rows [i, i + M) times N vectors of columns from j. The last vector has `last`
// lanes.
template <class V, int M, int N, bool kTail>
[[gnu::always_inline]] inline void Tile(const ProductTask& t, int64_t i, int64_t j, int64_t p0,
                                        int64_t p1, bool add, int64_t last) {
  typename V::F acc[M][N];
  const auto load = [&](const float* p, int v) __attribute__((always_inline)) {
    return kTail && v == N - 1 ? V::LoadN(p, last) : V::Load(p);
  };
  for (int r = 0; r < M; ++r) {
    const float* c = t.c + (i + r) * t.ldc + j;
    for (int v = 0; v < N; ++v) acc[r][v] = add ? load(c + v * V::kLanes, v) : V::Zero();
  }
  const float* a[M];
  for (int r = 0; r < M; ++r) a[r] = t.a + (i + r) * t.a_row;
  if (!add) {  // prefetches C during the main loop, so that the stores do not stall
    for (int r = 0; r < M; ++r)
      for (int v = 0; v < N; ++v) __builtin_prefetch(t.c + (i + r) * t.ldc + j + v * V::kLanes, 1);
  }
  for (int64_t p = p0; p < p1; ++p) {
    typename V::F b[N];
    const float* row = t.b + p * t.b_row + j;
    for (int v = 0; v < N; ++v) b[v] = load(row + v * V::kLanes, v);
    for (int r = 0; r < M; ++r) {
      const auto x = V::Set1(a[r][p * t.a_col]);
      for (int v = 0; v < N; ++v) acc[r][v] = V::Fma(x, b[v], acc[r][v]);
    }
  }
  for (int r = 0; r < M; ++r) {
    float* c = t.c + (i + r) * t.ldc + j;
    for (int v = 0; v < N; ++v) {
      if (kTail && v == N - 1) {
        V::StoreN(c + v * V::kLanes, acc[r][v], last);
      } else {
        V::Store(c + v * V::kLanes, acc[r][v]);
      }
    }
  }
}

template <class V, int N, bool kTail, int M>
void Rows(const ProductTask& t, int64_t i, int64_t m, int64_t j, int64_t p0, int64_t p1, bool add,
          int64_t last) {
  for (; m >= M; m -= M, i += M) Tile<V, M, N, kTail>(t, i, j, p0, p1, add, last);
  if constexpr (M > 1) {
    if (m > 0) Rows<V, N, kTail, (M + 1) / 2>(t, i, m, j, p0, p1, add, last);
  }
}

// Columns [j, j + n), at most N vectors.
template <class V, int N, int M>
void Strip(const ProductTask& t, int64_t j, int64_t n, int64_t p0, int64_t p1, bool add) {
  const int64_t vectors = (n + V::kLanes - 1) / V::kLanes;
  if constexpr (N > 1) {
    if (vectors < N) return Strip<V, N - 1, M>(t, j, n, p0, p1, add);
  }
  const int64_t last = n - (N - 1) * V::kLanes;
  if (last == V::kLanes) {
    Rows<V, N, false, M>(t, 0, t.m, j, p0, p1, add, last);
  } else {
    Rows<V, N, true, M>(t, 0, t.m, j, p0, p1, add, last);
  }
}

// An M × N register tile fills the vector registers.
template <class V, int M, int N>
void Multiply(const ProductTask& t) {
  constexpr int64_t kColumns = N * V::kLanes;
  for (int64_t p = 0; p == 0 || p < t.k; p += kDepth) {
    const int64_t end = p + kDepth < t.k ? p + kDepth : t.k;
    for (int64_t j = 0; j < t.n; j += kColumns) {
      Strip<V, N, M>(t, j, t.n - j < kColumns ? t.n - j : kColumns, p, end, t.accumulate || p > 0);
    }
  }
}

// 8 × 8 transpose in three steps: exchanges pairs, then quarters, then halves. Both instruction
// sets use the same 256-bit code.
template <class V>
[[gnu::always_inline]] inline void Transpose8(const float* in, int64_t ldi, float* out,
                                              int64_t ldo) {
  __m256 r[8], t[8];
  for (int i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(in + i * ldi);
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(out + i * ldo, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
    _mm256_storeu_ps(out + (i + 4) * ldo, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
  }
}

template <class V>
void Transpose(const float* in, int64_t ldi, int64_t rows, int64_t columns, float* out,
               int64_t ldo) {
  const int64_t whole_rows = rows / 8 * 8, whole_columns = columns / 8 * 8;
  for (int64_t i = 0; i < whole_rows; i += 8)
    for (int64_t j = 0; j < whole_columns; j += 8)
      Transpose8<V>(in + i * ldi + j, ldi, out + j * ldo + i, ldo);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = i < whole_rows ? whole_columns : 0; j < columns; ++j)
      out[j * ldo + i] = in[i * ldi + j];
}

// Whole is for a full vector. First is for the remainder: it uses masked loads and stores, which
// are slower.
template <class V>
struct Whole {
  typename V::F Load(const float* p) const { return V::Load(p); }
  void Store(float* p, typename V::F x) const { V::Store(p, x); }
};
template <class V>
struct First {
  int64_t n;
  typename V::F Load(const float* p) const { return V::LoadN(p, n); }
  void Store(float* p, typename V::F x) const { V::StoreN(p, x, n); }
};
// body(i, part) for each vector of n elements
template <class V, class Body>
[[gnu::always_inline]] inline void ForVectors(int64_t n, const Body& body) {
  int64_t i = 0;
  for (; i + V::kLanes <= n; i += V::kLanes) body(i, Whole<V>{});
  if (i < n) body(i, First<V>{n - i});
}

// Rows of at most kPanel columns, zero-padded.
template <class V>
void Pack(const float* in, int64_t ldi, int64_t rows, int64_t columns, float* out) {
  constexpr int kVectors = kPanel / V::kLanes;
  for (int64_t i = 0; i < rows; ++i, in += ldi, out += kPanel) {
    for (int v = 0; v < kVectors; ++v) {
      const int64_t left = columns - v * V::kLanes;
      const auto x = left >= V::kLanes ? V::Load(in + v * V::kLanes)
                     : left > 0        ? V::LoadN(in + v * V::kLanes, left)
                                       : V::Zero();
      V::Store(out + v * V::kLanes, x);
    }
  }
}

template <class V>
float Largest(const float* x, int64_t n) {
  const auto lowest = V::Set1(-3.402823466e38f);
  auto largest = lowest;
  int64_t i = 0;
  for (; i + V::kLanes <= n; i += V::kLanes) largest = V::Max(V::Load(x + i), largest);
  if (i < n) largest = V::Max(V::KeepFirst(V::LoadN(x + i, n - i), n - i, lowest), largest);
  return V::ReduceMax(largest);
}

template <class V>
float Dot(const float* a, const float* b, int64_t n) {
  auto sum = V::Zero();
  int64_t i = 0;
  for (; i + V::kLanes <= n; i += V::kLanes) sum = V::Fma(V::Load(a + i), V::Load(b + i), sum);
  if (i < n) sum = V::Fma(V::LoadN(a + i, n - i), V::LoadN(b + i, n - i), sum);
  return V::ReduceAdd(sum);
}

// Software prefetch: the rows of a head are strided, which the hardware prefetcher does not detect.
template <class V>
void CopyRows(const float* in, int64_t ldi, int64_t rows, int64_t columns, float* out,
              int64_t ldo) {
  constexpr int64_t kAhead = 8, kLine = 16;
  for (int64_t r = 0; r < rows; ++r, in += ldi, out += ldo) {
    for (int64_t i = 0; i < columns; i += kLine) __builtin_prefetch(in + kAhead * ldi + i);
    ForVectors<V>(
        columns, [&](int64_t i, auto part)
                     __attribute__((always_inline)) { part.Store(out + i, part.Load(in + i)); });
  }
}

template <class V>
void Scale(float* x, int64_t n, float factor) {
  const auto f = V::Set1(factor);
  ForVectors<V>(
      n, [&](int64_t i, auto part)
             __attribute__((always_inline)) { part.Store(x + i, V::Mul(part.Load(x + i), f)); });
}

template <class V>
void SoftmaxGradient(float* s, float* d, int64_t n, float scale, float shift, float along) {
  const auto c = V::Set1(scale), by = V::Set1(shift), a = V::Set1(along);
  ForVectors<V>(
      n, [&](int64_t i, auto part) __attribute__((always_inline)) {
        const auto p = kernels::cpu::simd::Exp<V>(V::Sub(V::Mul(part.Load(s + i), c), by));
        part.Store(s + i, p);
        part.Store(d + i, V::Mul(V::Mul(p, V::Sub(part.Load(d + i), a)), c));
      });
}

template <class V>
float ExpSum(float* x, int64_t n, float scale, float shift) {
  const auto c = V::Set1(scale), s = V::Set1(shift);
  auto sum = V::Zero();
  int64_t i = 0;
  for (; i + V::kLanes <= n; i += V::kLanes) {
    const auto e = kernels::cpu::simd::Exp<V>(V::Sub(V::Mul(V::Load(x + i), c), s));
    V::Store(x + i, e);
    sum = V::Add(sum, e);
  }
  if (i < n) {
    const auto e = V::KeepFirst(
        kernels::cpu::simd::Exp<V>(V::Sub(V::Mul(V::LoadN(x + i, n - i), c), s)), n - i, V::Zero());
    V::StoreN(x + i, e, n - i);
    sum = V::Add(sum, e);
  }
  return V::ReduceAdd(sum);
}

template <class V>
void Norm(const float* x, float root, const float* weight, float* y, int64_t n) {
  const auto r = V::Set1(root);
  ForVectors<V>(
      n, [&](int64_t i, auto part) __attribute__((always_inline)) {
        part.Store(y + i, V::Mul(V::Mul(part.Load(x + i), r), part.Load(weight + i)));
      });
}

template <class V>
void NormGradient(const float* x, float root, const float* weight, const float* dy, float back,
                  bool accumulate, float* dx, int64_t n) {
  const auto r = V::Set1(root), b = V::Set1(back);
  ForVectors<V>(
      n, [&](int64_t i, auto part) __attribute__((always_inline)) {
        const auto along = V::Mul(V::Mul(part.Load(dy + i), part.Load(weight + i)), r);
        const auto value = V::Sub(along, V::Mul(part.Load(x + i), b));
        part.Store(dx + i, accumulate ? V::Add(part.Load(dx + i), value) : value);
      });
}

template <class V>
void AddColumns(const float* a, int64_t lda, const float* b, int64_t ldb, const float* factors,
                int64_t rows, int64_t n, float* sum) {
  constexpr int kVectors = kFewColumns / V::kLanes;
  const bool whole = n == kFewColumns;
  const auto load = [&](const float* p, int v) __attribute__((always_inline)) {
    const int64_t left = n - v * V::kLanes;
    return whole || left >= V::kLanes ? V::Load(p + v * V::kLanes)
           : left > 0                 ? V::LoadN(p + v * V::kLanes, left)
                                      : V::Zero();
  };
  typename V::F sums[kVectors];
  for (int v = 0; v < kVectors; ++v) sums[v] = load(sum, v);
  for (int64_t i = 0; i < rows; ++i, a += lda, b += ldb) {
    const auto f = V::Set1(factors[i]);
    for (int v = 0; v < kVectors; ++v)
      sums[v] = V::Add(sums[v], V::Mul(V::Mul(load(a, v), load(b, v)), f));
  }
  for (int v = 0; v < kVectors; ++v) {
    const int64_t left = n - v * V::kLanes;
    if (left >= V::kLanes) {
      V::Store(sum + v * V::kLanes, sums[v]);
    } else if (left > 0) {
      V::StoreN(sum + v * V::kLanes, sums[v], left);
    }
  }
}

template <class V>
void AddScaled(const float* x, float factor, float* y, int64_t n) {
  const auto f = V::Set1(factor);
  ForVectors<V>(
      n, [&](int64_t i, auto part) __attribute__((always_inline)) {
        part.Store(y + i, V::Add(part.Load(y + i), V::Mul(part.Load(x + i), f)));
      });
}

// Both instruction sets use the same 256-bit code.
template <class V>
void RotatePairs(float* x, const float* cosines, const float* sines, int64_t n) {
  for (int64_t i = 0; i < n; i += 8) {
    const __m256 v = _mm256_loadu_ps(x + i), other = _mm256_permute_ps(v, 0xb1);
    const __m256 own = _mm256_mul_ps(v, _mm256_loadu_ps(cosines + i));
    _mm256_storeu_ps(x + i, _mm256_add_ps(own, _mm256_mul_ps(other, _mm256_loadu_ps(sines + i))));
  }
}

template <class V>
void SwiGlu(const float* gate, const float* up, float* out, int64_t n) {
  ForVectors<V>(
      n, [&](int64_t i, auto part) __attribute__((always_inline)) {
        const auto g = part.Load(gate + i);
        part.Store(out + i,
                   V::Mul(V::Mul(g, kernels::cpu::simd::Sigmoid<V>(g)), part.Load(up + i)));
      });
}

template <class V>
void SwiGluGradient(const float* gate, const float* up, const float* dout, float* dgate, float* dup,
                    float* out, int64_t n) {
  const auto one = V::Set1(1.0f);
  ForVectors<V>(
      n, [&](int64_t i, auto part) __attribute__((always_inline)) {
        const auto g = part.Load(gate + i), u = part.Load(up + i), d = part.Load(dout + i);
        const auto s = kernels::cpu::simd::Sigmoid<V>(g);
        const auto slope = V::Mul(s, V::Fma(g, V::Sub(one, s), one));  // derivative of silu
        part.Store(dgate + i, V::Mul(V::Mul(d, u), slope));
        part.Store(dup + i, V::Mul(d, V::Mul(g, s)));
        if (out != nullptr) part.Store(out + i, V::Mul(V::Mul(g, s), u));
      });
}

template <class V, int M, int N>
constexpr KernelTable LeavesOf() {
  return {.multiply = Multiply<V, M, N>,
          .pack = Pack<V>,
          .transpose = Transpose<V>,
          .largest = Largest<V>,
          .dot = Dot<V>,
          .copy_rows = CopyRows<V>,
          .scale = Scale<V>,
          .softmax_gradient = SoftmaxGradient<V>,
          .exp_sum = ExpSum<V>,
          .norm = Norm<V>,
          .norm_gradient = NormGradient<V>,
          .add_columns = AddColumns<V>,
          .add_scaled = AddScaled<V>,
          .rotate_pairs = RotatePairs<V>,
          .swiglu = SwiGlu<V>,
          .swiglu_gradient = SwiGluGradient<V>};
}

}  // namespace switchyard::train::simd
