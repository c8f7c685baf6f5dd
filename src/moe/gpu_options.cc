#include "moe/gpu_options.h"

#include <vector>

#include "core/error.h"
#include "core/parallel.h"
#include "moe/backends.h"
#include "moe/runner_names.h"

namespace switchyard::cuda {
namespace {

// Checks names among the built-in backends: moe/cuda implements some of those, and no others.
void CheckBackends(const MoeOptions& options) {
  const MoeBackends builtin = BuiltinMoeBackends();
  const DispatcherBackend* backend = builtin.dispatchers.FindIf(options.a2a_backend);
  if (backend == nullptr || !backend->gpus) {
    std::vector<std::string_view> names;
    for (const auto& [name, other] : builtin.dispatchers.all())
      if (other.gpus) names.push_back(name);
    throw Invalid("--moe-a2a-backend {}: GPUs support {}", options.a2a_backend,
                  Joined(names, ", "));
  }
  // The choice of the runner has no effect: the GPU path selects its own layouts.
  ResolveRunner(options.runner_backend, builtin);
  if (options.combine_rows == "rank" && !backend->combines_by_rank)
    throw Invalid(
        "--moe-combine-rows rank: --moe-a2a-backend {} combines slot by slot; want deepep",
        options.a2a_backend);
}

void CheckSizes(const MoeOptions& options, const MoeShape& shape, const MeshShape& mesh) {
  if (shape.num_experts > kMaxRouterExperts || shape.top_k > kMaxTopK)
    throw Invalid(
        "num_experts={} top_k={} exceeds the CUDA limits (num_experts <= {}, top_k <= {})",
        shape.num_experts, shape.top_k, kMaxRouterExperts, kMaxTopK);
  if (CeilDiv(shape.num_experts + options.num_redundant_experts, mesh.ep) > kMaxLocalExperts)
    throw Invalid("{} experts and {} redundant ones on {} ranks: at most {} per GPU",
                  shape.num_experts, options.num_redundant_experts, mesh.ep, kMaxLocalExperts);
  if (options.a2a_backend != "none" && mesh.ep > kMaxExchangeRanks)
    throw Invalid("--ep-size {}: --moe-a2a-backend {} supports at most {} GPUs", mesh.ep,
                  options.a2a_backend, kMaxExchangeRanks);
}

}  // namespace

void CheckGpuOptions(const MoeOptions& options, const MoeShape& shape, const MeshShape& mesh) {
  CheckBackends(options);
  const std::string& mode = options.deepep_mode;
  if (mode != "auto" && mode != "normal" && mode != "low_latency")
    throw Invalid("--deepep-mode {}: want normal, low_latency or auto", mode);
  if (options.waterfill && !kWaterfillOnGpus)
    throw Invalid("--enable-deepep-waterfill is not supported on GPUs");
  CheckSizes(options, shape, mesh);
}

}  // namespace switchyard::cuda
