// Compares the measured steps of `bench one-batch` with the cost model of `switchyard plan`.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "apps/one_batch.h"
#include "core/error.h"
#include "engine/gpu_memory.h"
#include "plan/engine_costs.h"

namespace switchyard::one_batch {
namespace {

struct Step {
  std::string name;
  double measured = 0, predicted = 0;  // seconds
  double error() const { return predicted / measured - 1; }
};

std::optional<plan::CostTable> TableOf(const OneBatchArgs& args, const EngineConfig& config,
                                       const EnginePlan& plan) {
  if (!args.cost_table.empty()) return plan::ReadCostTable(args.cost_table);
  if (!plan.cuda) return plan::CpuDefaults(plan.threads_per_rank * config.mesh.tp);
  return plan::ShippedTableOf(SmallestGpu(config, plan.ranks_of_host).name);
}

// What the cost model does not know of this run; null: nothing.
const char* WithoutCosts(const OneBatchArgs& args, const EnginePlan& plan) {
  if (plan.model.has_linear()) return "layers with recurrent states";
  if (args.server.engine.mesh.expert_ranks > 0) return "ranks with experts only (--expert-ranks)";
  if (args.expert_skew.value_or(0) > 0) return "experts of unequal popularity (--expert-skew)";
  return nullptr;
}

}  // namespace

void CheckCostTable(const OneBatchArgs& args, const EnginePlan& plan) {
  if (args.cost_table.empty()) return;
  if (const char* what = WithoutCosts(args, plan))
    throw Invalid("--cost-table {}: there are no costs of {}; leave the flag out", args.cost_table,
                  what);
  const plan::CostTable table = plan::ReadCostTable(args.cost_table);
  if (table.cuda != plan.cuda)
    throw Invalid("--cost-table {}: measured for {}, but this run is on {}", args.cost_table,
                  table.cuda ? "a GPU" : "CPUs", plan.cuda ? "GPUs" : "CPUs");
}

void ReportPredictions(const OneBatchArgs& args, const EngineConfig& config, const EnginePlan& plan,
                       const std::vector<Case>& cases, const std::vector<Result>& results,
                       nlohmann::ordered_json& rows) {
  if (const char* what = WithoutCosts(args, plan)) {
    fmt::print("no predicted times: there are no costs of {}\n", what);
    return;
  }
  const auto table = TableOf(args, config, plan);
  if (!table) {
    fmt::print("no predicted times: no cost table of {}; --cost-table reads one\n",
               SmallestGpu(config, plan.ranks_of_host).name);
    return;
  }
  fmt::print("times predicted by `switchyard plan` from costs of {}: {}\n", table->name,
             table->source);
  fmt::print("{:>6} {:>7} {:>11} {:>10} {:>8} {:>11} {:>10} {:>8}\n", "batch", "input",
             "prefill ms", "predicted", "error", "decode ms", "predicted", "error");
  std::vector<Step> steps;
  for (size_t i = 0; i < cases.size(); ++i) {
    const Case& c = cases[i];
    const plan::EngineCosts costs(config, plan, *table, results[i].correlation);
    const plan::EqualRequests requests{.batch = c.batch,
                                       .input = c.input,
                                       .output = args.output_length,
                                       .chunk = PrefillRows(plan, c)};
    const std::string of_case = fmt::format("of batch {} and {} prompt tokens", c.batch, c.input);
    const Step prefill{"prefill " + of_case, Median(results[i].prefill), costs.Prefill(requests)};
    const Step decode{"decode " + of_case, Median(results[i].decode), costs.DecodeStep(requests)};
    fmt::print("{:6} {:7} {:11.2f} {:10.2f} {:+7.1f}% {:11.3f} {:10.3f} {:+7.1f}%\n", c.batch,
               c.input, 1e3 * prefill.measured, 1e3 * prefill.predicted, 100 * prefill.error(),
               1e3 * decode.measured, 1e3 * decode.predicted, 100 * decode.error());
    if (plan.model.has_moe()) rows[i]["token_correlation"] = results[i].correlation;
    rows[i]["prefill_seconds"] = prefill.measured;
    rows[i]["predicted_prefill_seconds"] = prefill.predicted;
    rows[i]["decode_step_seconds"] = decode.measured;
    rows[i]["predicted_decode_step_seconds"] = decode.predicted;
    steps.insert(steps.end(), {prefill, decode});
  }
  if (plan.model.has_moe()) {
    const auto [least, most] = std::ranges::minmax(results, {}, &Result::correlation);
    fmt::print("correlation of the experts of two tokens of a prompt, counted: {:.3f} to {:.3f}\n",
               least.correlation, most.correlation);
  }
  std::ranges::sort(steps, {}, [](const Step& step) { return std::abs(step.error()); });
  const auto error_of = [&](size_t i) { return 100 * std::abs(steps[i].error()); };
  const size_t half = steps.size() / 2;  // there are two steps for each case
  fmt::print("errors of {} predictions: median {:.1f} %, worst {:.1f} % ({})\n", steps.size(),
             (error_of(half - 1) + error_of(half)) / 2, error_of(steps.size() - 1),
             steps.back().name);
}

}  // namespace switchyard::one_batch
