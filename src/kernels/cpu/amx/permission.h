// Whether a process may use tiles. Their state is 8 KiB of every thread, which Linux keeps only for
// processes that ask for it.
#pragma once

#include <string>

namespace switchyard::kernels::cpu::amx {

struct Facts {
  bool cpu = false;    // CPUID has tiles with int8 and bfloat16 products, beside AVX-512
  bool saved = false;  // XCR0: the operating system saves configuration and data of tiles
  int refusal = 0;     // errno of Linux's answer; 0: granted
};

// What is missing, as the part of a sentence; empty: nothing.
std::string WhyNot(const Facts& facts);

// Asks Linux for the tiles, for all threads of this process; 0 or errno. Processes forked from it
// inherit the answer, programs that it executes ask anew.
int RequestTiles();

}  // namespace switchyard::kernels::cpu::amx
