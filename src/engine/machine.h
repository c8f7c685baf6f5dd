// The memory and the devices that a plan is made for: those of this host, or described ones.
#pragma once

#include <cstdint>

#include "engine/config.h"
#include "engine/host_memory.h"

namespace switchyard {

// What MakePlan needs to know of a host.
struct Machine {
  bool cuda = false;    // ranks compute on GPUs
  bool hopper = false;  // the GPUs keep 4-bit experts packed
  HostMemory memory;    // of the host, or of one rank's share of its GPU
  int cpus = 1;         // that ranks of this host may use
};

// The machine of this process for these flags. Errors as from MakePlan.
Machine ThisMachine(const EngineConfig& config, int ranks_of_host);

// MakePlan for ranks on `machine`, which need not be this one. `model`: the result of
// ReadModelConfig. Logs nothing.
EnginePlan MakePlanOn(const Machine& machine, const ModelConfig& model, const EngineConfig& config,
                      int ranks_of_host);

}  // namespace switchyard
