#include "moe/runner_names.h"

#include <algorithm>
#include <array>

#include "core/error.h"

namespace switchyard {
namespace {

// Names without `needs` differ in the GPU kernels they call for each number format; grouped_mlp
// supports all those formats. cutedsl uses the masked layout with counts, as masked_mlp does.
constexpr std::array kRunners = {
    ForeignName{"triton", "grouped_mlp", ""},
    ForeignName{"triton_kernel", "grouped_mlp", ""},
    ForeignName{"deep_gemm", "grouped_mlp", ""},
    ForeignName{"cutlass", "grouped_mlp", ""},
    ForeignName{"flashinfer_cutlass", "grouped_mlp", ""},
    ForeignName{"flashinfer_mxfp4", "grouped_mlp", ""},
    ForeignName{"flashinfer_trtllm", "grouped_mlp", ""},
    ForeignName{"flashinfer_trtllm_routed", "grouped_mlp", ""},
    ForeignName{"experimental_sgl_trtllm", "grouped_mlp", ""},
    ForeignName{"flashinfer_cutedsl", "masked_mlp", ""},
    ForeignName{"marlin", "grouped_mlp", ""},
    ForeignName{"experimental_sgl_marlin", "grouped_mlp", ""},
    ForeignName{"humming", "grouped_mlp", ""},
    ForeignName{"aiter", "grouped_mlp", "AMD GPUs"},
    ForeignName{"intel_xpu", "grouped_mlp", "Intel GPUs"},
    ForeignName{"hpc_ops", "grouped_mlp", "Hopper GPUs"},
    ForeignName{"megamoe", "grouped_mlp", "Blackwell GPUs"},
};
constexpr std::array kA2a = {
    ForeignName{"mori", "deepep", "AMD GPUs"},
    ForeignName{"nixl", "mooncake", "the NIXL library and GPUs"},
    ForeignName{"ascend_fuseep", "fused", "Ascend NPUs"},
    ForeignName{"megamoe", "fused", "Blackwell GPUs"},
};

const ForeignName* FindForeign(std::span<const ForeignName> names, std::string_view name) {
  const auto it = std::ranges::find(names, name, &ForeignName::name);
  return it == names.end() ? nullptr : &*it;
}

Error Refusal(std::string_view flag, const ForeignName& foreign) {
  return Invalid("{} {} needs {}, which this build does not support; the nearest here is {}", flag,
                 foreign.name, foreign.needs, foreign.nearest);
}

}  // namespace

std::span<const ForeignName> ForeignRunnerNames() { return kRunners; }
std::span<const ForeignName> ForeignA2aNames() { return kA2a; }

std::string ResolveRunner(const std::string& name, const MoeBackends& backends) {
  if (name == "auto") return backends.auto_runner;
  if (backends.runners.FindIf(name)) return name;
  const ForeignName* foreign = FindForeign(kRunners, name);
  if (foreign && !foreign->needs.empty()) throw Refusal("--moe-runner-backend", *foreign);
  if (foreign) return std::string(foreign->nearest);
  throw Invalid("--moe-runner-backend {}: no such backend here, want one of: auto, {}", name,
                backends.runners.Names());
}

void CheckA2aName(const std::string& name, const MoeBackends& backends) {
  if (backends.dispatchers.FindIf(name) || backends.fused.FindIf(name)) return;
  if (const ForeignName* foreign = FindForeign(kA2a, name))
    throw Refusal("--moe-a2a-backend", *foreign);
  std::string known = backends.dispatchers.Names();
  if (!backends.fused.all().empty()) known += ", " + backends.fused.Names();
  throw Invalid("--moe-a2a-backend {}: no such backend here, want one of: {}", name, known);
}

}  // namespace switchyard
