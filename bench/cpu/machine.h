// The CPU of this machine, for the header of a report.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace switchyard::bench {

std::string CpuName();  // from CPUID: "AMD EPYC 9654 96-Core Processor"
// The instruction sets that kernels can use, weakest first: "avx2 fma f16c avx512 avx512-bf16 …".
std::string CpuInstructions();

// A data or unified cache of cpu0.
struct Cache {
  int level = 0;
  int64_t bytes = 0;
  std::string shared_by;  // the cores that share it, in Linux's list format: "0-1"
};
// The caches of cpu0, ordered by level; empty if the system does not report them.
std::vector<Cache> Caches();

}  // namespace switchyard::bench
