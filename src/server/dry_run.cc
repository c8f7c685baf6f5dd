#include <fmt/format.h>

#include <cstdint>
#include <utility>

#include "comm/mesh.h"
#include "core/cpus.h"
#include "core/dtype.h"
#include "core/format.h"
#include "engine/host_memory.h"
#include "engine/kv_cache/state_slots.h"
#include "engine/machine.h"
#include "kernels/gpus.h"
#include "model/decoder.h"
#include "model/state_storage.h"
#include "schedule/print.h"
#include "server/front/served_model.h"
#include "server/http_setup.h"
#include "server/ranks/served_layout.h"
#include "server/serve.h"

namespace switchyard {
namespace {

constexpr double kGiB = 1 << 30;

// Appends one line to `text`.
template <typename... Args>
void Line(std::string* text, const char* name, fmt::format_string<Args...> format, Args&&... args) {
  *text += fmt::format("{:<8} {}\n", name, fmt::format(format, std::forward<Args>(args)...));
}

// GPUs for --device cuda where there are none. The memory is larger than that of any GPU.
Machine AnyGpus() {
  constexpr int64_t kBytes = int64_t{1} << 40;
  return {.cuda = true,
          .hopper = true,
          .memory = {.total = kBytes, .available = kBytes},
          .cpus = AllowedCpuCount(),
          .host = ReadHostMemory()};
}

std::string ModelText(const EngineConfig& config, const ModelConfig& model) {
  std::string text = fmt::format("{}: {}, {} layers", config.model_path.string(),
                                 model.architecture, model.layers.size());
  if (model.has_moe())
    text +=
        fmt::format(", {} experts, top-{}", model.moe->router.num_experts, model.moe->router.top_k);
  return text;
}

std::string LayoutText(const EngineConfig& config, const ModelConfig& model) {
  const MeshShape& mesh = config.mesh;
  std::string text = mesh.pp > 1 ? fmt::format("pp {}, ", mesh.pp) : "";
  text += fmt::format("tp {}, ep {}, dp {}", mesh.tp, mesh.ep, mesh.attention_groups());
  if (mesh.expert_ranks > 0) text += fmt::format(", {} ranks with experts only", mesh.expert_ranks);
  if (!model.has_moe()) return text;
  const std::string experts =
      mesh.expert_slots.empty()
          ? fmt::format(
                "{} experts on each rank",
                (model.moe->router.num_experts + config.moe.num_redundant_experts) / mesh.ep)
          : fmt::format("{} experts on the ranks", Joined(mesh.expert_slots, ", "));
  text +=
      fmt::format(", {}, {}", experts,
                  mesh.tp == mesh.ep ? "whole" : fmt::format("1/{} of each", mesh.tp / mesh.ep));
  return text;
}

std::string RanksText(const Launch& launch, int ranks) {
  const int first = launch.node * launch.ranks_per_node;
  const int last = first + launch.ranks_per_node - 1;
  std::string text =
      first == last ? fmt::format("{}", first) : fmt::format("{} to {}", first, last);
  text += fmt::format(" of {} here", ranks);
  if (!launch.alone()) text += fmt::format(", node {} of {}", launch.node, launch.nodes);
  if (launch.address)
    text += fmt::format(", rendezvous at {}{}", launch.address->Text(),
                        launch.secret.empty() ? "" : " with a secret");
  return text;
}

}  // namespace

std::string ServeLayoutText(const ServerArgs& args, const Launch& launch) {
  const EngineConfig& config = args.engine;
  CheckWeights(args, [] { return false; });
  const bool on_gpus = config.device == "cuda" || config.host_experts();
  const bool described = on_gpus && FindGpus().empty();
  const EnginePlan plan =
      described ? MakePlanOn(AnyGpus(), ReadModelConfig(config), config, launch.ranks_of_host)
                : MakePlanHere(config, launch.ranks_of_host, launch.shares_memory());
  CheckRejoins(launch, plan);
  if (launch.node == 0) {
    LoadServedModel(args, plan.model);
    SetUpHttp(args);
  }

  std::string text;
  Line(&text, "model", "{}", ModelText(config, plan.model));
  Line(&text, "layout", "{}", LayoutText(config, plan.model));
  Line(&text, "ranks", "{}", RanksText(launch, config.mesh.world()));
  if (plan.cuda) {
    const std::string cpus =
        plan.host_experts ? fmt::format(", and cpu, {} threads of each rank with experts only",
                                        plan.threads_per_rank)
                          : "";
    Line(&text, "device", "cuda{}{}", cpus,
         described ? "; no GPU was found here, so GPU memory is not checked" : "");
  } else {
    Line(&text, "device", "cpu, {} threads of each rank", plan.threads_per_rank);
  }
  if (plan.model.has_moe())
    Line(&text, "experts", "--moe-a2a-backend {}, --moe-runner-backend {}", config.moe.a2a_backend,
         config.moe.runner_backend);
  Line(&text, "formats", "token rows {}, cache {}", Name(plan.dtype), Name(plan.kv_dtype));
  const std::string cache = described
                                ? ""
                                : fmt::format(", cache {:.2f} GiB for {} tokens",
                                              static_cast<double>(plan.kv_bytes_per_rank) / kGiB,
                                              plan.num_pages * config.page_size);
  Line(&text, "memory", "of each rank: weights {:.2f} GiB{}",
       static_cast<double>(plan.weight_bytes_per_rank) / kGiB, cache);
  if (plan.num_states > 0) {
    const double slot_mib =
        static_cast<double>(StateStorage::BytesPerSlot(plan.model, Mesh(config.mesh, 0))) /
        (1 << 20);
    const int64_t own = StateSlots::ForEach(plan.drafts.most);
    Line(&text, "states",
         "{} slots of {:.2f} MiB on each rank, {} for each running request ({:.2f} MiB)",
         plan.num_states, slot_mib, own, static_cast<double>(own) * slot_mib);
  }
  Line(&text, "limits", "context {}, {} running requests of each attention group",
       plan.context_length, plan.max_running_requests);
  if (launch.node == 0)
    Line(&text, "address", "{}",
         args.http.uds.empty() ? ServerUrl(args.http, args.host, args.port) : args.http.uds);
  return text;
}

std::string ServeScheduleText(const EngineConfig& config) {
  MoeOptions moe = config.moe;
  moe.single_batch_overlap =
      moe.single_batch_overlap && CombinesInParts(moe, config.backends.get());
  const ModelConfig model = ReadModelConfig(config);
  schedule::ServeShape shape = ServeShapeOf(model, moe, config.two_batch_overlap);
  std::string text;
  for (const schedule::LayerRange& range : StagesOf(config, model)) {
    if (config.mesh.pp > 1)
      text += fmt::format("{}Layers {} to {}\n\n", text.empty() ? "" : "\n", range.begin,
                          range.end - 1);
    shape.range = range;
    shape.mode = schedule::Mode::kPrefill;
    text += schedule::PrintSchedule(shape) + "\n";
    shape.mode = schedule::Mode::kDecode;
    text += schedule::PrintSchedule(shape);
  }
  return text;
}

}  // namespace switchyard
