#include "kernels/cpu/amx/tile_instruction.h"

#include <cstring>

namespace switchyard::kernels::cpu::amx {
namespace {

enum Prefix : uint8_t { kNone = 0, k66 = 1, kF3 = 2, kF2 = 3 };  // encoding of the VEX pp field

// Fields of the three-byte VEX prefix that these instructions use.
struct Vex {
  Prefix prefix;
  bool index_high, base_high;  // bit 3 of the register numbers
  int third;                   // the register operand not encoded in ModRM
};

std::optional<Vex> ReadVex(const uint8_t* code) {
  constexpr uint8_t kThreeBytes = 0xc4, kMap0F38 = 2;
  if (code[0] != kThreeBytes || (code[1] & 0x1f) != kMap0F38) return {};
  const bool wide = (code[2] & 0x80) != 0, long_vector = (code[2] & 4) != 0;
  if (wide || long_vector) return {};
  return Vex{.prefix = static_cast<Prefix>(code[2] & 3),
             .index_high = (code[1] & 0x40) == 0,  // stored inverted, like `third`
             .base_high = (code[1] & 0x20) == 0,
             .third = ~code[2] >> 3 & 15};
}

// Decodes ModRM, SIB and displacement of a memory operand; advances `at` past them.
void ReadMemory(const Vex& vex, Registers registers, const uint8_t*& at, TileInstruction& out) {
  const uint8_t modrm = *at++;
  const int mod = modrm >> 6;
  int base = modrm & 7;
  const bool sib = base == 4;
  if (sib) {
    const uint8_t byte = *at++;
    const int index = (byte >> 3 & 7) + (vex.index_high ? 8 : 0);
    if (index != 4) out.stride = static_cast<int64_t>(registers[index] << (byte >> 6));
    base = byte & 7;
  }
  const bool no_base = base == 5 && mod == 0;
  if (!no_base) out.address = registers[base + (vex.base_high ? 8 : 0)];
  if (mod == 1) {
    out.address += static_cast<int64_t>(static_cast<int8_t>(*at++));
  } else if (mod == 2 || no_base) {
    int32_t displacement;
    std::memcpy(&displacement, at, sizeof(displacement));
    at += sizeof(displacement);
    out.address += static_cast<int64_t>(displacement);
  }
  // Without base and SIB the address is relative to the next instruction (RIP-relative).
  if (no_base && !sib) out.address += reinterpret_cast<uint64_t>(at);
}

std::optional<TileOperation> OperationOf(uint8_t opcode, Prefix prefix, bool memory, int low) {
  using enum TileOperation;
  switch (opcode) {
    case 0x49:
      if (memory) return prefix == kNone ? std::optional(kConfigure) : std::nullopt;
      if (prefix == kF2) return kZero;
      return prefix == Prefix::kNone && low == 0 ? std::optional(kRelease) : std::nullopt;
    case 0x4b:
      if (!memory || low != 4) return {};                // needs a SIB byte
      if (prefix == kF2 || prefix == k66) return kLoad;  // 66: tileloaddt1
      return prefix == kF3 ? std::optional(kStore) : std::nullopt;
    case 0x5c:
      return !memory && prefix == kF3 ? std::optional(kMultiplyBFloat16) : std::nullopt;
    case 0x5e:
      return !memory && prefix == kF2 ? std::optional(kMultiplyInt8) : std::nullopt;
    default:
      return {};
  }
}

}  // namespace

std::optional<TileInstruction> DecodeTileInstruction(const uint8_t* code, Registers registers) {
  const std::optional<Vex> vex = ReadVex(code);
  if (!vex) return {};
  const uint8_t* at = code + 3;
  const uint8_t opcode = *at++, modrm = *at;
  const bool memory = modrm >> 6 != 3;
  const auto operation = OperationOf(opcode, vex->prefix, memory, modrm & 7);
  if (!operation) return {};
  TileInstruction out = {.operation = *operation,
                         .length = 0,
                         .tile = modrm >> 3 & 7,
                         .a = modrm & 7,
                         .b = vex->third};
  if (memory) {
    ReadMemory(*vex, registers, at, out);
  } else {
    ++at;
  }
  out.length = static_cast<int>(at - code);
  return out;
}

}  // namespace switchyard::kernels::cpu::amx
