#include "moe/runners/runner_names.h"

#include <algorithm>
#include <array>

#include "core/error.h"

namespace switchyard {
namespace {

// SGLang's runner names. In SGLang, names without `needs` select GPU kernels for certain number
// formats. All of these formats are supported by grouped_mlp. cutedsl uses the masked layout with
// counts, as masked_mlp does.
constexpr std::array kRunners = {
    SglangBackendName{"triton", "grouped_mlp", ""},
    SglangBackendName{"triton_kernel", "grouped_mlp", ""},
    SglangBackendName{"deep_gemm", "grouped_mlp", ""},
    SglangBackendName{"cutlass", "grouped_mlp", ""},
    SglangBackendName{"flashinfer_cutlass", "grouped_mlp", ""},
    SglangBackendName{"flashinfer_mxfp4", "grouped_mlp", ""},
    SglangBackendName{"flashinfer_trtllm", "grouped_mlp", ""},
    SglangBackendName{"flashinfer_trtllm_routed", "grouped_mlp", ""},
    SglangBackendName{"experimental_sgl_trtllm", "grouped_mlp", ""},
    SglangBackendName{"flashinfer_cutedsl", "masked_mlp", ""},
    SglangBackendName{"marlin", "grouped_mlp", ""},
    SglangBackendName{"experimental_sgl_marlin", "grouped_mlp", ""},
    SglangBackendName{"humming", "grouped_mlp", ""},
    SglangBackendName{"aiter", "grouped_mlp", "AMD GPUs"},
    SglangBackendName{"intel_xpu", "grouped_mlp", "Intel GPUs"},
    SglangBackendName{"hpc_ops", "grouped_mlp", "Hopper GPUs"},
    SglangBackendName{"megamoe", "grouped_mlp", "Blackwell GPUs"},
};
constexpr std::array kA2a = {
    SglangBackendName{"mori", "deepep", "AMD GPUs"},
    SglangBackendName{"nixl", "mooncake", "the NIXL library and GPUs"},
    SglangBackendName{"ascend_fuseep", "fused", "Ascend NPUs"},
    SglangBackendName{"megamoe", "fused", "Blackwell GPUs"},
};

const SglangBackendName* FindSglangName(std::span<const SglangBackendName> names,
                                        std::string_view name) {
  const auto it = std::ranges::find(names, name, &SglangBackendName::name);
  return it == names.end() ? nullptr : &*it;
}

Error Refusal(std::string_view flag, const SglangBackendName& foreign) {
  return Invalid(
      "{} {} needs {}, which this build does not support; the nearest supported one is {}", flag,
      foreign.name, foreign.needs, foreign.nearest);
}

// `Backends`: MoeBackends (CPUs) or GpuMoeBackends.
template <typename Backends>
std::string Resolve(const std::string& name, const Backends& backends) {
  if (name == "auto") return backends.auto_runner;
  if (backends.runners.FindIf(name)) return name;
  const SglangBackendName* foreign = FindSglangName(kRunners, name);
  if (foreign && !foreign->needs.empty()) throw Refusal("--moe-runner-backend", *foreign);
  if (foreign) return std::string(foreign->nearest);
  throw Invalid("--moe-runner-backend {}: no such backend here, want one of: auto, {}", name,
                backends.runners.Names());
}

}  // namespace

std::span<const SglangBackendName> ForeignRunnerNames() { return kRunners; }
std::span<const SglangBackendName> ForeignA2aNames() { return kA2a; }

std::string ResolveRunner(const std::string& name, const MoeBackends& backends) {
  return Resolve(name, backends);
}
std::string ResolveGpuRunner(const std::string& name, const GpuMoeBackends& backends) {
  return Resolve(name, backends);
}

void CheckA2aName(const std::string& name, const MoeBackends& backends) {
  if (backends.dispatchers.FindIf(name) || backends.fused.FindIf(name)) return;
  if (const SglangBackendName* foreign = FindSglangName(kA2a, name))
    throw Refusal("--moe-a2a-backend", *foreign);
  std::string known = backends.dispatchers.Names();
  if (!backends.fused.all().empty()) known += ", " + backends.fused.Names();
  throw Invalid("--moe-a2a-backend {}: no such backend here, want one of: {}", name, known);
}

}  // namespace switchyard
