// Bfloat16 products with vdpbf16ps, unpacked weights and rows of x. Vectors run along K and lanes
// are reduced at the end, as in float32 (simd/linear.h). A lane adds the product of a pair's second
// columns, rounds, adds the product of the first columns, and rounds. Subnormals are flushed to
// zero (Intel's manual).
#include <immintrin.h>

#include "kernels/cpu/avx512/bf16_pairs.h"
#include "kernels/cpu/avx512/vec.h"
#include "kernels/cpu/heuristics.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/simd/linear.h"
#include "kernels/cpu/simd/weight_prefetch.h"

namespace switchyard::kernels::cpu::avx512 {
namespace {

using simd::kTileCols;

constexpr int kBits = 16;
constexpr int64_t kHalf = sizeof(uint16_t), kLine = 64;  // bytes; a vector is a cache line
// 24 accumulators, 4 weight vectors and one x vector use 29 of 32 registers.
constexpr int kPairRows = 6;

const char* InputRow(const LinearTask& t, int64_t i) {
  const int64_t row = t.bf16_rows.ids != nullptr ? t.bf16_rows.ids[i] : i;
  return reinterpret_cast<const char*>(t.bf16_rows.base + row * t.bf16_rows.ld);
}

// Sets acc to the products of rows [i, i + M) of x with `count` (1 to N) weight rows from n on;
// rows beyond `count` repeat the last one. The sum of the lanes is not computed. Prefetches kAhead
// bytes ahead. kAhead 0: no prefetch; kPrefetchInTurns: as `turns` specifies.
template <int M, int N, int64_t kAhead>
[[gnu::always_inline]] inline void PairProducts(const LinearTask& t, int64_t i, int64_t n,
                                                int64_t count, const simd::PrefetchTurns& turns,
                                                __m512 (&acc)[M][N]) {
  const char* x[M];
  for (int r = 0; r < M; ++r) x[r] = InputRow(t, i + r);
  const char* w[N] = {simd::RowBytes<Vec>(t.w, n, kBits)};
  const int64_t stride = simd::RowStride<Vec>(t.w, kBits);
#pragma GCC unroll 8
  for (int c = 1; c < N; ++c) w[c] = c < count ? w[c - 1] + stride : w[c - 1];
#pragma GCC unroll 8
  for (int r = 0; r < M; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < N; ++c) acc[r][c] = _mm512_setzero_ps();
  }
  const auto step = [&](int64_t j, const auto& load) __attribute__((always_inline)) {
    __m512i wv[N];
#pragma GCC unroll 8
    for (int c = 0; c < N; ++c) wv[c] = load(w[c] + j);
#pragma GCC unroll 8
    for (int r = 0; r < M; ++r) {
      __m512i xv = _mm512_loadu_si512(x[r] + j);
      if (N > 1) asm("" : "+v"(xv));  // prevents a reload for each product
#pragma GCC unroll 8
      for (int c = 0; c < N; ++c) AddPairs(acc[r][c], wv[c], xv);
    }
  };
  const int64_t bytes = t.w.k * kHalf;
  const simd::WeightPrefetch<Vec, N, kAhead> ahead(bytes, stride, t.end - n, w[0], t.next);
  simd::PrefetchLines<kAhead> lines(turns);
  int64_t j = 0;
  for (; j + kLine <= bytes; j += kLine) {
    if (lines.Next(turns)) {
      const int64_t place = j + (kAhead > 0 ? ahead.Of(j) : turns.ahead);
#pragma GCC unroll 4
      for (int c = 0; c < N; ++c) __builtin_prefetch(w[c] + place, 0, 2);
    }
    step(
        j, [](const char* p) __attribute__((always_inline)) { return _mm512_loadu_si512(p); });
  }
  if (j < bytes) {  // tail: x rows are zero-padded, weight rows are not
    const auto mask = static_cast<__mmask32>((uint32_t{1} << ((bytes - j) / kHalf)) - 1);
    step(
        j, [mask](const char* p)
               __attribute__((always_inline)) { return _mm512_maskz_loadu_epi16(mask, p); });
  }
}

template <int M, int N, int64_t kAhead>
[[gnu::always_inline]] inline void PairTile(const LinearTask& t, int64_t i, int64_t n,
                                            int64_t count, const simd::PrefetchTurns& turns) {
  __m512 acc[M][N];
  PairProducts<M, N, kAhead>(t, i, n, count, turns, acc);
  simd::FinishTile<Vec, M, N>(t, i, n, count, acc);
}

template <int M, int N, int64_t kAhead>
[[gnu::noinline]] void RunPairTiles(const LinearTask& t, int64_t i, int64_t n, int64_t count,
                                    const simd::PrefetchTurns& turns = {}) {
  for (int64_t c = 0; c < count; c += N) {
    PairTile<M, N, kAhead>(t, i, n + c, count - c < N ? count - c : N, turns);
  }
}

// Rows of x of a product with short weight rows. Sixteen sums of such a product are reduced
// together: those of kShortCols<M> weight rows.
constexpr int kShortRows = 4;
template <int M>
constexpr int kShortCols = 16 / M;

// Multiplies rows [i, i + M) of x with all weight rows of the task, which are short.
template <int M>
[[gnu::noinline]] void RunShortRows(const LinearTask& t, int64_t i) {
  constexpr int kCols = kShortCols<M>, kTile = kCols < 8 ? kCols : 8;  // weight rows of a tile
  for (int64_t n = t.begin; n < t.end; n += kCols) {
    const int64_t count = t.end - n < kCols ? t.end - n : kCols;
    __m512 all[16];  // index r · kCols + c
    if constexpr (M == 3) all[15] = _mm512_setzero_ps();
#pragma GCC unroll 2
    for (int first = 0; first < kCols; first += kTile) {
      __m512 acc[M][kTile];
      // Beyond the last row: repeats it.
      const int64_t at = first < count ? first : count - 1, left = count - at;
      PairProducts<M, kTile, 0>(t, i, n + at, left < kTile ? left : kTile, {}, acc);
#pragma GCC unroll 4
      for (int r = 0; r < M; ++r) {
#pragma GCC unroll 8
        for (int c = 0; c < kTile; ++c) all[r * kCols + first + c] = acc[r][c];
      }
    }
    float sums[16];
    _mm512_storeu_ps(sums, Vec::ReduceAdd16(all));
    const bool plain = t.bias == nullptr && !t.accumulate && count == kCols;
#pragma GCC unroll 4
    for (int r = 0; r < M; ++r) {
      if (plain) {
        __builtin_memcpy(t.y + (i + r) * t.ldy + n, sums + r * kCols, kCols * sizeof(float));
      } else {
        simd::StoreSums<Vec>(t, i + r, n, count, sums + r * kCols);
      }
    }
  }
}

// Multiplies rows [first, first + rows) of x with four weight rows at a time. The first tile of x
// loads the weights from L2 or memory, later tiles hit L1.
void MultiplyPairs(const LinearTask& t, int64_t first, int64_t rows) {
  if (rows <= kShortRows && t.w.k * kHalf <= kShortRowBytes)
    return simd::ForRows<Vec, kShortRows>(rows, [&]<int M>() { RunShortRows<M>(t, first); });
  const int64_t tiles = (rows + kPairRows - 1) / kPairRows;
  for (int64_t n = t.begin; n < t.end; n += kTileCols) {
    const int64_t count = t.end - n < kTileCols ? t.end - n : kTileCols;
    const int64_t ahead = simd::PrefetchBlockOffset<Vec, kBlockPrefetchBytes>(
        kTileCols, t.w.k * kHalf, simd::RowStride<Vec>(t.w, kBits), t.end - n,
        simd::RowBytes<Vec>(t.w, n, kBits), t.next);
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t i = first + rows * tile / tiles;
      simd::ForRows<Vec, kPairRows>(first + rows * (tile + 1) / tiles - i, [&]<int M>() {
        if (tiles == 1 && t.w.k * kHalf <= kShortRowBytes)
          return RunPairTiles<M, kTileCols, 0>(t, i, n, count);
        // With a single row of x, weight rows are processed one after another, as in the float32
        // kernels (simd/linear.h).
        if constexpr (M == 1) return RunPairTiles<M, 1, 0>(t, i, n, count);
        if (tiles == 1) return RunPairTiles<M, kTileCols, kPrefetchBytes>(t, i, n, count);
        RunPairTiles<M, kTileCols, simd::kPrefetchInTurns>(t, i, n, count, {ahead, tile, tiles});
      });
    }
  }
}

}  // namespace

void LinearBF16(const LinearTask& t) {
  for (int64_t first = 0; first < t.m; first += kPanelBatch) {
    LinearTask batch = t;
    if (t.m - first > kPanelBatch) batch.next = simd::RowBytes<Vec>(t.w, t.begin, kBits);
    MultiplyPairs(batch, first, t.m - first < kPanelBatch ? t.m - first : kPanelBatch);
  }
}

}  // namespace switchyard::kernels::cpu::avx512
