// Tiles in plain C++, instruction by instruction as Intel's manual has them, faults included (they
// are CHECKs): what kernels for tiles are tested on where there is no AMX. Hundreds of times
// slower.
#pragma once

#include <cstdint>

#include "kernels/cpu/amx/tiles.h"

namespace switchyard::kernels::cpu::amx {

// Belongs to a task, on the thread that made it. Methods are those of Tiles.
class EmulatedTiles {
 public:
  EmulatedTiles();
  void Configure(const TileConfig& config);
  template <int kTile>
  [[gnu::always_inline]] void Zero() {
    Zero(kTile);
  }
  template <int kTile>
  [[gnu::always_inline]] void Load(const void* from, int64_t stride) {
    Load(kTile, from, stride);
  }
  template <int kTile>
  [[gnu::always_inline]] void Store(void* to, int64_t stride) {
    Store(kTile, to, stride);
  }
  template <int kC, int kA, int kB>
  [[gnu::always_inline]] void MultiplyInt8() {
    MultiplyInt8(kC, kA, kB);
  }
  template <int kC, int kA, int kB>
  [[gnu::always_inline]] void MultiplyBFloat16() {
    MultiplyBFloat16(kC, kA, kB);
  }

 private:
  struct Tile {
    int rows, bytes;  // as configured
    uint32_t words[kTileRows][kTileBytes / 4];
  };

  Tile& At(int tile);
  void CheckProduct(int c, int a, int b);
  void Zero(int tile);
  void Load(int tile, const void* from, int64_t stride);
  void Store(int tile, void* to, int64_t stride);
  void MultiplyInt8(int c, int a, int b);
  void MultiplyBFloat16(int c, int a, int b);

  bool configured_;
  Tile tiles_[kTiles];
};

}  // namespace switchyard::kernels::cpu::amx
