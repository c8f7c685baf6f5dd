// What this machine's CPU is, for the head of a report.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace switchyard::bench {

std::string CpuName();  // as CPUID has it: "AMD EPYC 9654 96-Core Processor"
// The instructions that kernels could use, weakest first: "avx2 fma f16c avx512 avx512-bf16 …".
std::string CpuInstructions();

// One that holds data, as cpu0 has it.
struct Cache {
  int level = 0;
  int64_t bytes = 0;
  std::string shared_by;  // the cores, as Linux writes lists of them: "0-1"
};
// By level; empty where the system does not say.
std::vector<Cache> Caches();

}  // namespace switchyard::bench
