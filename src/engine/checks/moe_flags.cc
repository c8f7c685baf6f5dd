// Flags of the MoE path, against the registered backends and the model's experts.
#include <utility>

#include "core/error.h"
#include "engine/checks/checks.h"
#include "engine/speculative/draft_model.h"
#include "model/rank_device.h"
#include "model/weights/expert_formats.h"
#include "moe/check_options.h"
#include "moe/gpu_options.h"

namespace switchyard {
namespace {

// The backends that the flags select from.
std::shared_ptr<const MoeBackends> BackendsOf(const EngineConfig& config) {
  return config.backends ? config.backends : std::make_shared<MoeBackends>(BuiltinMoeBackends());
}

// The number of tokens is no option: MakePlan derives it.
MoeShape ShapeOf(const ModelConfig& model) { return MoeShapeOf(model, /*max_tokens=*/1); }

void CheckBackendNames(const MoeOptions& moe, const ModelConfig& model, const MeshShape& mesh,
                       const MoeBackends& backends, bool gpus) {
  CheckMoeValues(moe, ShapeOf(model), mesh);
  if (gpus) {
    cuda::CheckGpuOptions(moe, ShapeOf(model), mesh, backends.gpus);
  } else {
    CheckMoeBackends(moe, backends);
  }
}

// flashinfer_mxfp4 requires MXFP4 experts. grouped_mlp, which replaces it here, supports any
// format.
void CheckRunnerFormat(const MoeOptions& moe, const ModelConfig& model) {
  if (moe.runner_backend != "flashinfer_mxfp4" || model.quantization.method == "mxfp4") return;
  throw Invalid(
      "--moe-runner-backend flashinfer_mxfp4 computes MXFP4 experts, and this checkpoint's are {}: "
      "add --quantization mxfp4, or leave the flag out",
      model.quantization.method.empty() ? std::string(Name(model.dtype))
                                        : model.quantization.method);
}

// With waterfill, the shared expert is one more expert of the exchange and of the grouped GEMM.
void CheckSharedExpert(const MoeOptions& moe, const MoeModelConfig& model) {
  const int64_t shared = model.shared_intermediate;
  if (moe.waterfill && shared > 0 && shared != model.intermediate)
    throw Invalid(
        "--enable-deepep-waterfill needs shared and routed experts of equal intermediate size "
        "(shared {}, routed {})",
        shared, model.intermediate);
  if (moe.waterfill && model.latent > 0)
    throw Invalid(
        "--enable-deepep-waterfill: the shared expert reads wider rows than the routed experts "
        "(moe_latent_size {}); leave the flag out",
        model.latent);
}

void CheckCounting(const EngineConfig& config, const MoeBackends& backends) {
  if (config.recorder.mode != "stat_approx") return;
  if (backends.fused.FindIf(config.moe.a2a_backend))
    throw Invalid(
        "--expert-distribution-recorder-mode stat_approx counts dispatched rows, which "
        "--moe-a2a-backend {} does not expose: want stat",
        config.moe.a2a_backend);
}

void CheckGpuRouter(const MoeModelConfig& model) {
  if (const int groups = model.router.num_groups; groups > cuda::kMaxRouterGroups)
    throw Invalid("num_expert_groups={} exceeds the CUDA limit of {}; use --device cpu", groups,
                  cuda::kMaxRouterGroups);
}

void CheckPairOf(const MoeOptions& moe, const ModelConfig& model, const MoeBackends& backends) {
  const std::set<WeightFormat> formats = ExpertFormatsOf(model).formats;
  CheckMoePair(moe, {formats.begin(), formats.end()}, backends);
}

}  // namespace

void CheckMoeFlags(const EngineConfig& config, const ModelConfig& model, bool gpus) {
  if (!model.has_moe()) return;
  const auto backends = BackendsOf(config);
  CheckRunnerFormat(config.moe, model);
  CheckBackendNames(config.moe, model, config.mesh, *backends, gpus);
  CheckSharedExpert(config.moe, *model.moe);
  if (!gpus) return CheckCounting(config, *backends);
  CheckGpuRouter(*model.moe);
}

void CheckDraft(const EngineConfig& config, const std::optional<ModelConfig>& draft,
                const RankPlaces& places) {
  if (draft && draft->has_states())
    throw Invalid(
        "--speculative-draft-model-path {}: a draft model with recurrent states is not supported",
        config.speculative.draft_model_path);
  if (draft && !draft->is_mtp && draft->attention.kind == AttentionConfig::Kind::kCompressed)
    throw Invalid(
        "--speculative-draft-model-path {}: a draft model with compressed attention ({}) is not "
        "supported",
        config.speculative.draft_model_path, draft->architecture);
  if (draft && places.gpus) CheckGpuCache(config, *draft);
  if (draft && draft->has_moe()) {
    const MoeOptions moe = MakeDraftOptions({.moe = config.moe}).moe;
    const auto backends = BackendsOf(config);
    CheckBackendNames(moe, *draft, config.mesh, *backends, places.gpus);
    if (places.gpus) CheckGpuRouter(*draft->moe);
    const auto* exchange = backends->dispatchers.FindIf(moe.a2a_backend);
    if (!places.gpus && exchange && !exchange->hosts &&
        (places.several_hosts || !places.shared_memory))
      throw Invalid(
          "--speculative-moe-a2a-backend {}: supported only on ranks that share memory; want "
          "deepep",
          moe.a2a_backend);
    return;
  }
  for (const auto& [flag, value] :
       {std::pair{"--speculative-moe-a2a-backend", config.moe.speculative_a2a_backend},
        std::pair{"--speculative-moe-runner-backend", config.moe.speculative_runner_backend}}) {
    if (!value.empty())
      throw Invalid("{} {}: {}", flag, value,
                    draft ? "the draft model has no experts; leave the flag out"
                          : "needs a draft model (--speculative-algorithm NEXTN or STANDALONE)");
  }
}

void CheckBackends(const EngineConfig& config, const EnginePlan& plan) {
  const auto backends = BackendsOf(config);
  if (plan.model.has_moe()) CheckPairOf(config.moe, plan.model, *backends);
  if (!plan.draft || !plan.draft->has_moe()) return;
  try {
    CheckPairOf(MakeDraftOptions({.moe = config.moe}).moe, *plan.draft, *backends);
  } catch (const Error& error) {
    throw Invalid(
        "draft model: {}; see --speculative-moe-a2a-backend, --speculative-moe-runner-backend and "
        "--speculative-draft-model-quantization",
        error.what());
  }
}

}  // namespace switchyard
