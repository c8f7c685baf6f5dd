// Emulation of AMX instructions on CPUs without AMX. The CPU raises SIGILL, and the handler
// emulates the instruction (emulated_tiles.h) and resumes after it. Tests therefore run the same
// code as AMX CPUs, including its inline assembly operands, on any machine with AVX-512.
#pragma once

namespace switchyard::kernels::cpu::amx {

// Installs the SIGILL handler for all threads of this process; idempotent. Other illegal
// instructions go to the previous handler. If the CPU has AMX and Linux has granted it to the
// process, tile instructions do not fault and run on the hardware.
void EmulateMissingTiles();

}  // namespace switchyard::kernels::cpu::amx
