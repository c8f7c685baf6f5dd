// The report of `bench one-batch --speculative-algorithm`.
#include <fmt/core.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "apps/one_batch_drafts.h"
#include "core/error.h"

namespace switchyard::one_batch {
namespace {

// The acceptance of each draft, given those before it, from which on a step with `drafts` drafts,
// which takes `ratio` times as long as a plain step, gives more tokens per second. nullopt: none.
std::optional<double> BreakEven(int32_t drafts, double ratio) {
  if (ratio > drafts + 1) return std::nullopt;
  double low = 0, high = 1;
  for (int i = 0; i < 50; ++i) {
    const double p = (low + high) / 2;
    double tokens = 1, reached = 1;
    for (int32_t d = 0; d < drafts; ++d) tokens += reached *= p;
    (tokens < ratio ? low : high) = p;
  }
  return high;
}

void PrintHeader(const OneBatchArgs& args, const EnginePlan& plan, const Ceilings& ceilings) {
  const double p = args.server.engine.speculative.simulate_acceptance;
  fmt::print("memory bandwidth of all ranks, measured in this run: {:.1f} GB/s\n",
             ceilings.bandwidth / 1e9);
  fmt::print("acceptance of each draft, given those before it: {}\n",
             p >= 0 ? fmt::format("{} (simulated)", p) : "as the target samples");
  fmt::print(
      "experts: {}; those of the target's passes are counted, those of the draft model's {}\n",
      args.same_experts ? "the same of a layer for all rows" : "as the routers choose",
      plan.cuda ? "too" : "are expected of uniform routing");
  fmt::print("bound: time to read the step's weights at that bandwidth\n");
  fmt::print(
      "{:>5} {:>6} {:>6} {:>8} {:>8} {:>8} {:>7} {:>8} {:>9} {:>9} {:>9} {:>9} {:>6} {:>8}\n",
      "batch", "input", "drafts", "step ms", "draft ms", "verify", "tokens", "speed-up",
      "break-even", "experts", "GB", "bound ms", "of it", "bound x");
}

nlohmann::ordered_json Report(const DraftFigures& f, const DraftFigures& plain,
                              const EnginePlan& plan, double bandwidth) {
  const double speed_up = f.tokens * plain.step / f.step;
  const double bound = f.bytes / bandwidth;
  const double bound_speed_up = f.tokens * plain.bytes / f.bytes;
  const double layers = std::max(1.0, WeightsOfPass(plan.model).moe_layers);
  const auto even = BreakEven(f.drafts, f.step / plain.step);
  const std::string break_even = f.drafts == 0 ? "-"
                                 : even        ? fmt::format("{:.3f}", *even)
                                               : "never";
  fmt::print(
      "{:5} {:6} {:6} {:8.3f} {:8.3f} {:8.3f} {:7.3f} {:8.3f} {:>10} {:9.2f} {:9.3f} {:9.3f} "
      "{:5.0f}% {:8.3f}\n",
      f.of.batch, f.of.input, f.drafts, f.step * 1e3, f.draft * 1e3,
      f.drafts == 0 ? 0.0 : f.verify * 1e3, f.tokens, speed_up, break_even,
      f.target_experts / layers, f.bytes / 1e9, bound * 1e3, 100 * bound / f.step, bound_speed_up);
  nlohmann::ordered_json row = {{"batch_size", f.of.batch},
                                {"input_len", f.of.input},
                                {"drafts", f.drafts},
                                {"step_seconds", f.step},
                                {"draft_seconds", f.draft},
                                {"verify_seconds", f.drafts == 0 ? 0.0 : f.verify},
                                {"tokens_per_step", f.tokens},
                                {"speed_up", speed_up},
                                {"break_even_acceptance", nullptr},
                                {"experts_per_layer", f.target_experts / layers},
                                {"draft_experts", f.draft_experts},
                                {"bytes_per_step", f.bytes},
                                {"bandwidth", bandwidth},
                                {"bound_seconds", bound},
                                {"fraction_of_bound", bound / f.step},
                                {"bound_of_speed_up", bound_speed_up}};
  if (f.drafts > 0 && even) row["break_even_acceptance"] = *even;
  return row;
}

}  // namespace

void ReportDrafts(const OneBatchArgs& args, const EnginePlan& plan, const Ceilings& ceilings,
                  std::span<const DraftFigures> figures) {
  PrintHeader(args, plan, ceilings);
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  const DraftFigures* plain = nullptr;
  for (const DraftFigures& f : figures) {
    if (f.drafts == 0) plain = &f;
    rows.push_back(Report(f, *plain, plan, ceilings.bandwidth));
  }
  if (args.json.empty()) return;
  std::ofstream out(args.json);
  if (!(out << rows.dump(2) << "\n")) throw Resource("--json {}: cannot be written", args.json);
}

}  // namespace switchyard::one_batch
