// Selects the GPUs of an engine, and reads how much memory they have.
#pragma once

#include "engine/config.h"
#include "kernels/gpus.h"

namespace switchyard {

// Whether the ranks of this host compute on GPUs (--device). Error kInvalid if --device requires
// GPUs and none is found, or if there are fewer GPUs than the ranks need. Error kResource if a GPU
// has less than 90 % of the free memory of another one; the error names both GPUs.
bool ChooseGpus(const EngineConfig& config, int ranks_of_host);
// The number of ranks of this host that compute on GPUs if ChooseGpus is true: all of them, or with
// experts on CPUs those with attention.
int GpuRanksOfHost(const EngineConfig& config, int ranks_of_host);
// Of the GPUs that ranks of this host use, the one with the least free memory.
GpuInfo SmallestGpu(const EngineConfig& config, int ranks_of_host);

// ChooseGpus for the given `gpus`, a result of FindGpus.
bool ChooseGpus(const EngineConfig& config, int ranks_of_host, const std::vector<GpuInfo>& gpus);

}  // namespace switchyard
