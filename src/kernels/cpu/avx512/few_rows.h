// Products in the order of panel_tiles.h without a panel: sixteen weight rows at a time go from
// memory through registers, transposed, into the products of a few rows of x. A panel would be
// written and read again while memory has nothing to do. P as panel_tiles.h wants it.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/avx512/panels.h"
#include "kernels/cpu/heuristics.h"
#include "kernels/cpu/leaves.h"

namespace switchyard::kernels::cpu::avx512 {

// The first `count` of eight groups of transposed weights times M rows of x from byte k on.
template <class P, int M>
[[gnu::always_inline]] inline void MultiplyGroups(const __m512i (&groups)[kPanelGroups],
                                                  int64_t count, const char* const (&x)[M],
                                                  int64_t k, typename P::Sum (&acc)[M]) {
#pragma GCC unroll 8
  for (int64_t c = 0; c < count; ++c) {
    const __m512i weights = P::Encode(groups[c]);
#pragma GCC unroll 8
    for (int r = 0; r < M; ++r) {
      int32_t group;
      __builtin_memcpy(&group, x[r] + k + c * kPanelGroup, sizeof(group));
      P::Add(acc[r], weights, _mm512_set1_epi32(group));
    }
  }
}

// All M rows of x with sixteen outputs, from n on.
template <class P, int M>
[[gnu::noinline]] void FewRowsTile(const LinearTask& t, const Panel& p, int64_t n) {
  int64_t rows[M];
  const char* x[M];
  for (int r = 0; r < M; ++r) {
    rows[r] = P::Row(t, r);
    x[r] = P::Data(t, rows[r]);
  }
  typename P::Sum acc[M];
#pragma GCC unroll 8
  for (int r = 0; r < M; ++r) acc[r] = P::Zero();
  const SixteenRows<P> w(t.w, n, p.count, t.end);
  // No group beyond the last column: adding zeros would take a sum's sign if it is -0.
  const auto multiply = [&](const PanelLines& lines, int64_t k, int64_t left)
      __attribute__((always_inline)) {
#pragma GCC unroll 2
    for (const auto& half : lines.halves) {
      __m512i groups[kPanelGroups];
      Transpose<P>(half, groups);
      MultiplyGroups<P, M>(groups, left < kPanelGroups ? left : kPanelGroups, x, k, acc);
      k += kHalfLine;
      left -= kPanelGroups;
    }
  };
  w.ForLines(multiply);
#pragma GCC unroll 8
  for (int r = 0; r < M; ++r) {
    StoreOutputs<P>(t, p, r, n, 0, P::Outputs(t, p, rows[r], 0, acc[r]));
  }
}

template <class P, int M = kFewRows>
void RunFewRowsTile(const LinearTask& t, const Panel& p, int64_t n) {
  if constexpr (M > 1) {
    if (t.m < M) return RunFewRowsTile<P, M - 1>(t, p, n);
  }
  FewRowsTile<P, M>(t, p, n);
}

// All of a task of at most kFewRows rows.
template <class P>
void MultiplyFewRows(const LinearTask& t) {
  if (t.m == 0) return;
  ForOutputs<P>(t, kPanelLanes, [&](const Panel& p, int64_t n) { RunFewRowsTile<P>(t, p, n); });
}

}  // namespace switchyard::kernels::cpu::avx512
