// Int8 products for many rows: packs kMaxPanelCols weight rows at a time into panels (panels.h),
// which stay in L2 for all rows of x. One vector of weights multiplies four codes of a row of x,
// broadcast. Sums are exact in int32, so the order does not matter: results equal those of
// simd/int8.h. Packing is faster from a minimum number of rows on (cpu/heuristics.h).
#pragma once

#include "kernels/cpu/kernel_table.h"

namespace switchyard::kernels::cpu::avx512 {

// Computes the same as LinearInt8. t.scratch has LinearScratch(k) floats.
void LinearInt8Panels(const LinearTask& t);

}  // namespace switchyard::kernels::cpu::avx512
