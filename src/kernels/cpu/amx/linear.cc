// The products of AMX.
#include "kernels/cpu/amx/tile_panels.h"
#include "kernels/cpu/heuristics.h"
#include "kernels/cpu/leaves.h"

namespace switchyard::kernels::cpu::amx {

void LinearInt8(const LinearTask& t) {
  if (t.m < kInt8TilesFewestRows) return avx512::LinearInt8(t);
  MultiplyPanels<Int8Product>(t);
}

// For any number of rows: another kernel would add in another order.
void LinearBF16(const LinearTask& t) { MultiplyPanels<BF16Product>(t); }

}  // namespace switchyard::kernels::cpu::amx
