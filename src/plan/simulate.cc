#include "plan/simulate.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/format.h"
#include "engine/active_layout.h"
#include "engine/rank_engine.h"
#include "model/stages.h"
#include "moe/placement/placement.h"
#include "plan/engine_run.h"
#include "plan/staged_run.h"
#include "plan/step_clock.h"

namespace switchyard::plan {
namespace {

Percentiles Of(std::vector<float>& values) {
  if (values.empty()) return {};
  const auto at = [&](double share) {
    const auto place = static_cast<std::ptrdiff_t>(std::min(
        static_cast<double>(values.size() - 1), share * static_cast<double>(values.size())));
    std::ranges::nth_element(values, values.begin() + place);
    return static_cast<double>(values[place]);
  };
  return {at(0.5), at(0.9), at(0.99)};
}

// Keeps the steps of the first engine, and the operations of its first steps.
class FirstEngine {
 public:
  FirstEngine(OperationClock* clock, Simulation* out) : clock_(clock), out_(out) {
    if (clock_) clock_->Record(&out_->operations);
  }
  ~FirstEngine() {
    if (clock_) clock_->Record(nullptr);
  }

  void Add(const EngineRun::Steps& steps) {
    for (int64_t i = 0; i < steps.count; ++i) {
      if (out_->first_engine.size() == Simulation::kKeptSteps) break;
      const double start = steps.start + static_cast<double>(i) * steps.seconds;
      out_->first_engine.push_back({.start = start,
                                    .seconds = steps.seconds,
                                    .prompt_rows = steps.prompt_rows,
                                    .decode_rows = steps.decode_rows});
    }
    for (; placed_ < out_->operations.size(); ++placed_)
      out_->operations[placed_].start += steps.start;
    if (clock_ && placed_ >= Simulation::kKeptOperations) clock_->Record(nullptr);
  }

 private:
  OperationClock* const clock_;  // null: the fidelity is `step`
  Simulation* const out_;
  size_t placed_ = 0;  // operations whose start is that of the simulation
};

// The same with pipeline stages.
class FirstStages {
 public:
  FirstStages(StageClocks* clocks, Simulation* out) : clocks_(*clocks), out_(out) {
    clocks_.Record(&out_->operations);
  }
  ~FirstStages() { clocks_.Record(nullptr); }

  void Add(const StagedRun::Pass& pass) {
    const auto stages = static_cast<int>(pass.stages.size());
    for (int i = 0; i < stages && out_->first_engine.size() < Simulation::kKeptSteps; ++i)
      out_->first_engine.push_back({.start = pass.stages[i].start,
                                    .seconds = pass.stages[i].seconds,
                                    .prompt_rows = pass.prompt_rows,
                                    .decode_rows = pass.decode_rows,
                                    .stage = i});
    for (; placed_ < out_->operations.size(); ++placed_) {
      OperationSpan& span = out_->operations[placed_];
      span.start += pass.stages[span.rank / clocks_.ranks_of_stage()].start;
    }
    if (placed_ >= Simulation::kKeptOperations) clocks_.Record(nullptr);
  }

