#include "train/layers/pointwise.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "train/math/kernel_table.h"
#include "train/math/row_math.h"

namespace switchyard::train {
namespace {

// Ranges with fewer elements are not split.
constexpr int64_t kGrain = 16384;

int64_t RowGrain(int64_t n) { return std::max<int64_t>(1, kGrain / std::max<int64_t>(n, 1)); }

// The vectorized kernels; null for float64 and for the reference instruction set.
template <typename T>
const KernelTable* KernelsFor() {
  return std::is_same_v<T, float> ? ActiveKernels() : nullptr;
}

// Σ a · b, in sixteen partial sums that the compiler can vectorize. The result is the same for all
// instruction sets.
template <typename T>
T DotInLanes(const T* a, const T* b, int64_t n) {
  T sum[16] = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (int l = 0; l < 16; ++l) sum[l] += a[i + l] * b[i + l];
  for (int l = 0; i < n; ++i, ++l) sum[l] += a[i] * b[i];
  T total = 0;
  for (const T s : sum) total += s;
  return total;
}

template <typename T>
T InverseRoot(const T* x, int64_t n, T eps) {
  return T{1} / std::sqrt(DotInLanes(x, x, n) / static_cast<T>(n) + eps);
}

// Σ a · b · c
template <typename T>
T DotOfThree(const T* a, const T* b, const T* c, int64_t n) {
  constexpr int kLanes = 16;  // sixteen partial sums, which the compiler can vectorize
  T sum[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int l = 0; l < kLanes; ++l) sum[l] += a[i + l] * b[i + l] * c[i + l];
  for (int l = 0; i < n; ++i, ++l) sum[l] += a[i] * b[i] * c[i];
  T total = 0;
  for (const T x : sum) total += x;
  return total;
}

}  // namespace

template <typename T>
void RmsNorm(const NormShape<T>& s, const T* x, const T* weight, T* y, ThreadPool& pool) {
  [[maybe_unused]] const KernelTable* kernels = KernelsFor<T>();
  pool.RunRanges(s.m, RowGrain(s.n), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const T* in = x + t * s.ldx;
      T* out = y + t * s.n;
      const T r = InverseRoot(in, s.n, s.eps);
      if constexpr (std::is_same_v<T, float>) {
        if (kernels != nullptr) {
          kernels->norm(in, r, weight, out, s.n);
          continue;
        }
      }
      for (int64_t i = 0; i < s.n; ++i) out[i] = in[i] * r * weight[i];
    }
  });
}

template <typename T>
void RmsNormGradient(const NormShape<T>& s, const T* x, const T* weight, const T* dy, T* dx,
                     bool accumulate, T* dweight, ThreadPool& pool) {
  [[maybe_unused]] const KernelTable* kernels = KernelsFor<T>();
  std::vector<T> roots(s.m);
  pool.RunRanges(s.m, RowGrain(s.n), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const T* in = x + t * s.ldx;
      const T* d = dy + t * s.n;
      T* out = dx + t * s.ldx;
      const T r = roots[t] = InverseRoot(in, s.n, s.eps);
      const T along = DotOfThree(d, weight, in, s.n);
      const T back = along * r * r * r / static_cast<T>(s.n);
      if constexpr (std::is_same_v<T, float>) {
        if (kernels != nullptr) {
          kernels->norm_gradient(in, r, weight, d, back, accumulate, out, s.n);
          continue;
        }
      }
      for (int64_t i = 0; i < s.n; ++i) {
        const T value = d[i] * weight[i] * r - in[i] * back;
        out[i] = accumulate ? out[i] + value : value;
      }
    }
  });
  if (dweight == nullptr) return;
  // Parallel over columns, each summed over all rows in order.
  const int64_t pieces = (s.n + kFewColumns - 1) / kFewColumns;
  pool.RunRanges(
      pieces, std::max<int64_t>(1, RowGrain(s.m) / kFewColumns), [&](int64_t from, int64_t to) {
        for (int64_t piece = from; piece < to; ++piece) {
          const int64_t begin = piece * kFewColumns, end = std::min(s.n, begin + kFewColumns);
          if constexpr (std::is_same_v<T, float>) {
            if (kernels != nullptr) {
              kernels->add_columns(dy + begin, s.n, x + begin, s.ldx, roots.data(), s.m,
                                   end - begin, dweight + begin);
              continue;
            }
          }
          for (int64_t t = 0; t < s.m; ++t)
            for (int64_t i = begin; i < end; ++i)
              dweight[i] += dy[t * s.n + i] * x[t * s.ldx + i] * roots[t];
        }
      });
}

namespace {

constexpr int64_t kMaxRotary = 256;

// Rotary embedding of interleaved pairs. The cosines and sines of a row are expanded to pairs once
// for all heads.
void RopeOfPairs(const RopeShape<float>& s, float* x, bool backward, const KernelTable& kernels,
                 ThreadPool& pool) {
  const int64_t half = s.rotary_dim / 2;
  pool.RunRanges(s.m, RowGrain(s.heads * s.rotary_dim), [&](int64_t begin, int64_t end) {
    float cosines[kMaxRotary], sines[kMaxRotary];
    for (int64_t t = begin; t < end; ++t) {
      const float* from = s.cos_sin + s.positions[t] * s.rotary_dim;
      for (int64_t i = 0; i < half; ++i) {
        const float sine = backward ? -from[half + i] : from[half + i];
        cosines[2 * i] = cosines[2 * i + 1] = from[i];
        sines[2 * i] = -sine;
        sines[2 * i + 1] = sine;
      }
      for (int64_t h = 0; h < s.heads; ++h)
        kernels.rotate_pairs(x + t * s.row + h * s.head + s.offset, cosines, sines, s.rotary_dim);
    }
  });
}

}  // namespace

