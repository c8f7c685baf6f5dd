// Software emulation of AMX tiles, instruction by instruction after Intel's manual, including
// faults (as CHECKs). Hundreds of times slower than hardware.
#pragma once

#include <cstdint>

#include "kernels/cpu/amx/tiles.h"

namespace switchyard::kernels::cpu::amx {

// Tiles of one thread. Each method is one instruction; tiles are given by number.
class EmulatedTiles {
 public:
  void Configure(const TileConfig& config);
  void Release() { configured_ = false; }
  void Zero(int tile);
  // `stride`: bytes between rows in memory.
  void Load(int tile, const void* from, int64_t stride);
  void Store(int tile, void* to, int64_t stride);
  void MultiplyInt8(int c, int a, int b);
  void MultiplyBFloat16(int c, int a, int b);

 private:
  struct Tile {
    int rows = 0, bytes = 0;  // set by LDTILECFG
    uint32_t words[kTileRows][kTileBytes / 4] = {};
  };

  Tile& At(int tile);
  void CheckProduct(int c, int a, int b);

  bool configured_ = false;
  Tile tiles_[kTiles] = {};
};

}  // namespace switchyard::kernels::cpu::amx
