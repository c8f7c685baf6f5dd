// The two halves of `switchyard bench exchange --device cpu`.
#pragma once

#include <vector>

#include "bench/benches.h"

namespace switchyard::bench {

// Flags, all-reduce and all-gather, for each of these numbers of ranks.
void CpuCollectives(const std::vector<int>& ranks, Report& report);
// Dispatch and combine of MoE rows by every exchange of this program.
void CpuDispatchCombine(const Options& options, Report& report);

}  // namespace switchyard::bench
