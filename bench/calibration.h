// `switchyard bench calibrate`: the rates of this machine's kernels and links, as a cost table.
#pragma once

#include "bench/benches.h"
#include "plan/cost_table.h"

namespace switchyard::bench {

// Measures products, experts, attention, small ops and copies with all threads together, in two
// rounds of about a minute. Whole layers and steps are not measured.
plan::CostTable CalibrateCpu(const Options& options, Report& report);

}  // namespace switchyard::bench
