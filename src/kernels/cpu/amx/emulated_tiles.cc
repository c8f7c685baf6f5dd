#include "kernels/cpu/amx/emulated_tiles.h"

#include <ucontext.h>
#include <xmmintrin.h>

#include <array>
#include <bit>
#include <cmath>
#include <csignal>
#include <cstring>
#include <mutex>

#include "core/check.h"

namespace switchyard::kernels::cpu::amx {
namespace {

constexpr int kWords = kTileBytes / 4;

// TDPBF16PS flushes subnormal inputs and results to zero, rounds to nearest, and ignores MXCSR.
// This object sets MXCSR accordingly for its lifetime.
class TileArithmetic {
 public:
  TileArithmetic() : saved_(_mm_getcsr()) {
    constexpr uint32_t kFlushBothMaskAll = 0x9fc0;
    _mm_setcsr(kFlushBothMaskAll);
  }
  ~TileArithmetic() { _mm_setcsr(saved_); }
  TileArithmetic(const TileArithmetic&) = delete;
  TileArithmetic& operator=(const TileArithmetic&) = delete;

 private:
  const uint32_t saved_;
};

float Low(uint32_t pair) { return std::bit_cast<float>(pair << 16); }
float High(uint32_t pair) { return std::bit_cast<float>(pair & 0xffff0000u); }

// Adds the products of one row of C. Not inlined: its arithmetic must not move out of a
// TileArithmetic's lifetime.
[[gnu::noinline]] void AddPairs(const uint32_t* a, int pairs, const uint32_t (*b)[kWords],
                                int columns, uint32_t* c) {
  float first[kWords] = {}, second[kWords] = {};
  for (int k = 0; k < pairs; ++k) {
    for (int n = 0; n < columns; ++n) {
      first[n] = std::fma(Low(a[k]), Low(b[k][n]), first[n]);
      second[n] = std::fma(High(a[k]), High(b[k][n]), second[n]);
    }
  }
  for (int n = 0; n < columns; ++n) {
    const float both = first[n] + second[n];
    c[n] = std::bit_cast<uint32_t>(std::bit_cast<float>(c[n]) + both);
  }
}

uint32_t FourProducts(uint32_t a, uint32_t b) {
  uint32_t sum = 0;
  for (int shift = 0; shift < 32; shift += 8) {
    const int product = static_cast<int8_t>(a >> shift) * static_cast<int8_t>(b >> shift);
    sum += static_cast<uint32_t>(product);
  }
  return sum;
}

}  // namespace

void EmulatedTiles::Configure(const TileConfig& config) {
  CHECK_EQ(config.palette, 1);
  CHECK_EQ(config.start_row, 0);
  for (const uint8_t byte : config.reserved) CHECK_EQ(byte, 0);
  for (int i = 0; i < 16; ++i) {
    const int rows = config.rows[i], bytes = config.bytes[i];
    CHECK_LE(rows, i < kTiles ? kTileRows : 0);
    CHECK_LE(bytes, i < kTiles ? kTileBytes : 0);
    CHECK_EQ(rows == 0, bytes == 0);
    if (i < kTiles) tiles_[i] = {.rows = rows, .bytes = bytes};
  }
  configured_ = true;
}

EmulatedTiles::Tile& EmulatedTiles::At(int tile) {
  CHECK(configured_);
  CHECK_GT(tiles_[tile].rows, 0);
  return tiles_[tile];
}

void EmulatedTiles::Zero(int tile) { std::memset(At(tile).words, 0, sizeof(Tile::words)); }

void EmulatedTiles::Load(int tile, const void* from, int64_t stride) {
  Zero(tile);
  Tile& t = At(tile);
  for (int r = 0; r < t.rows; ++r) {
    std::memcpy(t.words[r], static_cast<const char*>(from) + r * stride, t.bytes);
  }
}

void EmulatedTiles::Store(int tile, void* to, int64_t stride) {
  const Tile& t = At(tile);
  for (int r = 0; r < t.rows; ++r) {
    std::memcpy(static_cast<char*>(to) + r * stride, t.words[r], t.bytes);
  }
}

// CHECKs the shapes of the operands. Hardware raises #UD if they do not match.
void EmulatedTiles::CheckProduct(int c, int a, int b) {
  CHECK(c != a && c != b && a != b);
  for (const int tile : {c, a, b}) CHECK_EQ(At(tile).bytes % 4, 0);
  CHECK_EQ(At(c).rows, At(a).rows);
  CHECK_EQ(At(a).bytes / 4, At(b).rows);
  CHECK_EQ(At(c).bytes, At(b).bytes);
}

void EmulatedTiles::MultiplyInt8(int c, int a, int b) {
  CheckProduct(c, a, b);
  Tile& sums = tiles_[c];
  const Tile &left = tiles_[a], &right = tiles_[b];
  for (int m = 0; m < sums.rows; ++m) {
    for (int k = 0; k < left.bytes / 4; ++k) {
      for (int n = 0; n < sums.bytes / 4; ++n) {
        sums.words[m][n] += FourProducts(left.words[m][k], right.words[k][n]);
      }
    }
  }
}

void EmulatedTiles::MultiplyBFloat16(int c, int a, int b) {
  CheckProduct(c, a, b);
  Tile& sums = tiles_[c];
  const TileArithmetic arithmetic;
  for (int m = 0; m < sums.rows; ++m) {
    AddPairs(tiles_[a].words[m], tiles_[a].bytes / 4, tiles_[b].words, sums.bytes / 4,
             sums.words[m]);
  }
}

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

namespace {

thread_local constinit EmulatedTiles tiles;
struct sigaction before;  // previous handler

std::array<uint64_t, 16> RegistersOf(const ucontext_t& context) {
  constexpr int kByNumber[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                 REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                 REG_R12, REG_R13, REG_R14, REG_R15};
  std::array<uint64_t, 16> registers;
  for (int i = 0; i < 16; ++i) registers[i] = context.uc_mcontext.gregs[kByNumber[i]];
  return registers;
}

void Run(const TileInstruction& i) {
  const auto memory = std::bit_cast<void*>(i.address);
  switch (i.operation) {
    case TileOperation::kConfigure:
      return tiles.Configure(*static_cast<const TileConfig*>(memory));
    case TileOperation::kRelease:
      return tiles.Release();
    case TileOperation::kZero:
      return tiles.Zero(i.tile);
    case TileOperation::kLoad:
      return tiles.Load(i.tile, memory, i.stride);
    case TileOperation::kStore:
      return tiles.Store(i.tile, memory, i.stride);
    case TileOperation::kMultiplyInt8:
      return tiles.MultiplyInt8(i.tile, i.a, i.b);
    case TileOperation::kMultiplyBFloat16:
      return tiles.MultiplyBFloat16(i.tile, i.a, i.b);
  }
}

// Runs synchronously on the faulting thread, between two of its instructions. The handler may
// therefore do anything that the thread may do at that point.
void OnIllegalInstruction(int, siginfo_t* info, void* context) {
  if (info->si_code <= 0) {  // sent by a process, not raised by the CPU
    sigaction(SIGILL, &before, nullptr);
    raise(SIGILL);
    return;
  }
  auto& thread = *static_cast<ucontext_t*>(context);
  auto& next = thread.uc_mcontext.gregs[REG_RIP];
  const std::array<uint64_t, 16> registers = RegistersOf(thread);
  const auto instruction = DecodeTileInstruction(std::bit_cast<const uint8_t*>(next), registers);
  if (!instruction) {
    sigaction(SIGILL, &before, nullptr);  // re-executes the instruction under the previous handler
    return;
  }
  Run(*instruction);
  next += instruction->length;
}

}  // namespace

void EmulateMissingTiles() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action = {};
    action.sa_sigaction = OnIllegalInstruction;
    action.sa_flags = SA_SIGINFO;
    CHECK_EQ(sigaction(SIGILL, &action, &before), 0);
  });
}

}  // namespace switchyard::kernels::cpu::amx