 private:
  StageClocks& clocks_;
  Simulation* const out_;
  size_t placed_ = 0;  // operations whose start is that of the simulation
};

// Whether some prompts share a prefix.
bool SharesBlocks(const std::vector<Arrival>& arrivals) {
  return std::ranges::any_of(arrivals, [](const Arrival& a) { return !a.blocks.empty(); });
}

QueueLimits LimitsOf(const Question& q, const EnginePlan& plan) {
  return {.running = plan.max_running_requests,
          .most_running = plan.max_running_requests,
          .pages = plan.num_pages,
          .page_size = q.config.page_size,
          .chunk = MaxPromptRows(plan.chunked_prefill_size, 0, plan.context_length),
          .whole_prompts = plan.chunked_prefill_size < 0,
          .logit_rows = MaxLogitRows(q.model.output_width())};
}

// Error kInvalid names the flag.
void RefuseWithStages(const Evaluation& layout, const SimulationOptions& options) {
  const auto refuse = [&](bool given, const std::string& flag, const char* why) {
    if (given)
      throw Invalid("{}: {} with the pipeline stages of layout {}; want a layout without pp", flag,
                    why, layout.layout.Name());
  };
  refuse(options.expert_loads.enabled(), "--expert-loads " + options.expert_loads.source,
         "loads of experts are not simulated");
  refuse(!options.failures.listed.empty(), "--fail", "ranks are not restarted");
  refuse(options.failures.enabled(), fmt::format("--fail-rate {}", options.failures.per_day),
         "ranks are not restarted");
}

// The engines of a layout with pipeline stages. Adds to the figures of `out`: `busy` and
// `stage_busy` are sums of seconds over the engines, and `running` those of requests.
void RunStagedEngines(const Question& q, const Evaluation& layout, QueueLimits limits,
                      const std::vector<Arrival>& arrivals, Fidelity fidelity, Latencies* latencies,
                      Simulation* out) {
  const LayoutCosts costs(q, layout.layout, layout.plan);
  StageClocks clocks(costs, fidelity);
  const auto stages = static_cast<size_t>(costs.stages());
  limits.passes = costs.in_flight();
  limits.micro_batch = q.config.pp_max_micro_batch_size / layout.layout.mesh.dp;
  limits.chunk_keys = q.config.dynamic_chunking ? KeysOfWeights(q.model) : 0;
  out->stage_busy.assign(stages, 0);
  for (int engine = 0; engine < layout.replicas; ++engine) {
    std::vector<std::unique_ptr<RequestQueue>> groups;
    groups.reserve(layout.layout.mesh.dp);
    for (int g = 0; g < layout.layout.mesh.dp; ++g)
      groups.push_back(std::make_unique<RequestQueue>(arrivals, limits, latencies));
    StagedRun run(std::move(groups), clocks, limits.passes, out);
    if (engine == 0) {
      FirstStages first(&clocks, out);
      run.Run(arrivals, 0, layout.replicas, [&](const StagedRun::Pass& pass) { first.Add(pass); });
    } else {
      run.Run(arrivals, engine, layout.replicas, {});
    }
    for (size_t stage = 0; stage < stages; ++stage) {
      out->stage_busy[stage] += run.busy()[stage];
      out->busy += run.busy()[stage] / static_cast<double>(stages);
    }
    out->running += run.request_seconds();
    out->seconds = std::max(out->seconds, run.now());
    out->cached_tokens += run.cached_tokens();
  }
}

// The costs and clocks of an engine, by its active ranks.
class Clocks : public EngineClocks {
 public:
  Clocks(const Question& q, const Evaluation& layout, Fidelity fidelity)
      : question_(q), layout_(layout), fidelity_(fidelity) {}

  StepClock& Of(int active) override { return *EntryOf(active).clock; }
  const LayoutCosts& costs() { return *EntryOf(layout_.layout.mesh.tp).costs; }
  // Null: the fidelity is `step`.
  OperationClock* operations() {
    Entry& entry = EntryOf(layout_.layout.mesh.tp);
    return fidelity_ == Fidelity::kOperation ? static_cast<OperationClock*>(entry.clock.get())
                                             : nullptr;
  }
  // Maximum running requests of a group.
  int64_t RunningOf(int active) { return EntryOf(active).running; }

 private:
  struct Entry {
    std::unique_ptr<LayoutCosts> costs;
    std::unique_ptr<StepClock> clock;
    int64_t running = 0;
  };

