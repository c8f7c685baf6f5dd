// SGLang's names of MoE backends, as this program understands them.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "moe/backends.h"

namespace switchyard {

// A value of SGLang's `--moe-runner-backend` or `--moe-a2a-backend` that names no backend here.
struct ForeignName {
  std::string_view name;
  std::string_view nearest;  // the backend here that does its work, or comes nearest
  std::string_view needs;    // what only it runs on; empty: `nearest` does its work
};
std::span<const ForeignName> ForeignRunnerNames();
std::span<const ForeignName> ForeignA2aNames();

// The registered runner that `--moe-runner-backend name` means: for auto the one of the registry's
// choice, the one of that name, or the one that does the work of SGLang's. Error kInvalid where
// there is none: what the name needs and what comes nearest, or all that are registered.
std::string ResolveRunner(const std::string& name, const MoeBackends& backends);

// Error kInvalid where `--moe-a2a-backend name` is neither a dispatcher nor a fused operator: as
// above.
void CheckA2aName(const std::string& name, const MoeBackends& backends);

}  // namespace switchyard
