// The results of a simulation as text, Chrome trace and SVG.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/format.h"
#include "plan/simulate.h"

namespace switchyard::plan {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

// One line for at most kLines ranges of consecutive layers.
std::string ImbalanceOfLayers(const Evaluation& layout, const std::vector<double>& imbalance) {
  constexpr size_t kRanges = 16;
  std::vector<size_t> moe;  // index in the model
  const std::vector<LayerConfig>& layers = layout.plan.model.layers;
  for (size_t i = 0; i < layers.size(); ++i)
    if (layers[i].moe) moe.push_back(i);
  std::string text = "rows of the most loaded rank / mean, by layer:";
  const size_t of_range = (imbalance.size() + kRanges - 1) / kRanges;
  for (size_t begin = 0; begin < imbalance.size(); begin += of_range) {
    const size_t end = std::min(begin + of_range, imbalance.size());
    const double mean = std::accumulate(imbalance.begin() + static_cast<std::ptrdiff_t>(begin),
                                        imbalance.begin() + static_cast<std::ptrdiff_t>(end), 0.0) /
                        static_cast<double>(end - begin);
    text += end - begin == 1 ? fmt::format(" {}: {:.2f}", moe[begin], mean)
                             : fmt::format(" {}-{}: {:.2f}", moe[begin], moe[end - 1], mean);
    if (end < imbalance.size()) text += ",";
  }
  return text + "\n";
}

std::string ExpertText(const Evaluation& layout, const Simulation& s) {
  if (s.expert_loads.empty() || s.experts.imbalance.empty()) return {};
  const std::vector<double>& imbalance = s.experts.imbalance;
  const double mean = std::accumulate(imbalance.begin(), imbalance.end(), 0.0) /
                      static_cast<double>(imbalance.size());
  const auto [least, most] = std::ranges::minmax(imbalance);
  std::string text = fmt::format(
      "expert loads {}: the most loaded rank has {:.2f} times the mean rows ({:.2f} to {:.2f} in a "
      "layer), balancedness {:.3f}\n",
      s.expert_loads, mean, least, most, s.experts.balancedness);
  text += ImbalanceOfLayers(layout, imbalance);
  if (s.rebalances > 0)
    text += fmt::format("{} rebalances moved {:.1f} GiB of experts; those of the first engine:\n",
                        s.rebalances, s.moved_bytes / kGiB);
  constexpr size_t kLines = 10;
  for (size_t i = 0; i < std::min(kLines, s.experts.rebalances.size()); ++i) {
    const Rebalance& r = s.experts.rebalances[i];
    text += fmt::format(
        "  at {:.1f} s ({}): {} layers, balancedness {:.3f} -> {}, {} experts received ({} from "
        "other hosts), {:.1f} GiB, {}, steps longer by {:.1f} ms in all\n",
        r.start, r.trigger, r.layers, r.before,
        r.end > 0 ? fmt::format("{:.3f}", r.after) : std::string("?"), r.same_node + r.other_node,
        r.other_node, r.bytes / kGiB,
        r.end > 0 ? fmt::format("{:.1f} s", r.end - r.start) : std::string("not ended"),
        1e3 * r.added_seconds);
  }
  if (s.experts.rebalances.size() > kLines)
    text += fmt::format("  and {} more\n", s.experts.rebalances.size() - kLines);
  return text;
}

std::string FailureText(const Simulation& s) {
  if (s.recovery.empty()) return {};
  const FailureFigures& f = s.failures;
  return fmt::format(
      "{} ranks ended ({}): engines paused for {:.2f} s in all, at most {:.2f} s; {:.2f} s of "
      "steps "
      "were aborted, {} rows computed again; ranks were absent for {:.2f} s; {} requests lost\n",
      f.failures, s.recovery, f.pause_seconds, f.longest_pause, f.aborted_seconds, f.redone_rows,
      f.absent_seconds, s.lost);
}

std::string StageText(const Simulation& s) {
  if (s.stage_busy.empty()) return {};
  std::string text = "pipeline stages are busy";
  for (size_t i = 0; i < s.stage_busy.size(); ++i)
    text += fmt::format("{} {:.0f}", i > 0 ? "," : "", 100 * s.stage_busy[i]);
  return text + fmt::format(" % of the time; at most {} passes are in flight\n", s.most_in_flight);
}

}  // namespace

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
         StageText(s) + fmt::format("{:<22} {:>10} {:>10} {:>10}\n", "ms", "p50", "p90", "p99") +
         line("time to first token", s.ttft) + line("time between tokens", s.itl) +
         line("latency", s.latency) +
         (s.cached_tokens > 0 ? fmt::format("{} prompt tokens were cached\n", s.cached_tokens)
                              : "") +
         ExpertText(layout, s) + FailureText(s);
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
    // With stages there are no pauses and rebalances, which have threads 1 and 2 below.
    add(step.prompt_rows > 0 ? "prefill" : "decode", 0, step.stage, step.start, step.seconds,
        fmt::format("\"prompt rows\": {}, \"decode rows\": {}", step.prompt_rows,
                    step.decode_rows));
  for (const Simulation::Pause& pause : s.pauses)
    add("pause", 0, 1, pause.start, pause.seconds, fmt::format("\"reason\": \"{}\"", pause.reason));
  for (const Rebalance& r : s.experts.rebalances)
    add("rebalance", 0, 2, r.start, std::max(0.0, r.end - r.start),
        fmt::format("\"layers\": {}, \"before\": {:.4f}, \"after\": {:.4f}, \"bytes\": {:.0f}",
                    r.layers, r.before, r.after, r.bytes));
  for (const auto& [seconds, balancedness] : s.experts.changes)
    out += fmt::format(
        "{}\n{{\"name\": \"balancedness\", \"ph\": \"C\", \"pid\": 0, \"tid\": 0, \"ts\": {:.2f}, "
        "\"args\": {{\"mean / max\": {:.4f}}}}}",
        out.ends_with("[") ? "" : ",", 1e6 * seconds, balancedness);
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
