// Bounds of decode steps of `bench one-batch` with ranks that hold experts only (--expert-ranks).
#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "apps/one_batch.h"
#include "engine/memory_plan.h"
#include "eplb/replica_choice.h"
#include "model/complete_options.h"
#include "model/model.h"
#include "moe/placement/placement.h"

namespace switchyard::one_batch {
namespace {

bool KnowsExperts(const EngineConfig& config) {
  return ParseEpDispatchAlgorithm(config.eplb.dispatch) == EpDispatchAlgorithm::kStatic;
}

int NumPhysical(const EngineConfig& config, const EnginePlan& plan) {
  return plan.model.moe->router.num_experts + config.moe.num_redundant_experts;
}

// Slots of ranks [first, last) in each layer.
int64_t SlotsOf(const EngineConfig& config, const EnginePlan& plan, int first, int last) {
  int64_t slots = 0;
  for (int rank = first; rank < last; ++rank)
    slots += ExpertsOfRank(NumPhysical(config, plan), Mesh(config.mesh, rank)).size();
  return slots;
}

int Attending(const MeshShape& mesh) { return mesh.tp - mesh.expert_ranks; }

plan::SplitReads ReadsOf(const EngineConfig& config, const EnginePlan& plan, const Result& result,
                         const Ceilings& ceilings) {
  const MeshShape& mesh = config.mesh;
  const WeightBytes weights = PlanRankMemory(config, plan).weights;
  const int64_t layers = std::ranges::count_if(plan.model.layers, &LayerConfig::moe);
  const auto expert = [&](double bytes, int first, int last) {
    return bytes / static_cast<double>(SlotsOf(config, plan, first, last) * layers);
  };
  double others = 0;
  for (int rank = Attending(mesh); rank < mesh.tp; ++rank)
    others += static_cast<double>(WeightBytesPerRank(
        plan.ModelOf(mesh, rank), MakeModelOptions(config, plan, rank), Mesh(mesh, rank)));
  // A step reads some rows of the embedding. A tied one is read as the head.
  const double embedding = weights.head > 0 ? weights.embedding : 0;
  return {.dense = weights.total() - weights.experts - weights.shared - embedding,
          .shared = weights.shared,
          .attending_expert = expert(weights.experts, 0, Attending(mesh)),
          .other_expert = expert(others, Attending(mesh), mesh.tp),
          .attending_rate = ceilings.attending,
          .other_rate = ceilings.others,
          .layers = result.chosen.Mean()};
}

const char* NameOfAttending(const EnginePlan& plan) {
  return plan.cuda ? "GPU" : "rank with attention";
}

}  // namespace

std::vector<bool> HeldByAttending(const EngineConfig& config, const EnginePlan& plan,
                                  const ExpertServices& experts) {
  const int64_t layers = plan.model.num_layers();
  std::vector<int32_t> slots;
  if (experts.manager) {
    slots = experts.manager->Slots();
  } else {
    const ModelOptions options =
        CompleteOptions(plan.model, MakeModelOptions(config, plan), config.mesh);
    const auto physical = static_cast<size_t>(NumPhysical(config, plan));
    for (int64_t layer = 0; layer < layers; ++layer) {
      if (plan.model.layers[layer].moe) {
        std::ranges::copy(options.load.placements[layer].physical_to_logical(),
                          std::back_inserter(slots));
      } else {
        slots.insert(slots.end(), physical, -1);
      }
    }
  }
  return plan::HeldByAttending(slots, layers, SlotsOf(config, plan, 0, Attending(config.mesh)),
                               plan.model.moe->router.num_experts);
}

std::optional<plan::SplitBound> SplitBoundOf(const EngineConfig& config, const EnginePlan& plan,
                                             const Result& result, const Ceilings& ceilings) {
  if (config.mesh.expert_ranks == 0 || !KnowsExperts(config)) return std::nullopt;
  return plan::BoundOf(ReadsOf(config, plan, result, ceilings));
}

void PrintRates(const EngineConfig& config, const EnginePlan& plan, const Ceilings& ceilings) {
  fmt::print(
      "memory bandwidth, measured in this run: {} {:.1f} GB/s, CPUs of {} {:.1f} GB/s\n",
      NameOfAttending(plan), ceilings.attending / 1e9,
      config.mesh.expert_ranks > 1 ? "ranks with experts only" : "the rank with experts only",
      ceilings.others / 1e9);
}

void ReportSplit(const OneBatchArgs& args, const EngineConfig& config, const EnginePlan& plan,
                 const std::vector<Case>& cases, const std::vector<Result>& results,
                 const Ceilings& ceilings, nlohmann::ordered_json& rows) {
  if (!KnowsExperts(config)) {
    fmt::print(
        "no bound of decode: --ep-dispatch-algorithm {} chooses copies of experts; static has a "
        "bound\n",
        config.eplb.dispatch);
    return;
  }
  const char* const name = NameOfAttending(plan);
  const int64_t layers = std::ranges::count_if(plan.model.layers, &LayerConfig::moe);
  const int64_t slots = SlotsOf(config, plan, 0, Attending(config.mesh));
  const int64_t whole = slots * layers / plan.model.moe->router.num_experts;
  fmt::print(
      "bound of decode: the larger of bytes of the {} / its bandwidth and bytes of the CPUs / "
      "theirs. Experts are counted in {} steps; they are {}\n"
      "in order: the bound if layers run one after another. by layers: the same with all experts "
      "of the first {} of {} layers on the {}, and the others on the CPUs\n",
      name, results.front().chosen.passes(),
      !args.expert_skew        ? "those that the routers choose"
      : *args.expert_skew == 0 ? "uniform"
                               : fmt::format("Zipf-like, with exponent {}", *args.expert_skew),
      std::min(whole, layers), layers, name);
  fmt::print("{:>6} {:>7} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>10}\n", "batch",
             "input", plan.cuda ? "GPU rows" : "rows", plan.cuda ? "GPU GB" : "GB", "CPU GB",
             "step ms", "bound ms", "of it", "in order", "of it", "by layers");
  for (size_t i = 0; i < cases.size(); ++i) {
    const plan::SplitReads reads = ReadsOf(config, plan, results[i], ceilings);
    const plan::SplitBound bound = plan::BoundOf(reads);
    const plan::SplitBound by_layers = plan::BoundOf(plan::ByLayers(reads, whole));
    const double step = Median(results[i].decode), share = results[i].chosen.AttendingRows();
    fmt::print(
        "{:6} {:7} {:8.1f}% {:9.3f} {:9.3f} {:9.3f} {:9.3f} {:8.0f}% {:9.3f} {:8.0f}% {:10.3f}\n",
        cases[i].batch, cases[i].input, 100 * share, bound.attending_bytes / 1e9,
        bound.other_bytes / 1e9, 1e3 * step, 1e3 * bound.seconds, 100 * bound.seconds / step,
        1e3 * bound.in_order, 100 * bound.in_order / step, 1e3 * by_layers.in_order);
    nlohmann::ordered_json& row = rows[i];
    if (args.expert_skew) row["expert_skew"] = *args.expert_skew;
    row["attending_rows"] = share;
    row["attending_bytes"] = bound.attending_bytes;
    row["other_bytes"] = bound.other_bytes;
    row["attending_bandwidth"] = ceilings.attending;
    row["other_bandwidth"] = ceilings.others;
    row["decode_bound_seconds"] = bound.seconds;
    row["in_order_bound_seconds"] = bound.in_order;
    row["by_layers_bound_seconds"] = by_layers.in_order;
  }
}

void ReportParts(const EngineConfig& config, const std::vector<Case>& cases,
                 const std::vector<Result>& results, nlohmann::ordered_json& rows) {
  fmt::print(
      "CPUs of rank {}, ms of a decode step in all layers: until the rows are there, products of "
      "experts, until all ranks have sent outputs, and the rest of the step\n{:>6} {:>7} {:>9} "
      "{:>9} "
      "{:>9} {:>9}\n",
      Attending(config.mesh), "batch", "input", "rows", "experts", "outputs", "rest");
  for (size_t i = 0; i < cases.size(); ++i) {
    const std::vector<MoeTimes>& steps = results[i].parts;
    if (steps.empty()) continue;
    const auto median = [&](int64_t MoeTimes::*part) {
      std::vector<double> values;
      values.reserve(steps.size());
      for (const MoeTimes& times : steps) values.push_back(1e-9 * static_cast<double>(times.*part));
      return Median(std::move(values));
    };
    const double waited = median(&MoeTimes::dispatch), computed = median(&MoeTimes::experts),
                 sent = median(&MoeTimes::combine);
    const double rest = Median(results[i].decode) - waited - computed - sent;
    fmt::print("{:6} {:7} {:9.3f} {:9.3f} {:9.3f} {:9.3f}\n", cases[i].batch, cases[i].input,
               1e3 * waited, 1e3 * computed, 1e3 * sent, 1e3 * rest);
    rows[i]["cpu_rows_seconds"] = waited;
    rows[i]["cpu_experts_seconds"] = computed;
    rows[i]["cpu_outputs_seconds"] = sent;
    rows[i]["cpu_rest_seconds"] = rest;
  }
}

}  // namespace switchyard::one_batch
