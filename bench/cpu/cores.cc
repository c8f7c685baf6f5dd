#include "bench/cpu/cores.h"

#include "core/cpus.h"

namespace switchyard::bench {

int CoreCount() { return AllowedCpuCount(); }

void BindToCore(int rank) {
  const CpuList cpus = AllowedCpus();
  if (!cpus.empty()) SetThreadAffinity({&cpus[rank % cpus.size()], 1});
}

}  // namespace switchyard::bench
