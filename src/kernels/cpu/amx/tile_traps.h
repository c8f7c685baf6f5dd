// AMX's instructions where the CPU has none: it refuses them, Linux sends SIGILL, and the handler
// does what they say (emulated_tiles.h) and goes on behind them. So the very code that a CPU with
// tiles runs is tested on any, operands of its assembly included.
#pragma once

namespace switchyard::kernels::cpu::amx {

// For all threads of this process from now on; once is enough. Takes SIGILL's handler: other
// refused instructions go to the one before. A CPU that has tiles, granted to the process, refuses
// nothing, and runs them itself.
void EmulateMissingTiles();

}  // namespace switchyard::kernels::cpu::amx
