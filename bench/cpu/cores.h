// The cores of this machine.
#pragma once

namespace switchyard::bench {

// That the calling thread may use.
int CoreCount();
// Keeps the calling thread on one core, ranks on different ones as long as there are enough: the
// scheduler's moves are not measured. Threads that it starts from then on stay there too.
void BindToCore(int rank);

}  // namespace switchyard::bench
