// Operations on single rows: vectorized in float32, scalar in float64.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "train/math/kernel_table.h"

namespace switchyard::train {

// Row stride for n columns: an odd number of whole cache lines, so that the elements of one column
// spread over all cache sets.
inline int64_t TransposedStride(int64_t n) { return (n + 15) / 16 / 2 * 32 + 16; }

template <typename T>
void CopyRows(const T* in, int64_t row, int64_t n, int64_t d, T* out, int64_t out_row) {
  if constexpr (std::is_same_v<T, float>) {
    if (const KernelTable* kernels = ActiveKernels())
      return kernels->copy_rows(in, row, n, d, out, out_row);
  }
  for (int64_t i = 0; i < n; ++i) std::copy_n(in + i * row, d, out + i * out_row);
}

// out [d, stride] = inᵀ
template <typename T>
void TransposeRows(const T* in, int64_t row, int64_t n, int64_t d, T* out, int64_t stride) {
  if constexpr (std::is_same_v<T, float>) {
    if (const KernelTable* kernels = ActiveKernels())
      return kernels->transpose(in, row, n, d, out, stride);
  }
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < d; ++j) out[j * stride + i] = in[i * row + j];
}

template <typename T>
T Largest(const T* x, int64_t n) {
  if constexpr (std::is_same_v<T, float>) {
    if (const KernelTable* kernels = ActiveKernels()) return kernels->largest(x, n);
  }
  return *std::max_element(x, x + n);
}

// x[i] = e^(scale · x[i] - shift); returns the sum.
template <typename T>
T ScaledExpSum(T* x, int64_t n, T scale, T shift) {
  if constexpr (std::is_same_v<T, float>) {
    if (const KernelTable* kernels = ActiveKernels()) return kernels->exp_sum(x, n, scale, shift);
  }
  T sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += x[i] = std::exp(x[i] * scale - shift);
  return sum;
}

template <typename T>
T Dot(const T* a, const T* b, int64_t n) {
  if constexpr (std::is_same_v<T, float>) {
    if (const KernelTable* kernels = ActiveKernels()) return kernels->dot(a, b, n);
  }
  T sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

template <typename T>
void Scale(T* x, int64_t n, T factor) {
  if constexpr (std::is_same_v<T, float>) {
    if (const KernelTable* kernels = ActiveKernels()) return kernels->scale(x, n, factor);
  }
  for (int64_t i = 0; i < n; ++i) x[i] *= factor;
}

// y += x · factor
template <typename T>
void AddScaled(const T* x, T factor, T* y, int64_t n) {
  if constexpr (std::is_same_v<T, float>) {
    if (const KernelTable* kernels = ActiveKernels()) return kernels->add_scaled(x, factor, y, n);
  }
  for (int64_t i = 0; i < n; ++i) y[i] += x[i] * factor;
}

// s[i] = e^(scale · s[i] - shift), then d[i] = s[i] · (d[i] - delta) · scale with the new s[i].
// `delta`: the sum of s · d over the row (FlashAttention 2).
template <typename T>
void SoftmaxGradient(T* s, T* d, int64_t n, T scale, T shift, T delta) {
  if constexpr (std::is_same_v<T, float>) {
    if (const KernelTable* kernels = ActiveKernels())
      return kernels->softmax_gradient(s, d, n, scale, shift, delta);
  }
  for (int64_t i = 0; i < n; ++i) {
    s[i] = std::exp(s[i] * scale - shift);
    d[i] = s[i] * (d[i] - delta) * scale;
  }
}

// SwiGlu and its gradient as in pointwise.h, but on the calling thread. The gradient recomputes
// `out` unless it is null.
template <typename T>
void SwiGluSerial(const T* gate, const T* up, T* out, int64_t n) {
  if constexpr (std::is_same_v<T, float>) {
    if (const KernelTable* kernels = ActiveKernels()) return kernels->swiglu(gate, up, out, n);
  }
  for (int64_t i = 0; i < n; ++i) out[i] = gate[i] / (T{1} + std::exp(-gate[i])) * up[i];
}

template <typename T>
void SwiGluGradientSerial(const T* gate, const T* up, const T* dout, T* dgate, T* dup, T* out,
                          int64_t n) {
  if constexpr (std::is_same_v<T, float>) {
    if (const KernelTable* kernels = ActiveKernels())
      return kernels->swiglu_gradient(gate, up, dout, dgate, dup, out, n);
  }
  for (int64_t i = 0; i < n; ++i) {
    const T g = gate[i], u = up[i], d = dout[i];
    const T s = T{1} / (T{1} + std::exp(-g));
    dgate[i] = d * u * s * (T{1} + g * (T{1} - s));
    dup[i] = d * g * s;
    if (out != nullptr) out[i] = g / (T{1} + std::exp(-g)) * u;
  }
}

}  // namespace switchyard::train
