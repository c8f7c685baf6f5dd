// The state of another process, read from the kernel.
#pragma once

#include <sys/types.h>

namespace switchyard {

// Whether the process is stopped by a signal. A process that a debugger has stopped is not.
bool IsStopped(pid_t pid);

// CPU time of all threads of the process, in seconds; 0 if it has ended.
double CpuSeconds(pid_t pid);

}  // namespace switchyard
