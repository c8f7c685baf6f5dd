// Decoder for AMX instructions (Intel, Software Developer's Manual, volume 2: "VEX prefix", table
// 2-2 and related tables for ModRM and SIB, and the instruction pages).
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace switchyard::kernels::cpu::amx {

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

}  // namespace switchyard::kernels::cpu::amx
