// AMX tile permission of the process. Tile state is 8 KiB per thread, which Linux saves only for
// processes that request it.
#pragma once

#include <string>

namespace switchyard::kernels::cpu::amx {

struct AmxSupport {
  bool cpu = false;    // CPUID: AVX-512 and tiles with int8 and bfloat16 products
  bool saved = false;  // XCR0: the operating system saves tile configuration and data
  int refusal = 0;     // errno of the permission request; 0: granted
};

// Reason why tiles cannot be used, as part of a sentence; empty if they can.
std::string AmxUnavailableReason(const AmxSupport& facts);

// Requests tile permission from Linux for all threads of this process; returns 0 or errno. Forked
// processes inherit the permission; executed programs must request it again.
int RequestTilePermission();

}  // namespace switchyard::kernels::cpu::amx
