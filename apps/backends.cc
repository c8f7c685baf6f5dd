// `switchyard backends`: lists the available backends, and the backends that are selected for a
// checkpoint.
#include "moe/backends.h"

#include <fmt/core.h>

#include <algorithm>

#include "apps/commands.h"
#include "engine/checks/features.h"
#include "engine/config.h"
#include "model/families/family.h"
#include "model/weights/expert_formats.h"

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
        activation != ActivationFormat::kBFloat16)  // bfloat16 needs no line
      fmt::print("  experts round their inputs to {} (--quantize-activations {})\n",
                 Name(activation), config.quantization.activations);
}

// A command without the flag --nnodes runs on one host only. `train` has no flag --device, so it
// runs on CPUs only.
void PrintFeatures(const MoeBackends& backends) {
  const char* const section = "Commands";
  std::vector<Feature> all = {
      {.section = section, .flag = "`serve`, with OpenAI's API and the native one"},
      {.section = section, .flag = "`generate`, `bench one-batch`", .reach = {.hosts = false}},
      {.section = section, .flag = "`train`", .reach = {.gpus = false}}};
  const std::vector<Feature> engine = EngineFeatures(&backends);
  all.insert(all.end(), engine.begin(), engine.end());
  fmt::print("{}", FeatureTable(all));
}

// Formats of a family's checkpoints. Any can be quantized while loading (--quantization).
std::string_view FormatsOf(const TensorNames& names) {
  if (names.interleaved_experts) return "plain, MXFP4 blocks";
  return names.stacked_experts ? "plain" : "all";
}

std::string Code(std::string_view name) {
  return name.empty() ? std::string() : fmt::format("`{}`", name);
}

void PrintModels() {
  fmt::print(
      "| decoder | `model_type` | CPUs | GPUs | formats | MTP | tool calls | reasoning |\n"
      "|---|---|---|---|---|---|---|---|\n");
  std::vector<const Family*> all;
  for (const Family& family : Families()) all.push_back(&family);
  std::ranges::stable_sort(all, {}, &Family::model_type);
  for (const Family* f : all)
    fmt::print("| `{}` | `{}` | yes | yes | {} | {} | {} | {} |\n", f->architecture, f->model_type,
               FormatsOf(f->names({})), f->mtp ? "yes" : "", Code(f->tool_parser),
               Code(f->reasoning_parser));
  for (const Wrapper& w : Wrappers())
    fmt::print("| `{}` | `{}` | as its `text_config` | as its `text_config` | | | | |\n",
               w.architecture, w.model_type);
}

}  // namespace

int RunBackends(const BackendsArgs& args) {
  const EngineConfig& config = args.server.engine;
  if (args.markdown) {
    PrintFeatures(*config.backends);
    return 0;
  }
  if (args.models) {
    PrintModels();
    return 0;
  }
  kernels::SelectIsa(config.cpu_isa);
  fmt::print("{}", BackendTable(config.moe, *config.backends));
  if (!config.model_path.empty()) PrintCheckpoint(config, *config.backends);
  return 0;
}

}  // namespace switchyard
