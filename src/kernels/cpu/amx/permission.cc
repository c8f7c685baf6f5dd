#include "kernels/cpu/amx/permission.h"

#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace switchyard::kernels::cpu::amx {

std::string AmxUnavailableReason(const AmxSupport& facts) {
  if (!facts.cpu) return "this CPU has no AMX (amx-tile, amx-int8, amx-bf16 with AVX-512)";
  if (!facts.saved) return "the operating system does not save AMX tile state (XCR0)";
  if (facts.refusal != 0) {
    return fmt::format("Linux denies AMX tile permission (arch_prctl ARCH_REQ_XCOMP_PERM: {})",
                       std::generic_category().message(facts.refusal));
  }
  return {};
}

int RequestTilePermission() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // asm/prctl.h; bit of XCR0
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0 ? 0 : errno;
}

}  // namespace switchyard::kernels::cpu::amx
