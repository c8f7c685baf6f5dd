#include "engine/active_layout.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "core/format.h"
#include "core/log.h"
#include "engine/cpu_binding.h"
#include "engine/expert_services.h"
#include "engine/host_memory.h"
#include "engine/memory_plan.h"
#include "engine/speculative/draft_model.h"
#include "eplb/manager.h"
#include "model/complete_options.h"
#include "moe/placement/active_placement.h"

namespace switchyard {
namespace {

// The placement as --init-expert-location.
std::string LocationOf(std::span<const ExpertPlacement> placements) {
  std::vector<std::string> rows;
  for (const ExpertPlacement& placement : placements)
    rows.push_back(fmt::format("[{}]", fmt::join(placement.physical_to_logical(), ",")));
  return fmt::format("{{\"physical_to_logical_map\":[{}]}}", fmt::join(rows, ","));
}

// Bytes of the experts of a model that the active ranks have to load. `options`: complete.
double BytesToLoad(const ModelConfig& model, const ModelOptions& options, const MeshShape& mesh,
                   const std::vector<int>& active) {
  if (!model.has_moe()) return 0;
  double experts = 0;
  for (const ExpertPlacement& placement : options.load.placements) {
    std::vector<bool> held(static_cast<size_t>(placement.num_logical()), false);
    for (const int rank : active) {
      const Range own = ExpertsOfRank(placement.num_physical(), mesh.ep, rank);
      for (int place = own.begin; place < own.end; ++place)
        held[placement.physical_to_logical()[place]] = true;
    }
    experts += static_cast<double>(std::ranges::count(held, false));
  }
  return experts * static_cast<double>(ExpertBytes(model, Mesh(mesh, 0), options.load));
}

// The options of the target and of the draft model.
ModelOptions TargetOptions(const EngineConfig& config, const EnginePlan& plan) {
  return CompleteOptions(plan.model, MakeModelOptions(config, plan), config.mesh);
}
ModelOptions DraftOptions(const EngineConfig& config, const EnginePlan& plan) {
  return CompleteOptions(*plan.draft,
                         MakeDraftOptions(MakeModelOptions(config, plan), plan.draft_experts),
                         config.mesh);
}

// Bytes that the active ranks have to load, and of the weights of the absent ranks.
double BytesToLoad(const EngineConfig& config, const EnginePlan& plan,
                   const std::vector<int>& active) {
  double bytes = BytesToLoad(plan.model, TargetOptions(config, plan), config.mesh, active);
  if (plan.draft)
    bytes += BytesToLoad(*plan.draft, DraftOptions(config, plan), config.mesh, active);
  const auto absent = static_cast<double>(config.mesh.tp - std::ssize(active));
  return bytes + absent * static_cast<double>(plan.weight_bytes_per_rank);
}

// Symmetric memory of a rank.
size_t SymmetricBytesOf(const EngineConfig& config, const EnginePlan& plan) {
  const ModelOptions options = MakeModelOptions(config, plan);
  size_t bytes = SymmetricBytesPerRank(plan.model, options, config.mesh);
  if (plan.draft)
    bytes += SymmetricBytesPerRank(*plan.draft, MakeDraftOptions(options, plan.draft_experts),
                                   config.mesh);
  if (config.eplb.enable) bytes += EplbManager::BytesPerRank(config.mesh);
  return bytes;
}

// Whether experts can move in a layout. A single rank has all experts. A planner may refuse a
// layout, because the number of slots follows from the lost experts.
bool CanBalance(const EngineConfig& config, const EnginePlan& plan) {
  if (config.mesh.ep < 2) return false;
  try {
    EplbManager::Check(config.eplb, EplbShapeOf(config, plan), config.mesh.ep);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

ActiveLayout LayoutOfActive(const EngineConfig& config, const EnginePlan& plan,
                            std::span<const int> active) {
  const std::vector<ExpertPlacement> placements =
      PlacementsOfActive(TargetOptions(config, plan).load.placements, config.mesh.ep, active);
  ActiveLayout layout{config, plan};
  const int ranks = static_cast<int>(active.size());
  layout.config.mesh.tp = layout.config.mesh.ep = layout.config.mesh.dp = ranks;
  layout.config.moe.num_redundant_experts =
      placements[0].num_physical() - placements[0].num_logical();
  layout.config.moe.init_expert_location = LocationOf(placements);
  if (plan.draft && plan.draft->has_moe()) {
    const std::vector<ExpertPlacement> drafts =
        PlacementsOfActive(DraftOptions(config, plan).load.placements, config.mesh.ep, active);
    layout.plan.draft_experts = {.redundant = drafts[0].num_physical() - drafts[0].num_logical(),
                                 .location = LocationOf(drafts)};
  }
  // An explicit list has CPUs of all ranks.
  if (config.cpu_bind != "auto" && config.cpu_bind != "none") {
    std::vector<std::string> lists;
    const auto all = ParseCpuBind(config.cpu_bind, config.threads_per_rank, plan.ranks_of_host);
    for (const int rank : active) lists.push_back(FormatCpuList(all[rank]));
    layout.config.cpu_bind = fmt::format("{}", fmt::join(lists, "|"));
  }
  layout.plan.ranks_of_host = ranks;
  // The running requests of the absent ranks run on the others.
  const auto running = static_cast<int32_t>(std::min<int64_t>(
      plan.num_pages, (int64_t{plan.max_running_requests} * config.mesh.tp + ranks - 1) / ranks));
  layout.plan.max_batch_tokens +=
      int64_t{running - plan.max_running_requests} * plan.drafts.rows();  // as in a whole layout
  layout.plan.max_running_requests = running;
  layout.config.eplb.enable = config.eplb.enable && CanBalance(layout.config, layout.plan);
  return layout;
}

size_t SymmetricBytesWithoutARank(const EngineConfig& config, const EnginePlan& plan) {
  std::vector<int> active(static_cast<size_t>(config.mesh.tp) - 1);
  std::iota(active.begin(), active.end(), 0);
  const ActiveLayout layout = LayoutOfActive(config, plan, active);
  return SymmetricBytesOf(layout.config, layout.plan);
}

bool CanServe(const EngineConfig& config, const EnginePlan& plan, const std::vector<int>& active) {
  const ActiveLayout layout = LayoutOfActive(config, plan, active);
  const size_t exchange = SymmetricBytesOf(layout.config, layout.plan);
  if (exchange > plan.symmetric_bytes_per_rank) {
    LOG_INFO("ranks {} cannot serve alone: the exchange needs {} bytes, and {} are planned",
             Joined(active, ", "), exchange, plan.symmetric_bytes_per_rank);
    return false;
  }
  if (!CopiesWeights(config, plan)) return true;
  const double need = BytesToLoad(config, plan, active);
  const auto available = static_cast<double>(ReadHostMemory().available);
  if (need <= available) return true;
  LOG_INFO("ranks {} cannot serve alone: {:.0f} MiB would be loaded, and {:.0f} MiB are available",
           Joined(active, ", "), need / (1 << 20), available / (1 << 20));
  return false;
}

}  // namespace switchyard
