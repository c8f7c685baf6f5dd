#include "kernels/cpu/avx512/int8_panels.h"

#include <immintrin.h>

#include "kernels/cpu/avx512/panels.h"
#include "kernels/cpu/heuristics.h"
#include "kernels/cpu/leaves.h"

namespace switchyard::kernels::cpu::avx512 {
namespace {

constexpr int kVectors = 4;   // of a tile: with 6 rows 24 sums, 4 weights and a row fill 29 of 32
constexpr int kTileRows = 6;  // registers, and 10 loads hide behind 24 products
static_assert(kInt8PanelCols == kVectors * kPanelLanes);

struct Vnni {
  static constexpr int kWeightBytes = 1;
  static constexpr bool kScaled = true;
  static constexpr uint32_t kOffset = 128;  // unsigned by signed: weights enter as w + kOffset

  static __m512i Encode(__m512i weights) {
    return _mm512_xor_si512(weights, _mm512_set1_epi8(-128));
  }
  // _mm512_dpbusd_epi32 in place: from the intrinsic GCC 12 makes copies of the sums and spills
  // them.
  static void Add(__m512i& sum, __m512i weights, __m512i codes) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(weights), "v"(codes));
  }
};

template <int M, int N>
[[gnu::always_inline]] inline void Store(const LinearTask& t, const Panel& p,
                                         const int64_t (&rows)[M], int64_t i, int64_t n,
                                         const __m512i (&acc)[M][N]) {
#pragma GCC unroll 6
  for (int r = 0; r < M; ++r) {
    const Int8Row& row = t.codes.rows[rows[r]];
    // The weights' offset is in every sum.
    const __m512i offset =
        _mm512_set1_epi32(static_cast<int32_t>(Vnni::kOffset * static_cast<uint32_t>(row.sum)));
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) {
      const __m512i sums = _mm512_sub_epi32(acc[r][v], offset);
      StoreOutputs<Vnni>(t, p, i + r, n, v, ScaledSums<Vnni>(sums, row.scale, p, v));
    }
  }
}

// Rows [i, i + M) of x with a panel of N vectors of outputs from n on.
template <int M, int N>
[[gnu::noinline]] void Tile(const LinearTask& t, const Panel& p, int64_t i, int64_t n) {
  int64_t rows[M];
  const int8_t* x[M];
  for (int r = 0; r < M; ++r) {
    rows[r] = t.codes.ids != nullptr ? t.codes.ids[i + r] : i + r;
    x[r] = t.codes.base + rows[r] * t.codes.ld;
  }
  __m512i acc[M][N];
#pragma GCC unroll 6
  for (int r = 0; r < M; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) acc[r][v] = _mm512_setzero_si512();
  }
  const char* w = p.codes;
  for (int64_t k = 0; k < t.w.k; k += kPanelGroup, w += N * kPanelLine) {
    __m512i weights[N];
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) weights[v] = _mm512_load_si512(w + v * kPanelLine);
#pragma GCC unroll 6
    for (int r = 0; r < M; ++r) {
      int32_t four;
      __builtin_memcpy(&four, x[r] + k, sizeof(four));
      const __m512i codes = _mm512_set1_epi32(four);
#pragma GCC unroll 4
      for (int v = 0; v < N; ++v) Vnni::Add(acc[r][v], weights[v], codes);
    }
  }
  Store<M, N>(t, p, rows, i, n, acc);
}

template <int N, int M = kTileRows>
void RunTile(const LinearTask& t, const Panel& p, int64_t i, int64_t m, int64_t n) {
  if constexpr (M > 1) {
    if (m < M) return RunTile<N, M - 1>(t, p, i, m, n);
  }
  Tile<M, N>(t, p, i, n);
}

template <int N>
void MultiplyPanel(const LinearTask& t, const Panel& p, int64_t n, NextPanel<Vnni>& next) {
  const int64_t tiles = (t.m + kTileRows - 1) / kTileRows;
  const int64_t lines = (next.Lines() + tiles - 1) / tiles;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t i = t.m * tile / tiles;
    next.Touch(lines);
    RunTile<N>(t, p, i, t.m * (tile + 1) / tiles - i, n);
  }
}

}  // namespace

void LinearInt8Panels(const LinearTask& t) {
  char* memory = reinterpret_cast<char*>(t.scratch);
  ForPanels<Vnni>(t, kInt8PanelCols, memory, [&](const Panel& p, int64_t n, auto& next) {
    switch (p.vectors) {
      case 1:
        return MultiplyPanel<1>(t, p, n, next);
      case 2:
        return MultiplyPanel<2>(t, p, n, next);
      case 3:
        return MultiplyPanel<3>(t, p, n, next);
      default:
        return MultiplyPanel<4>(t, p, n, next);
    }
  });
}

}  // namespace switchyard::kernels::cpu::avx512
