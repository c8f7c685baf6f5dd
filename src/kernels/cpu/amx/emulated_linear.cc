// The products of AMX on emulated tiles, for any number of rows: compiled for AVX-512.
#include "kernels/cpu/amx/emulated_tiles.h"
#include "kernels/cpu/amx/tile_panels.h"
#include "kernels/cpu/leaves.h"

namespace switchyard::kernels::cpu::amx {

void EmulatedLinearInt8(const LinearTask& t) {
  MultiplyPanels<EmulatedTiles, Int8Product<EmulatedTiles>>(t);
}

void EmulatedLinearBF16(const LinearTask& t) {
  MultiplyPanels<EmulatedTiles, BF16Product<EmulatedTiles>>(t);
}

}  // namespace switchyard::kernels::cpu::amx
