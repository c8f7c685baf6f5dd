// Tiles in plain C++, instruction by instruction as Intel's manual has them, faults included (they
// are CHECKs). Hundreds of times slower.
#pragma once

#include <cstdint>

#include "kernels/cpu/amx/tiles.h"

namespace switchyard::kernels::cpu::amx {

// Of one thread. Methods are instructions; tiles go by number.
class EmulatedTiles {
 public:
  void Configure(const TileConfig& config);
  void Release() { configured_ = false; }
  void Zero(int tile);
  // Rows `stride` bytes apart.
  void Load(int tile, const void* from, int64_t stride);
  void Store(int tile, void* to, int64_t stride);
  void MultiplyInt8(int c, int a, int b);
  void MultiplyBFloat16(int c, int a, int b);

 private:
  struct Tile {
    int rows = 0, bytes = 0;  // as configured
    uint32_t words[kTileRows][kTileBytes / 4] = {};
  };

  Tile& At(int tile);
  void CheckProduct(int c, int a, int b);

  bool configured_ = false;
  Tile tiles_[kTiles] = {};
};

}  // namespace switchyard::kernels::cpu::amx
