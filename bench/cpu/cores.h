// The cores of this machine.
#pragma once

namespace switchyard::bench {

// Number of cores that the calling thread may use.
int CoreCount();
// Pins the calling thread to one core, so that the measurement has no thread migrations. Ranks get
// different cores if there are enough cores. Threads that the calling thread starts later use the
// same core.
void BindToCore(int rank);

}  // namespace switchyard::bench
