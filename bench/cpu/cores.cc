#include "bench/cpu/cores.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

namespace switchyard::bench {

int CoreCount() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

void BindToCore(int rank) {
  cpu_set_t core;
  CPU_ZERO(&core);
  CPU_SET(static_cast<size_t>(rank % sysconf(_SC_NPROCESSORS_ONLN)), &core);
  sched_setaffinity(0, sizeof core, &core);
}

}  // namespace switchyard::bench
