// Int8 products for many rows: kInt8PanelCols weight rows at a time are brought into the order in
// which a tile multiplies them, and stay in L2 while all rows of x meet them.
//
// A panel is [k / 4][vectors][16 outputs][4 codes of K]: one vector of weights times four codes of
// a row of x, broadcast, adds to 16 outputs at once, so that sums need no adding across lanes and
// leave as vectors. Sums are exact in int32, so the order does not matter: the bits are those of
// simd/int8.h. Packing 1 KiB takes about 100 instructions, which some rows of x win back (see
// cpu/heuristics.h); weights themselves stay as they are stored, mapped and shared.
#pragma once

#include "kernels/cpu/leaves.h"

namespace switchyard::kernels::cpu::avx512 {

// As LinearInt8; t.scratch: LinearScratch(k).
void LinearInt8Panels(const LinearTask& t);

}  // namespace switchyard::kernels::cpu::avx512