  Entry& EntryOf(int active) {
    Entry& entry = entries_[active];
    if (entry.clock) return entry;
    Question q = question_;
    Layout layout = layout_.layout;
    EnginePlan plan = layout_.plan;
    if (const int ranks = layout.mesh.tp; active < ranks) {
      std::vector<int> first(static_cast<size_t>(active));
      std::iota(first.begin(), first.end(), 0);
      const ActiveLayout smaller = LayoutOfActive(ConfigOf(layout, q.config), layout_.plan, first);
      layout.mesh = smaller.config.mesh;
      layout.redundant = smaller.config.moe.num_redundant_experts;
      plan = smaller.plan;
      // Ranks on CPUs keep their CPUs.
      if (!q.cluster.cuda) q.table = q.table.Shared(static_cast<double>(active) / ranks);
    }
    entry.running = plan.max_running_requests;
    entry.costs = std::make_unique<LayoutCosts>(q, layout, plan);
    if (fidelity_ == Fidelity::kOperation) {
      entry.clock = std::make_unique<OperationClock>(*entry.costs);
    } else {
      entry.clock = std::make_unique<ShapeClock>(*entry.costs);
    }
    return entry;
  }

  const Question& question_;
  const Evaluation& layout_;
  const Fidelity fidelity_;
  std::map<int, Entry> entries_;
};

// Bytes of the experts that none of the ranks `active` has at first, for each of these ranks.
double BytesToLoad(const Question& q, const Evaluation& layout, std::span<const int> active) {
  if (!q.model.has_moe()) return 0;
  const int experts = q.model.moe->router.num_experts, ep = layout.layout.mesh.ep;
  const ExpertPlacement placement = ExpertPlacement::Trivial(experts, layout.layout.redundant);
  std::vector<bool> held(static_cast<size_t>(experts), false);
  for (const int rank : active) {
    const Range own = ExpertsOfRank(placement.num_physical(), ep, rank);
    for (int p = own.begin; p < own.end; ++p) held[placement.physical_to_logical()[p]] = true;
  }
  const auto layers =
      static_cast<double>(std::ranges::count(q.model.layers, true, &LayerConfig::moe));
  return static_cast<double>(std::ranges::count(held, false)) * layers * ExpertBytesOf(q, layout) /
         static_cast<double>(active.size());
}

std::string Describe(const Recovery& recovery) {
  return fmt::format(
      "a rank has loaded after {:.2f} s, {}; the cache {}", recovery.load_seconds,
      recovery.serves_without ? "while the others serve without it" : "for which all ranks wait",
      recovery.keeps_cache ? "stays" : "is lost");
}

void Add(const ExpertFigures& from, Simulation* out) {
  ExpertFigures& to = out->experts;
  to.imbalance.resize(from.imbalance.size(), 0);
  for (size_t i = 0; i < from.imbalance.size(); ++i)
    to.imbalance[i] += from.seconds * from.imbalance[i];
  to.balancedness += from.seconds * from.balancedness;
  to.seconds += from.seconds;
  out->rebalances += std::ssize(from.rebalances);
  for (const Rebalance& one : from.rebalances) out->moved_bytes += one.bytes;
}

}  // namespace

Fidelity ParseFidelity(const std::string& name) {
  if (name == "step") return Fidelity::kStep;
  if (name == "operation") return Fidelity::kOperation;
  throw Invalid("--fidelity {}: want operation or step", name);
}

Simulation Simulate(const Question& q, const Evaluation& layout,
                    const std::vector<Arrival>& arrivals, const SimulationOptions& options) {
  if (!layout.accepted) throw Invalid("layout {}: {}", layout.layout.Name(), layout.refused);
  const bool staged = layout.layout.mesh.pp > 1;
  if (staged) RefuseWithStages(layout, options);
  const int64_t cache = layout.plan.num_pages * q.config.page_size;
  for (const Arrival& a : arrivals)
    if (a.input + a.output > cache)
      throw Invalid("a request of {} tokens does not fit the cache of a group, {} tokens",
                    a.input + a.output, cache);
  const int ranks = layout.layout.mesh.tp;
  Simulation out;
  std::shared_ptr<const ExpertLoads> loads;
  if (options.expert_loads.enabled())
    loads = std::make_shared<ExpertLoads>(options.expert_loads, q.model);
  const auto failures = FailuresOf(options.failures, layout.replicas, ranks,
                                   arrivals.empty() ? 0 : arrivals.back().seconds);
  const bool fails = options.failures.enabled();
  const Recovery recovery = RecoveryOf(options.failures, q, layout);
  if (fails) out.recovery = Describe(recovery);
  QueueLimits limits = LimitsOf(q, layout.plan);
  limits.reuses_prefixes =
      fails || options.fidelity == Fidelity::kOperation || SharesBlocks(arrivals);
  std::optional<PrefillPace> pace;
  if (!limits.whole_prompts) pace.emplace(0, limits.chunk);
  // Times of steps depend on the loads of an engine's experts, so these engines share no clocks.
  std::optional<Clocks> clocks;
  Latencies latencies;
  double busy = 0, request_seconds = 0, tokens = 0;
  for (const Arrival& a : arrivals) tokens += static_cast<double>(a.output);
  if (staged) {
    RunStagedEngines(q, layout, limits, arrivals, options.fidelity, &latencies, &out);
    busy = std::exchange(out.busy, 0.0);
    request_seconds = std::exchange(out.running, 0.0);
  }
  for (int engine = 0; engine < layout.replicas && !staged; ++engine) {
    if (!clocks || loads) clocks.emplace(q, layout, options.fidelity);
    EngineParts parts{
        .ranks = ranks, .pace = pace, .failures = failures[engine], .recovery = recovery};
    if (fails && recovery.serves_without) {
      for (int active = 0; active <= ranks; ++active)
        parts.running.push_back(active > 0 ? clocks->RunningOf(active) : 0);
      limits.most_running = std::ranges::max(parts.running);
      parts.bytes_to_load = [&](std::span<const int> active) {
        return BytesToLoad(q, layout, active);
      };
    }
    for (int g = 0; g < layout.layout.mesh.dp; ++g)
      parts.groups.push_back(std::make_unique<RequestQueue>(arrivals, limits, &latencies));
    if (loads) parts.experts = std::make_unique<EngineExperts>(loads, q, layout, clocks->costs());
    EngineRun run(std::move(parts), *clocks, &out);
    if (engine == 0) {
      FirstEngine first(clocks->operations(), &out);
      run.Run(arrivals, 0, layout.replicas,
              [&](const EngineRun::Steps& steps) { first.Add(steps); });
      out.pauses = run.pauses();
      if (loads) {
        out.expert_loads = options.expert_loads.source;
        out.experts.rebalances = run.experts()->figures().rebalances;
        out.experts.changes = run.experts()->figures().changes;
      }
    } else {
      run.Run(arrivals, engine, layout.replicas, {});
    }
    if (loads) Add(run.experts()->figures(), &out);
    busy += run.busy();
    request_seconds += run.request_seconds();
    out.seconds = std::max(out.seconds, run.now());
    out.cached_tokens += run.cached_tokens();
  }
  out.requests = std::ssize(arrivals);
  out.lost = out.requests - std::ssize(latencies.whole);
  out.output_rate = out.seconds > 0 ? tokens / out.seconds : 0;
  out.busy = out.seconds > 0 ? busy / out.seconds / layout.replicas : 0;
  out.running = out.seconds > 0 ? request_seconds / out.seconds : 0;
  for (double& stage : out.stage_busy)
    stage = out.seconds > 0 ? stage / out.seconds / layout.replicas : 0;
  out.uneven = out.steps > 0 ? out.uneven / static_cast<double>(out.steps) : 0;
  for (double& layer : out.experts.imbalance) layer /= std::max(out.experts.seconds, 1e-12);
  out.experts.balancedness /= std::max(out.experts.seconds, 1e-12);
  out.ttft = Of(latencies.ttft);
  out.itl = Of(latencies.itl);
  out.latency = Of(latencies.whole);
  return out;
}

}  // namespace switchyard::plan
