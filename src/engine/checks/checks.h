// The decision whether an engine can run: its flags, its checkpoint, and the kind of its ranks.
//
// Every refusal that follows from these three is made in this folder, before weights are read and
// before ranks start. Each error names the flag. Other code relies on the decision:
//
//   flags (server/args)      parse one flag: its syntax and its range
//   flag_values.cc           ranges of values that a program may set without flags; needs no model
//   checks.cc                flags that exclude or need each other, or another kind of model
//   moe_flags.cc             flags of the MoE path, against the registered backends
//   features.cc              what works on GPUs, on several hosts, and without shared memory
//   backends, dispatchers    assert (CHECK) what these files guarantee
//
// Sizes are not checked here: MakePlan compares the memory that follows from the options with the
// machine's, and names the flags to change.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/config.h"

namespace switchyard {

// Where the ranks of an engine compute.
struct RankPlaces {
  bool gpus = false;
  // With `gpus`: only ranks with attention compute on GPUs, and those with experts only on CPUs.
  bool host_experts = false;
  bool several_hosts = false;
  // Whether the ranks of a host map one arena. Ranks that a launcher (mpirun, srun) starts do not:
  // each is a process with an arena of its own.
  bool shared_memory = true;
};

// Checks all that needs neither a checkpoint nor a machine. Throws Error kInvalid, which names the
// flag; so do the other functions.
void CheckFlags(const EngineConfig& config);

// Checks the options of the model's ranks. `plan`: has the model and the kind of ranks only.
void CheckOptions(const EngineConfig& config, const EnginePlan& plan, const RankPlaces& places);

// Checks the options that apply to the draft model, if there is one.
void CheckDraft(const EngineConfig& config, const std::optional<ModelConfig>& draft,
                const RankPlaces& places);

// The flags of `config`, with their values, that are refused if experts are on CPUs beside a GPU.
std::vector<std::string> FlagsAgainstHostExperts(const EngineConfig& config);

// Parts of CheckFlags and CheckOptions: ranges of values, and the flags of the MoE path (no effect
// on models without experts).
void CheckFlagValues(const EngineConfig& config);
void CheckMoeFlags(const EngineConfig& config, const ModelConfig& model, bool gpus);
// Whether GPUs have kernels for the model's attention with this type of cache. Also of CheckDraft.
void CheckGpuCache(const EngineConfig& config, const ModelConfig& model);

// Checks that the selected MoE backends fit together and support the formats of the experts, those
// of the draft model too. Constructs them with minimal sizes, so it takes milliseconds;
// CheckOptions and CheckDraft must have accepted the options. For ranks on CPUs.
void CheckBackends(const EngineConfig& config, const EnginePlan& plan);

}  // namespace switchyard
