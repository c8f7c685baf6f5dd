// What an instruction of AMX says (Intel, Software Developer's Manual, volume 2: "VEX prefix",
// table 2-2 and the like for ModRM and SIB, and the instructions' own pages).
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
  int tile;              // C of products
  int a, b;              // of products
  uint64_t address = 0;  // of the first row, or of the configuration
  int64_t stride = 0;    // from row to row
};

// The general registers by their numbers in instructions (rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi,
// r8 to r15).
using Registers = std::span<const uint64_t, 16>;

// The instruction at `code`, of which 15 bytes may be read (fewer where it ends before); nothing
// where it is not one of these.
std::optional<TileInstruction> DecodeTileInstruction(const uint8_t* code, Registers registers);

}  // namespace switchyard::kernels::cpu::amx
