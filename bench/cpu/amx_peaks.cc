// Peak rate of AMX. Two tiles of each operand are multiplied into four accumulator tiles, as in the
// kernels. The loops of the data types stay separate: a tile instruction needs constant tile
// numbers, and its function the target attribute of its data type.
#include <immintrin.h>

#include <cstdint>
#include <vector>

#include "bench/cpu/peaks.h"
#include "kernels/ops.h"

namespace switchyard::bench {
namespace {

constexpr int kTileRows = 16, kTileBytes = 64;  // the largest tile of palette 1
constexpr int kTiles = 8, kProducts = 4;

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};
};

__attribute__((target("amx-tile"))) void ConfigureTiles() {
  TileConfig config;
  for (int t = 0; t < kTiles; ++t) {
    config.bytes[t] = kTileBytes;
    config.rows[t] = kTileRows;
  }
  // Without this statement GCC 12 assumes that _tile_loadconfig reads only the first 8 bytes, and
  // drops the stores of the rest.
  asm volatile("" ::"r"(&config) : "memory");
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
}

__attribute__((target("amx-tile,amx-bf16"))) void BF16Tiles(int64_t steps) {
  ConfigureTiles();
  for (int64_t i = 0; i < steps; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
}

__attribute__((target("amx-tile,amx-int8"))) void Int8Tiles(int64_t steps) {
  ConfigureTiles();
  for (int64_t i = 0; i < steps; ++i) {
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
  }
  _tile_release();
}

}  // namespace

void AddAmxPeakLoops(std::vector<PeakLoop>& loops) {
  if (!kernels::HasAmx()) return;
  // Each of the 16 × 16 sums takes one multiply-add for each element of a tile's row.
  constexpr double kSums = 2.0 * kProducts * kTileRows * 16;
  loops.push_back({"bfloat16 amx", "tdpbf16ps, tiles", kSums * kTileBytes / 2, BF16Tiles});
  loops.push_back({"int8 amx", "tdpbssd, tiles", kSums * kTileBytes, Int8Tiles});
}

}  // namespace switchyard::bench
