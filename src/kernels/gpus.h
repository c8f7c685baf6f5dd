// The GPUs of this machine, as a program that is not going to use them sees them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace switchyard {

struct GpuInfo {
  std::string name;
  int64_t total_bytes = 0, free_bytes = 0;
  bool hopper = false;  // its matrix units are those that cuda/wgmma.cuh asks for
};

// Asked once, by a child process: a process that has touched CUDA keeps memory of every GPU and may
// not fork users of them. Empty where this build has no CUDA, or the machine no driver or GPU. The
// free bytes are those of the first call.
const std::vector<GpuInfo>& FindGpus();

}  // namespace switchyard
