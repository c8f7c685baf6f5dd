#include "plan/simulate.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "core/error.h"
#include "core/format.h"
#include "engine/rank_engine.h"
#include "plan/engine_run.h"
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
      out_->first_engine.push_back({start, steps.seconds, steps.prompt_rows, steps.decode_rows});
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

QueueLimits LimitsOf(const Question& q, const Evaluation& layout) {
  const EnginePlan& plan = layout.plan;
  return {.running = plan.max_running_requests,
          .pages = plan.num_pages,
          .page_size = q.config.page_size,
          .chunk = MaxPromptRows(plan.chunked_prefill_size, 0, plan.context_length),
          .whole_prompts = plan.chunked_prefill_size < 0,
          .logit_rows = MaxLogitRows(q.model.output_width())};
}

}  // namespace

Fidelity ParseFidelity(const std::string& name) {
  if (name == "step") return Fidelity::kStep;
  if (name == "operation") return Fidelity::kOperation;
  throw Invalid("--fidelity {}: want operation or step", name);
}

Simulation Simulate(const Question& q, const Evaluation& layout,
                    const std::vector<Arrival>& arrivals, Fidelity fidelity) {
  if (!layout.accepted) throw Invalid("layout {}: {}", layout.layout.Name(), layout.refused);
  const int64_t cache = layout.plan.num_pages * q.config.page_size;
  for (const Arrival& a : arrivals)
    if (a.input + a.output > cache)
      throw Invalid("a request of {} tokens does not fit the cache of a group, {} tokens",
                    a.input + a.output, cache);
  const LayoutCosts costs(q, layout.layout, layout.plan);
  ShapeClock by_shape(costs);
  OperationClock by_operation(costs);
  const bool operations = fidelity == Fidelity::kOperation;
  StepClock& clock = operations ? static_cast<StepClock&>(by_operation) : by_shape;
  Simulation out;
  Latencies latencies;
  double busy = 0, request_seconds = 0, tokens = 0;
  for (const Arrival& a : arrivals) tokens += static_cast<double>(a.output);
  const QueueLimits limits = LimitsOf(q, layout);
  std::optional<PrefillPace> pace;
  if (!limits.whole_prompts) pace.emplace(0, limits.chunk);
  for (int engine = 0; engine < layout.replicas; ++engine) {
    std::vector<std::unique_ptr<RequestQueue>> groups;
    for (int g = 0; g < layout.layout.mesh.dp; ++g) {
      if (operations) {
        groups.push_back(std::make_unique<ScheduledQueue>(arrivals, limits, &latencies));
      } else {
        groups.push_back(std::make_unique<CountedQueue>(arrivals, limits, &latencies));
      }
    }
    EngineRun run(std::move(groups), pace, clock, &out);
    if (engine == 0) {
      FirstEngine first(operations ? &by_operation : nullptr, &out);
      run.Run(arrivals, 0, layout.replicas,
              [&](const EngineRun::Steps& steps) { first.Add(steps); });
    } else {
      run.Run(arrivals, engine, layout.replicas, {});
    }
    busy += run.busy();
    request_seconds += run.request_seconds();
    out.seconds = std::max(out.seconds, run.now());
    out.cached_tokens += run.cached_tokens();
  }
  out.requests = std::ssize(arrivals);
  out.output_rate = out.seconds > 0 ? tokens / out.seconds : 0;
  out.busy = out.seconds > 0 ? busy / out.seconds / layout.replicas : 0;
  out.running = out.seconds > 0 ? request_seconds / out.seconds : 0;
  out.uneven = out.steps > 0 ? out.uneven / static_cast<double>(out.steps) : 0;
  out.ttft = Of(latencies.ttft);
  out.itl = Of(latencies.itl);
  out.latency = Of(latencies.whole);
  return out;
}

std::string SimulationText(const Evaluation& layout, const Simulation& s) {
  const auto line = [](const char* name, const Percentiles& p) {
    return fmt::format("{:<22} {:>10.1f} {:>10.1f} {:>10.1f}\n", name, 1e3 * p.p50, 1e3 * p.p90,
                       1e3 * p.p99);
  };
  return fmt::format(
             "{}, {} engine{}: {} requests in {:.1f} s, {} steps\noutput {:.0f} tokens/s; engines "
             "are busy {:.0f} % of the time; {:.1f} requests run on average; at most {} wait in an "
             "engine; groups are idle in {:.1f} % of steps\n",
             layout.layout.Name(), layout.replicas, layout.replicas > 1 ? "s" : "", s.requests,
             s.seconds, s.steps, s.output_rate, 100 * s.busy, s.running, s.most_waiting,
             100 * s.uneven) +
         fmt::format("{:<22} {:>10} {:>10} {:>10}\n", "ms", "p50", "p90", "p99") +
         line("time to first token", s.ttft) + line("time between tokens", s.itl) +
         line("latency", s.latency) +
         (s.cached_tokens > 0 ? fmt::format("{} prompt tokens were cached\n", s.cached_tokens)
                              : "");
}

std::string SimulationTrace(const Simulation& s) {
  std::string out = "{\"traceEvents\": [";
  const auto add = [&](const std::string& name, int pid, int tid, double start, double seconds,
                       const std::string& args) {
    out += fmt::format(
        "{}\n{{\"name\": \"{}\", \"ph\": \"X\", \"pid\": {}, \"tid\": {}, \"ts\": {:.2f}, "
        "\"dur\": {:.2f}, \"args\": {{{}}}}}",
        out.ends_with("[") ? "" : ",", name, pid, tid, 1e6 * start, 1e6 * seconds, args);
  };
  for (const Simulation::Step& step : s.first_engine)
    add(step.prompt_rows > 0 ? "prefill" : "decode", 0, 0, step.start, step.seconds,
        fmt::format("\"prompt rows\": {}, \"decode rows\": {}", step.prompt_rows,
                    step.decode_rows));
  for (const OperationSpan& span : s.operations) {
    const schedule::Operation& o = span.operation;
    const bool forward = o.kind == schedule::Kind::kForward;
    add(forward ? Name(o.phase) : Name(o.kind), 1, span.rank, span.start, span.seconds,
        forward ? fmt::format("\"micro_batch\": {}, \"layer\": {}", o.micro_batch, o.layer)
                : fmt::format("\"micro_batch\": {}", o.micro_batch));
  }
  return out + "\n]}\n";
}

}  // namespace switchyard::plan
