// AMX tiles: eight registers of up to 16 rows of 64 bytes. Products of two tiles are accumulated in
// a third. (Intel, Software Developer's Manual, volume 1, "Programming with Intel AMX"; volume 2,
// LDTILECFG, TILELOADD, TDPBSSD, TDPBF16PS.)
#pragma once

#include <cstdint>

namespace switchyard::kernels::cpu::amx {

constexpr int kTiles = 8, kTileRows = 16, kTileBytes = 64;

// Operand of LDTILECFG: rows per tile and bytes per row; 0 and 0 for unused tiles.
struct alignas(64) TileConfig {
  uint8_t palette;  // must be 1
  uint8_t start_row;
  uint8_t reserved[14];
  uint16_t bytes[16];
  uint8_t rows[16];
};
static_assert(sizeof(TileConfig) == 64);

// Tiles of the calling thread. The destructor releases them, because context switches are faster
// without live tiles. Uses inline assembly instead of intrinsics. The intrinsics of GCC 12 need
// literal tile numbers, declare only 8 bytes of the configuration as read, and do not declare that
// loads read memory.
class Tiles {
 public:
  Tiles() = default;
  ~Tiles() { asm volatile("tilerelease"); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

  // Call before the other functions, and again for other shapes. Zeroes all tiles.
  [[gnu::always_inline]] void Configure(const TileConfig& config) {
    asm volatile("ldtilecfg %0" : : "m"(config));
  }
  template <int kTile>
  [[gnu::always_inline]] void Zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  // `stride`: bytes between rows in memory.
  template <int kTile>
  [[gnu::always_inline]] void Load(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kTile>
  [[gnu::always_inline]] void Store(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(kTile) : "memory");
  }
  // C[m][n] += Σ A[m][4k + i] · B[k][4n + i] of signed bytes, in int32.
  template <int kC, int kA, int kB>
  [[gnu::always_inline]] void MultiplyInt8() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
  }
  // C[m][n] += Σ A[m][2k + i] · B[k][2n + i] of bfloat16, in float32. Sums over k separately for i
  // = 0 and i = 1; the two are added together and then to C.
  template <int kC, int kA, int kB>
  [[gnu::always_inline]] void MultiplyBFloat16() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
  }
};

}  // namespace switchyard::kernels::cpu::amx
