// Software emulation of AMX tiles, instruction by instruction after Intel's manual, including
// faults (as CHECKs). Hundreds of times slower than hardware.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

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

// Decoder for AMX instructions (Intel, Software Developer's Manual, volume 2: "VEX prefix", table
// 2-2 and related tables for ModRM and SIB, and the instruction pages).

enum class TileOperation : uint8_t {
  kConfigure,  // ldtilecfg
  kRelease,
  kZero,
  kLoad,
  kStore,
  kMultiplyInt8,      // tdpbssd
  kMultiplyBFloat16,  // tdpbf16ps
};

struct TileInstruction {
  TileOperation operation;
  int length;            // bytes
  int tile;              // tile operand; C of products
  int a, b;              // A and B of products
  uint64_t address = 0;  // address of a tile's first row, or of the configuration
  int64_t stride = 0;    // row stride in bytes
};

// General-purpose registers by encoding number (rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 to r15).
using Registers = std::span<const uint64_t, 16>;

// Decodes the instruction at `code`, of which 15 bytes must be readable (fewer if it ends earlier).
// nullopt if it is not an instruction of TileOperation.
std::optional<TileInstruction> DecodeTileInstruction(const uint8_t* code, Registers registers);

// Emulation of AMX instructions on CPUs without AMX. The CPU raises SIGILL, and the handler
// emulates the instruction and resumes after it. Tests therefore run the same
// code as AMX CPUs, including its inline assembly operands, on any machine with AVX-512.

// Installs the SIGILL handler for all threads of this process; idempotent. Other illegal
// instructions go to the previous handler. If the CPU has AMX and Linux has granted it to the
// process, tile instructions do not fault and run on the hardware.
void EmulateMissingTiles();

}  // namespace switchyard::kernels::cpu::amx
