#include "moe/gpu_options.h"

#include <algorithm>
#include <cstdint>
#include <span>

#include "core/error.h"
#include "core/parallel.h"
#include "moe/runners/runner_names.h"

namespace switchyard::cuda {
namespace {

void CheckBackends(const MoeOptions& options, const GpuMoeBackends& backends) {
  const GpuExchangeBackend* exchange = backends.exchanges.FindIf(options.a2a_backend);
  if (exchange == nullptr)
    throw Invalid("--moe-a2a-backend {}: GPUs support {}", options.a2a_backend,
                  backends.exchanges.Names());
  ResolveGpuRunner(options.runner_backend, backends);
  if (options.combine_rows == "rank" && !exchange->combines_by_rank)
    throw Invalid(
        "--moe-combine-rows rank: --moe-a2a-backend {} combines slot by slot; want deepep or "
        "mooncake",
        options.a2a_backend);
}

void CheckSizes(const MoeOptions& options, const MoeShape& shape, const MeshShape& mesh) {
  if (shape.num_experts > kMaxRouterExperts || shape.top_k > kMaxTopK)
    throw Invalid(
        "num_experts={} top_k={} exceeds the CUDA limits (num_experts <= {}, top_k <= {}); use "
        "--device cpu",
        shape.num_experts, shape.top_k, kMaxRouterExperts, kMaxTopK);
  if (shape.num_logits() > kMaxRouterLogits)
    throw Invalid(
        "{} experts and {} experts without computation exceed the CUDA limit of {}; use --device "
        "cpu",
        shape.num_experts, shape.zero_experts, kMaxRouterLogits);
  const int shared = options.waterfill && shape.has_shared ? 1 : 0;
  if (shared > 0 && shape.top_k + 1 > kMaxExchangeTopK)
    throw Invalid(
        "--enable-deepep-waterfill: top_k={} plus the shared expert's slot exceeds the limit of "
        "{}; leave out the flag",
        shape.top_k, kMaxExchangeTopK);
  const int64_t even = CeilDiv(shape.num_experts + options.num_redundant_experts, mesh.ep);
  const int64_t local =
      mesh.expert_slots.empty()
          ? even
          : std::ranges::max(std::span(mesh.expert_slots).first(mesh.token_ranks()));
  if (local + shared > kMaxLocalExperts)
    throw Invalid("{} experts and {} redundant experts on {} ranks: at most {} per GPU{}",
                  shape.num_experts, options.num_redundant_experts, mesh.ep,
                  kMaxLocalExperts - shared,
                  shared > 0 ? ", because waterfill uses a slot for the shared expert" : "");
  if (options.a2a_backend != "none" && mesh.ep > kMaxExchangeRanks)
    throw Invalid("--ep-size {}: --moe-a2a-backend {} supports at most {} GPUs", mesh.ep,
                  options.a2a_backend, kMaxExchangeRanks);
}

}  // namespace

void CheckGpuOptions(const MoeOptions& options, const MoeShape& shape, const MeshShape& mesh,
                     const GpuMoeBackends& backends) {
  CheckBackends(options, backends);
  CheckSizes(options, shape, mesh);
  if (options.waterfill && shape.has_shared && shape.scales_input)
    throw Invalid(
        "--enable-deepep-waterfill: this model scales the input rows of routed experts but not of "
        "the shared expert, so the two cannot share a dispatched row; leave the flag out");
}

}  // namespace switchyard::cuda
