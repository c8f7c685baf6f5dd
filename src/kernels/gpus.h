// GPU inventory of this machine, for processes that do not use the GPUs themselves.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace switchyard {

struct GpuInfo {
  std::string name;
  int64_t total_bytes = 0, free_bytes = 0;
  bool hopper = false;  // supports the tensor core instructions of cuda/wgmma.cuh
};

// Queried once, in a child process: a process that initialises CUDA holds memory on every GPU and
// must not fork CUDA users. Empty if the build has no CUDA, or the machine has no driver or no GPU.
// Free bytes are as of the first call.
const std::vector<GpuInfo>& FindGpus();

}  // namespace switchyard
