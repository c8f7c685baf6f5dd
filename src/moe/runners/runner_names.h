// The mapping of SGLang's MoE backend names to the names of this program.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "moe/backends.h"

namespace switchyard {

// A value of SGLang's `--moe-runner-backend` or `--moe-a2a-backend` for which this program has no
// backend of the same name.
struct SglangBackendName {
  std::string_view name;
  std::string_view nearest;  // the equivalent backend here, or the closest one
  // Hardware or library that the name requires. If empty, `nearest` is equivalent.
  std::string_view needs;
};
std::span<const SglangBackendName> ForeignRunnerNames();
std::span<const SglangBackendName> ForeignA2aNames();

// Resolves `--moe-runner-backend name` to a registered runner: auto to the registry's default, a
// registered name to itself, SGLang's name to its equivalent. Throws Error kInvalid for other
// names. The message has the requirement of the name and the closest backend or, if the name is
// unknown, all registered names.
std::string ResolveRunner(const std::string& name, const MoeBackends& backends);
// As ResolveRunner, for ranks on GPUs.
std::string ResolveGpuRunner(const std::string& name, const GpuMoeBackends& backends);

// Error kInvalid if `--moe-a2a-backend name` is neither a dispatcher nor a fused operator. The
// message is the same as in ResolveRunner.
void CheckA2aName(const std::string& name, const MoeBackends& backends);

}  // namespace switchyard
