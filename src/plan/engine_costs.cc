#include "plan/engine_costs.h"

#include <algorithm>
#include <utility>

namespace switchyard::plan {
namespace {

// Ranks that share a GPU have equal shares of its rates. LayoutCosts divides the rates of CPUs.
CostTable OfRank(const EngineConfig& config, const EnginePlan& plan, CostTable table) {
  const bool shares = plan.cuda && config.gpu_id_step == 0;
  return shares ? table.Shared(1.0 / plan.ranks_of_host) : std::move(table);
}

Question QuestionOf(const EngineConfig& config, const EnginePlan& plan, CostTable table,
                    double correlation) {
  const std::string card = table.name;
  Question q{
      .config = config, .model = plan.model, .table = OfRank(config, plan, std::move(table))};
  q.cluster = {.card = card, .cuda = plan.cuda, .per_node = plan.ranks_of_host};
  q.load.imbalance = 1.0;
  q.load.correlation = correlation;
  return q;
}

}  // namespace

EngineCosts::EngineCosts(const EngineConfig& config, const EnginePlan& plan, CostTable table,
                         double correlation)
    : question_(QuestionOf(config, plan, std::move(table), correlation)),
      costs_(question_, LayoutOf(config), plan) {}

double EngineCosts::Prefill(const EqualRequests& r) const {
  const int64_t chunk = std::min(r.chunk, r.input);
  const int64_t together = std::min(r.batch, std::max<int64_t>(1, r.chunk / r.input));
  const auto seconds_of = [&](int64_t sequences) {
    double seconds = 0;
    for (int64_t begin = 0; begin < r.input; begin += chunk) {
      const int64_t rows = std::min(chunk, r.input - begin);
      const auto of_all = static_cast<double>(sequences);
      seconds += costs_
                     .Of({.decode = false,
                          .sequences = of_all,
                          .rows = of_all * static_cast<double>(rows),
                          .keys = static_cast<double>(begin) + static_cast<double>(rows + 1) / 2,
                          .logit_rows = begin + rows == r.input ? of_all : 0})
                     .seconds;
    }
    return seconds;
  };
  const int64_t passes = r.batch / together, rest = r.batch % together;
  double seconds = static_cast<double>(passes) * seconds_of(together);
  if (rest > 0) seconds += seconds_of(rest);
  return seconds;
}

double EngineCosts::DecodeStep(const EqualRequests& r) const {
  return costs_
      .Decode(static_cast<double>(r.batch),
              static_cast<double>(r.input) + static_cast<double>(r.output) / 2)
      .seconds;
}

}  // namespace switchyard::plan
