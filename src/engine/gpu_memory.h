// Which GPUs an engine takes, and how much memory they have.
#pragma once

#include "engine/config.h"
#include "kernels/gpus.h"

namespace switchyard {

// Whether the ranks of this host compute on GPUs (--device). Error kInvalid where they are to and
// cannot: no GPU, fewer than ranks, or one whose free memory is under 90 % of the others', which is
// named.
bool ChooseGpus(const EngineConfig& config, int ranks_of_host);
// The one with the least free memory of those that ranks of this host take.
GpuInfo SmallestGpu(const EngineConfig& config, int ranks_of_host);

// The choice itself, for `gpus` as FindGpus gives them.
bool ChooseGpus(const EngineConfig& config, int ranks_of_host, const std::vector<GpuInfo>& gpus);

}  // namespace switchyard
