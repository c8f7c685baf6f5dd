#include "kernels/cpu/amx/tile_traps.h"

#include <ucontext.h>

#include <array>
#include <bit>
#include <csignal>
#include <mutex>

#include "core/check.h"
#include "kernels/cpu/amx/emulated_tiles.h"
#include "kernels/cpu/amx/tile_instruction.h"

namespace switchyard::kernels::cpu::amx {
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
