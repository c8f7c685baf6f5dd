// Int8 products for many rows: kMostPanelCols weight rows at a time are brought into panel order
// (panels.h) and stay in L2 while all rows of x meet them: one vector of weights times four codes
// of a row of x, broadcast. Sums are exact in int32, so the order does not matter: the bits are
// those of simd/int8.h. Some rows of x win the packing back (cpu/heuristics.h).
#pragma once

#include "kernels/cpu/leaves.h"

namespace switchyard::kernels::cpu::avx512 {

// As LinearInt8; t.scratch: LinearScratch(k).
void LinearInt8Panels(const LinearTask& t);

}  // namespace switchyard::kernels::cpu::avx512
