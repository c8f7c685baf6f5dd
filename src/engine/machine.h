// Memory and devices for which a plan is made: those of this host, or of a described machine.
#pragma once

#include <cstdint>

#include "engine/config.h"
#include "engine/host_memory.h"

namespace switchyard {

// Properties of a host that MakePlan uses.
struct Machine {
  bool cuda = false;          // ranks with attention compute on GPUs
  bool hopper = false;        // the GPUs keep 4-bit experts packed
  HostMemory memory;          // the host's memory, or one rank's share of its GPU's memory
  int cpus = 1;               // CPUs available to ranks of this host
  bool shared_memory = true;  // the ranks of a host map one arena (RankPlaces)
  HostMemory host;            // of the host, if ranks on CPUs hold experts beside GPUs
};

// The machine of this process for these flags. Errors as from MakePlan.
Machine ThisMachine(const EngineConfig& config, int ranks_of_host);

// MakePlan (engine/config.h) for ranks of this host that share memory or not (RankPlaces).
EnginePlan MakePlanHere(const EngineConfig& config, int ranks_of_host, bool shared_memory);

// MakePlan for ranks on `machine`, which need not be this one. `model`: the result of
// ReadModelConfig. Logs nothing.
EnginePlan MakePlanOn(const Machine& machine, const ModelConfig& model, const EngineConfig& config,
                      int ranks_of_host);

}  // namespace switchyard
