// `switchyard backends`: lists the available backends, and those chosen for a checkpoint.
#include <fmt/core.h>

#include "apps/commands.h"
#include "apps/expert_formats.h"
#include "engine/config.h"
#include "engine/features.h"
#include "moe/backend_table.h"

namespace switchyard {
namespace {

void PrintCheckpoint(const EngineConfig& config, const MoeBackends& backends) {
  const ModelConfig model = ReadModelConfig(config);
  fmt::print("\n{}: {}", config.model_path.string(), model.architecture);
  if (!model.has_moe()) {
    fmt::print(", without experts\n");
    return;
  }
  const RouterConfig& router = model.moe->router;
  fmt::print(", {} experts, top-{}{}\n", router.num_experts, router.top_k,
             model.moe->shared_intermediate > 0 ? ", a shared expert" : "");
  const ExpertFormats formats = ExpertFormatsOf(model);
  fmt::print("  {}",
             ExplainChoice(config.moe, {formats.formats.begin(), formats.formats.end()}, backends));
  for (const ActivationFormat activation : formats.activations)
    if (activation != ActivationFormat::kNone &&
        activation != ActivationFormat::kBFloat16)  // bfloat16 rows are not reported
      fmt::print("  experts round their inputs to {} (--quantize-activations {})\n",
                 Name(activation), config.quantization.activations);
}

// A command without --nnodes works on one host only. `train` has no --device, so it works on CPUs
// only.
void PrintFeatures(const MoeBackends& backends) {
  const char* const section = "Commands";
  std::vector<Feature> all = {
      {.section = section, .flag = "`serve`, with OpenAI's API and the native one"},
      {.section = section, .flag = "`generate`, `bench one-batch`", .reach = {.hosts = false}},
      {.section = section, .flag = "`train`", .reach = {.gpus = false, .hosts = false}}};
  const std::vector<Feature> engine = EngineFeatures(&backends);
  all.insert(all.end(), engine.begin(), engine.end());
  fmt::print("{}", FeatureTable(all));
}

}  // namespace

int RunBackends(const BackendsArgs& args) {
  const EngineConfig& config = args.server.engine;
  if (args.markdown) {
    PrintFeatures(*config.backends);
    return 0;
  }
  kernels::SelectIsa(config.cpu_isa);
  fmt::print("{}", BackendTable(config.moe, *config.backends));
  if (!config.model_path.empty()) PrintCheckpoint(config, *config.backends);
  return 0;
}

}  // namespace switchyard