template <typename T>
void Rope(const RopeShape<T>& s, T* x, bool backward, ThreadPool& pool) {
  if constexpr (std::is_same_v<T, float>) {
    const KernelTable* kernels = ActiveKernels();
    const bool whole = s.rotary_dim % 8 == 0 && s.rotary_dim <= kMaxRotary;
    if (kernels != nullptr && s.interleaved && whole)
      return RopeOfPairs(s, x, backward, *kernels, pool);
  }
  const int64_t half = s.rotary_dim / 2;
  const int64_t step = s.interleaved ? 2 : 1, other = s.interleaved ? 1 : half;
  pool.RunRanges(s.m, RowGrain(s.heads * s.rotary_dim), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const float* cosines = s.cos_sin + s.positions[t] * s.rotary_dim;
      const float* sines = cosines + half;
      for (int64_t h = 0; h < s.heads; ++h) {
        T* p = x + t * s.row + h * s.head + s.offset;
        for (int64_t i = 0; i < half; ++i, p += step) {
          const T c = cosines[i], sine = backward ? -sines[i] : sines[i];
          const T a = p[0], b = p[other];
          p[0] = a * c - b * sine;
          p[other] = b * c + a * sine;
        }
      }
    }
  });
}

template <typename T>
void SwiGlu(const T* gate, const T* up, T* out, int64_t count, ThreadPool& pool) {
  pool.RunRanges(count, kGrain, [&](int64_t begin, int64_t end) {
    SwiGluSerial(gate + begin, up + begin, out + begin, end - begin);
  });
}

template <typename T>
void SwiGluGradient(const T* gate, const T* up, const T* dout, T* dgate, T* dup, int64_t count,
                    ThreadPool& pool) {
  pool.RunRanges(count, kGrain, [&](int64_t begin, int64_t end) {
    SwiGluGradientSerial<T>(gate + begin, up + begin, dout + begin, dgate + begin, dup + begin,
                            nullptr, end - begin);
  });
}

template <typename T>
void Add(T* y, const T* x, int64_t count, ThreadPool& pool) {
  pool.RunRanges(count, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) y[i] += x[i];
  });
}

template <typename T>
T ExpSum(T* x, int64_t n, T shift) {
  if constexpr (std::is_same_v<T, float>) {
    if (const KernelTable* kernels = ActiveKernels()) return kernels->exp_sum(x, n, 1.0f, shift);
  }
  T sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += x[i] = std::exp(x[i] - shift);
  return sum;
}

template <typename T>
void Embed(std::span<const int32_t> ids, const T* table, int64_t width, T* out, ThreadPool& pool) {
  const auto m = static_cast<int64_t>(ids.size());
  pool.RunRanges(m, RowGrain(width), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      std::copy_n(table + ids[t] * width, width, out + t * width);
  });
}

template <typename T>
void EmbedGradient(std::span<const int32_t> ids, const T* dout, int64_t width, T* dtable,
                   ThreadPool& pool) {
  const auto m = static_cast<int64_t>(ids.size());
  // Parallel over columns, because a token may occur more than once.
  pool.RunRanges(width, std::max<int64_t>(64, RowGrain(m)), [&](int64_t begin, int64_t end) {
    for (int64_t t = 0; t < m; ++t) {
      T* row = dtable + ids[t] * width;
      for (int64_t i = begin; i < end; ++i) row[i] += dout[t * width + i];
    }
  });
}

// NOLINTBEGIN(bugprone-macro-parentheses): T is a type
#define SWITCHYARD_POINTWISE(T)                                                                  \
  template void RmsNorm(const NormShape<T>&, const T*, const T*, T*, ThreadPool&);               \
  template void RmsNormGradient(const NormShape<T>&, const T*, const T*, const T*, T*, bool, T*, \
                                ThreadPool&);                                                    \
  template void Rope(const RopeShape<T>&, T*, bool, ThreadPool&);                                \
  template void SwiGlu(const T*, const T*, T*, int64_t, ThreadPool&);                            \
  template void SwiGluGradient(const T*, const T*, const T*, T*, T*, int64_t, ThreadPool&);      \
  template void Add(T*, const T*, int64_t, ThreadPool&);                                         \
  template T ExpSum(T*, int64_t, T);                                                             \
  template void Embed(std::span<const int32_t>, const T*, int64_t, T*, ThreadPool&);             \
  template void EmbedGradient(std::span<const int32_t>, const T*, int64_t, T*, ThreadPool&);
SWITCHYARD_POINTWISE(float)
SWITCHYARD_POINTWISE(double)
// NOLINTEND(bugprone-macro-parentheses)

}  // namespace switchyard::train
