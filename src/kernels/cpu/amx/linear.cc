// AMX kernels of int8 and bfloat16 products.
#include "kernels/cpu/amx/tile_block.h"
#include "kernels/cpu/amx/tile_panels.h"
#include "kernels/cpu/amx/tile_rows.h"
#include "kernels/cpu/heuristics.h"
#include "kernels/cpu/kernel_table.h"

namespace switchyard::kernels::cpu::amx {
namespace {

// Int8 rows by int8 weights, whose codes are used unchanged.
struct Int8Product {
  static constexpr int kWeightBytes = 1;
  static constexpr bool kScaled = true;

  static __m512i Encode(__m512i weights) { return weights; }
  static TileRows RowsOf(const LinearTask& t) {
    return {reinterpret_cast<const char*>(t.codes.base), t.codes.ld, t.codes.ids};
  }
  template <int kC, int kA, int kB>
  [[gnu::always_inline]] static void Multiply(Tiles& tiles) {
    tiles.MultiplyInt8<kC, kA, kB>();
  }
  static __m512 Outputs(const LinearTask& t, const Panel& p, int64_t i, int v, const void* sums) {
    const Int8Row& row = t.codes.rows[t.codes.ids != nullptr ? t.codes.ids[i] : i];
    return avx512::ScaledSums<Int8Product>(_mm512_load_si512(sums), row.scale, p, v);
  }
};

// Bfloat16 rows by bfloat16 weights. An output is a chain over steps of 32 columns of K; each step
// adds the sum of its even columns plus the sum of its odd ones. The order is the same for any
// number of rows.
struct BF16Product {
  static constexpr int kWeightBytes = 2;
  static constexpr bool kScaled = false;

  static __m512i Encode(__m512i weights) { return weights; }
  static TileRows RowsOf(const LinearTask& t) {
    return {reinterpret_cast<const char*>(t.bf16_rows.base), t.bf16_rows.ld * kWeightBytes,
            t.bf16_rows.ids};
  }
  template <int kC, int kA, int kB>
  [[gnu::always_inline]] static void Multiply(Tiles& tiles) {
    tiles.MultiplyBFloat16<kC, kA, kB>();
  }
  static __m512 Outputs(const LinearTask&, const Panel&, int64_t, int, const void* sums) {
    return _mm512_load_ps(sums);
  }
};

template <class P>
void MultiplyInTiles(const LinearTask& t) {
  if (t.m == 0) return;
  const bool few = t.m <= kTilesMaxPackedRows && t.m <= t.end - t.begin;
  few ? MultiplyFewRows<P>(t) : MultiplyPanels<P>(t);
}

}  // namespace

void LinearInt8(const LinearTask& t) {
  if (t.m < kInt8TilesMinRows) return avx512::LinearInt8(t);
  MultiplyInTiles<Int8Product>(t);
}

// Used for any number of rows, because another kernel would have a different reduction order.
void LinearBF16(const LinearTask& t) { MultiplyInTiles<BF16Product>(t); }

}  // namespace switchyard::kernels::cpu::amx
