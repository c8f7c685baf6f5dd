// acc[i] += Σ_j weight[i][j] · row[j]: values of attention, and products with W as stored. Each
// element is one chain in ascending j.
#pragma once

#include <cstdint>

#include "kernels/cpu/kernel_table.h"

namespace switchyard::kernels::cpu::simd {

// Software prefetch of upcoming rows, a few cache lines per iteration.

// Locality hint of __builtin_prefetch: into L2. L1 holds the current operands, and lines prefetched
// there would be evicted before use.
constexpr int kPrefetchToL2 = 2;
constexpr int64_t kLineBytes = 64;

// Prefetches rows line by line between products, at an even rate: a core drops prefetches beyond
// its limit of outstanding requests.
struct RowPrefetch {
  static constexpr int64_t kFixedPointLine =
      1 << 16;  // fixed-point unit of `due` and `each`: one line
  // Short loops call Step only in every kStepInterval-th iteration.
  static constexpr int64_t kStepInterval = 4;

  const char* const* row = nullptr;
  int64_t rows = 0, bytes = 0, at = 0;
  int64_t due = 0, each = 0;  // lines due now, and added per step

  // Always inline: an out-of-line copy could be compiled for another instruction set
  // (kernel_table.h).
  [[gnu::always_inline]] RowPrefetch() {}
  // Prefetches `count` rows of `row_bytes` bytes, evenly over `steps` calls of Step.
  [[gnu::always_inline]] RowPrefetch(const char* const* first, int64_t count, int64_t row_bytes,
                                     int64_t steps)
      : row(first), rows(count), bytes(row_bytes) {
    const int64_t lines = (row_bytes + kLineBytes - 1) / kLineBytes * count;
    each = steps > 0 ? lines * kFixedPointLine / steps + 1 : 0;
  }

  [[gnu::always_inline]] void Step() {
    for (due += each; due >= kFixedPointLine && rows > 0; due -= kFixedPointLine) {
      __builtin_prefetch(*row + at, 0, kPrefetchToL2);
      at += kLineBytes;
      if (at < bytes) continue;
      at = 0;
      ++row;
      --rows;
    }
  }
};

// A tile of M accumulator rows (stride acc_stride) by N vectors from column c on.
template <class V, int M, int N>
void WeightedTile(const float* weights, int64_t weight_stride, const float* const* rows,
                  int64_t begin, int64_t end, int64_t c, float* acc, int64_t acc_stride,
                  RowPrefetch& requests) {
  RowPrefetch left = requests;
  typename V::F sum[M][N];
  for (int i = 0; i < M; ++i) {
    for (int v = 0; v < N; ++v) sum[i][v] = V::Load(acc + i * acc_stride + c + v * V::kLanes);
  }
  for (int64_t j = begin; j < end; ++j) {
    if (j % RowPrefetch::kStepInterval == 0) left.Step();
    typename V::F value[N];
    for (int v = 0; v < N; ++v) value[v] = V::Load(rows[j] + c + v * V::kLanes);
    for (int i = 0; i < M; ++i) {
      const auto weight = V::Set1(weights[i * weight_stride + j]);
      for (int v = 0; v < N; ++v) sum[i][v] = V::Fma(weight, value[v], sum[i][v]);
    }
  }
  for (int i = 0; i < M; ++i) {
    for (int v = 0; v < N; ++v) V::Store(acc + i * acc_stride + c + v * V::kLanes, sum[i][v]);
  }
  requests = left;
}

template <class V, int M>
void WeightedStrip(const float* weights, int64_t weight_stride, const float* const* rows,
                   int64_t begin, int64_t end, int64_t width, float* acc, int64_t acc_stride,
                   RowPrefetch& requests) {
  constexpr int kWide = 4;
  int64_t c = 0;
  for (; c + kWide * V::kLanes <= width; c += kWide * V::kLanes) {
    WeightedTile<V, M, kWide>(weights, weight_stride, rows, begin, end, c, acc, acc_stride,
                              requests);
  }
  for (; c < width; c += V::kLanes) {
    WeightedTile<V, M, 1>(weights, weight_stride, rows, begin, end, c, acc, acc_stride, requests);
  }
}

// Number of RowPrefetch steps in AddWeightedRows.
template <class V>
int64_t WeightedRowsSteps(int64_t begin, int64_t end, int64_t width, int64_t m) {
  const int64_t strips = m / V::kQueryRows + m % V::kQueryRows;
  const int64_t tiles = width / (4 * V::kLanes) + width / V::kLanes % 4;
  return strips * tiles * (end - begin) / RowPrefetch::kStepInterval;
}

// Adds the weighted rows [begin, end) to m accumulator rows. `width` is a multiple of the lanes and
// must be readable in every row. Prefetches `requests` meanwhile.
template <class V>
void AddWeightedRows(const float* weights, int64_t weight_stride, const float* const* rows,
                     int64_t begin, int64_t end, int64_t width, int64_t m, float* acc,
                     int64_t acc_stride, RowPrefetch& requests) {
  int64_t i = 0;
  for (; i + V::kQueryRows <= m; i += V::kQueryRows) {
    WeightedStrip<V, V::kQueryRows>(weights + i * weight_stride, weight_stride, rows, begin, end,
                                    width, acc + i * acc_stride, acc_stride, requests);
  }
  for (; i < m; ++i) {
    WeightedStrip<V, 1>(weights + i * weight_stride, weight_stride, rows, begin, end, width,
                        acc + i * acc_stride, acc_stride, requests);
  }
}

}  // namespace switchyard::kernels::cpu::simd
