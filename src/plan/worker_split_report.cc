// The answers of `plan --disaggregate` as text and JSON.
#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/format.h"
#include "core/json.h"
#include "plan/report.h"
#include "plan/worker_split.h"

namespace switchyard::plan {
namespace {

using nlohmann::ordered_json;

constexpr int kPrefillPort = 30001, kDecodePort = 30002, kRouterPort = 30000;
constexpr int kBootstrapPort = 8998;

std::string Unit(const Question& q) { return q.cluster.cuda ? "GPU" : "host"; }

std::string Row(const Question& q, int place, const Split& s) {
  return fmt::format(
      "{:>4}  {:<58} {:>5} {:>8.2f} {:>8.0f} {:>8.0f} {:>9.0f} {:>9.0f} {:>8.1f} "
      "{:>9}\n",
      place, s.layout.Name(), s.units(), s.requests, 100 * s.used_prefill, 100 * s.used_decode,
      s.per_unit, 1e3 * s.ttft, 1e3 * s.itl,
      q.load.price > 0 ? fmt::format("{:.2f}", s.cost) : "-");
}

// What limits the rate of all workers.
std::string Binds(const Question& q, const Split& s) {
  if (q.load.rate > 0)
    return fmt::format(
        "the asked rate uses {:.0f} % of the prefill workers and {:.0f} % of the "
        "decode workers",
        100 * s.used_prefill, 100 * s.used_decode);
  const bool prompts = s.used_prefill > s.used_decode;
  return fmt::format("the {} workers limit the rate; the {} workers are used {:.0f} %",
                     prompts ? "prefill" : "decode", prompts ? "decode" : "prefill",
                     100 * std::min(s.used_prefill, s.used_decode));
}

std::string Details(const Question& q, const Split& s) {
  const WorkerPlan &p = s.prefill, &d = s.decode;
  std::string text = fmt::format("\n{}", s.layout.Name());
  if (!s.refused.empty()) return text + ": " + s.refused + "\n";
  text += fmt::format("\n prefill worker, {}", s.layout.prefill.Name());
  Question prompts = q;
  prompts.load.output = 1;  // a prompt leaves the worker with its first token
  text += MemoryDetails(prompts, p.evaluation);
  text += fmt::format("\n  step of {:.0f} prompt tokens, ms: {:.2f} ={}", p.rows,
                      1e3 * p.step.seconds, StepText(p.step));
  text += fmt::format("\n  {:.2f} requests/s and {:.0f} prompt tokens/s at most", p.requests,
                      p.requests * static_cast<double>(q.load.input));
  text += fmt::format("\n decode worker, {}", s.layout.decode.Name());
  text += MemoryDetails(q, d.evaluation);
  text += fmt::format("\n  step of {:.0f} requests, ms: {:.2f} ={}", d.running,
                      1e3 * d.step.seconds, StepText(d.step));
  text += fmt::format(
      "\n transfer: {:.1f} KB of cache for a prompt token; {:.1f} ms for a prompt at {:.1f} GB/s, "
      "of which {:.2f} ms follow the prompt",
      s.kv_bytes / 1e3, 1e3 * s.transfer, std::min(p.link, d.link) / 1e9, 1e3 * s.exposed);
  text +=
      fmt::format("\n TTFT {:.0f} ms = prompt {:.0f}, wait {:.0f}, transfer {:.1f}; ITL {:.2f} ms",
                  1e3 * s.ttft, 1e3 * p.alone, 1e3 * (s.ttft - p.alone - s.exposed),
                  1e3 * s.exposed, 1e3 * s.itl);
  text += fmt::format(
      "\n {:.2f} requests/s, {:.0f} output tokens/s for each {}, {:.0f} for each node; {} {}s",
      s.requests, s.per_unit, Unit(q), s.per_node, s.units(), Unit(q));
  if (s.cost > 0) text += fmt::format("; {:.3f} for a million output tokens", s.cost);
  return text + "\n " + Binds(q, s) + "\n";
}

// The same load on engines whose ranks run prompts and decode steps.
std::string Together(const Question& q, const Split& s) {
  Question own = q;
  if (!q.cluster.cuda) {
    own.cluster.nodes = 1;
    own.load.rate /= q.cluster.nodes;
  }
  own.stages = 1;
  try {
    const Evaluation best = Search(own).front();
    return fmt::format(
        " without separate workers, {}: {:.0f} output tokens/s for each {}, TTFT {:.0f} ms, ITL "
        "{:.2f} ms, instead of {:.0f}, {:.0f} and {:.2f}\n",
        best.layout.Name(), best.per_device, Unit(q), 1e3 * best.best->ttft, 1e3 * best.best->itl,
        s.per_unit, 1e3 * s.ttft, 1e3 * s.itl);
  } catch (const Error& error) {
    return fmt::format(" without separate workers: {}\n", error.what());
  }
}

std::string Refusals(const Split& s) {
  for (const WorkerPlan* worker : {&s.prefill, &s.decode})
    if (!worker->engine_refuses.empty())
      return fmt::format("\nserve refuses these workers, so the figures are on paper: {}\n",
                         worker->engine_refuses);
  return "";
}

ordered_json StepJson(const StepTime& time) {
  ordered_json parts;
  for (size_t i = 0; i < time.work.parts.size(); ++i)
    if (time.work.parts[i] > 0) parts[Name(static_cast<Part>(i))] = time.work.parts[i];
  return {{"seconds", time.seconds}, {"parts", parts}};
}

ordered_json WorkerJson(const WorkerPlan& w, int workers) {
  ordered_json out = {{"layout", w.evaluation.layout.Name()},
                      {"workers", workers},
                      {"devices", w.units},
                      {"most_requests_per_second", w.requests},
                      {"running", w.running},
                      {"cache_tokens", w.evaluation.cache_tokens},
                      {"memory_per_rank_bytes", w.evaluation.largest().total()},
                      {"step", StepJson(w.step)}};
  if (!w.engine_refuses.empty()) out["engine_refuses"] = w.engine_refuses;
  return out;
}

}  // namespace

std::string SplitCommands(const Question& q, const Split& s) {
  const std::string refusals = Refusals(s);
  if (!refusals.empty()) return refusals;
  // The router and the other workers are on other hosts.
  std::string text = fmt::format(
      "\n{} --host 0.0.0.0 --port {} --disaggregation-mode prefill "
      "--disaggregation-bootstrap-port {}\n",
      ServeCommand(q, s.prefill.evaluation), kPrefillPort, kBootstrapPort);
  text += fmt::format("{} --host 0.0.0.0 --port {} --disaggregation-mode decode\n",
                      ServeCommand(q, s.decode.evaluation), kDecodePort);
  std::string route = fmt::format("switchyard route --port {}", kRouterPort);
  for (int i = 1; i <= s.layout.prefill_workers; ++i)
    route += fmt::format(" --prefill http://PREFILL{}:{} {}", i, kPrefillPort, kBootstrapPort);
  for (int i = 1; i <= s.layout.decode_workers; ++i)
    route += fmt::format(" --decode http://DECODE{}:{}", i, kDecodePort);
  return text + route + "\n" +
         fmt::format(
             "(start {} of the first command and {} of the second one; PREFILL1, DECODE1 "
             "and so on are their hosts){}\n",
             s.layout.prefill_workers, s.layout.decode_workers,
             q.cluster.cuda ? "\n(workers of one host need ports and --base-gpu-id of their own; "
                              "if all workers are on one host, add "
                              "--disaggregation-transfer-backend shm)"
                            : "");
}

std::string SplitReport(const Question& q, const std::vector<Split>& ranked, int rows) {
  std::string text = Assumptions(q, "prompts and decode steps have separate workers");
  const auto heads = [](auto... names) {
    return fmt::format("{:>4}  {:<58} {:>5} {:>8} {:>8} {:>8} {:>9} {:>9} {:>8} {:>9}\n", names...);
  };
  text += "\n" + heads("", "prefill workers/decode workers", Unit(q) + "s", "requests", "prefill",
                       "decode", "out/s per", "TTFT", "ITL", "cost per");
  text += heads("", "", "", "per s", "used %", "used %", Unit(q), "ms", "ms", "M out");
  int place = 0;
  for (const Split& s : ranked)
    if (s.refused.empty() && place < rows) text += Row(q, ++place, s);
  const Split& first = ranked.front();
  return text + Details(q, first) + Together(q, first) + SplitCommands(q, first);
}

std::string SplitJson(const Question& q, const std::vector<Split>& ranked) {
  ordered_json splits = ordered_json::array();
  for (const Split& s : ranked) {
    ordered_json entry = {{"layout", s.layout.Name()}};
    if (!s.refused.empty()) {
      entry["refused"] = s.refused;
    } else {
      entry["requests_per_second"] = s.requests;
      entry["devices"] = s.units();
      entry["ttft"] = s.ttft;
      entry["itl"] = s.itl;
      entry["transfer_seconds"] = s.transfer;
      entry["transfer_after_prompt_seconds"] = s.exposed;
      entry["kv_bytes_per_token"] = s.kv_bytes;
      entry["output_tokens_per_second_per_device"] = s.per_unit;
      entry["output_tokens_per_second_per_node"] = s.per_node;
      entry["prefill"] = WorkerJson(s.prefill, s.layout.prefill_workers);
      entry["decode"] = WorkerJson(s.decode, s.layout.decode_workers);
      if (s.cost > 0) entry["cost_per_million_output_tokens"] = s.cost;
    }
    splits.push_back(std::move(entry));
  }
  const ordered_json out = {
      {"costs",
       {{"name", q.table.name}, {"source", q.table.source}, {"measured", q.table.measured}}},
      {"input_len", q.load.input},
      {"output_len", q.load.output},
      {"splits", splits}};
  return out.dump(1) + "\n";
}

std::string ExplainSplit(const Question& q, const SplitLayout& layout) {
  const Split s = EvaluateSplit(q, layout);
  std::string text = fmt::format("{}: ", s.layout.Name());
  if (!s.refused.empty()) return text + s.refused + "\n";
  const std::string refusals = Refusals(s);
  text += refusals.empty() ? "the engine accepts the workers\n" : "on paper\n";
  const WorkerPlan &p = s.prefill, &d = s.decode;
  int number = 0;
  const auto ask = [&](const std::string& question) {
    text += fmt::format("\n{}. {}\n", ++number, question);
  };
  const auto tell = [&](const std::string& answer) { text += "   " + answer + "\n"; };
  ask("How many requests does a prefill worker serve?");
  tell(
      fmt::format("A step of {:.0f} prompt tokens takes {:.2f} ms: {:.0f} tokens/s, {:.2f} "
                  "requests/s on {} {}s.",
                  p.rows, 1e3 * p.step.seconds, p.rows / p.step.seconds,
                  p.rows / p.step.seconds / static_cast<double>(q.load.input), p.units, Unit(q)));
  ask("Does the link carry the cache of the prompts?");
  tell(
      fmt::format("A prompt token has {:.1f} KB of cache. A prefill worker sends up to {:.1f} "
                  "GB/s: {:.2f} requests/s. A decode worker receives up to {:.1f} GB/s.",
                  s.kv_bytes / 1e3, p.link / 1e9,
                  p.link / (static_cast<double>(q.load.input) * s.kv_bytes), d.link / 1e9));
  tell(
      fmt::format("The rows of a prompt take {:.1f} ms; {:.2f} ms of it follow the prompt, the "
                  "rest is sent while later layers compute.",
                  1e3 * s.transfer, 1e3 * s.exposed));
  ask("How many requests does a decode worker serve?");
  tell(fmt::format(
      "{:.0f} concurrent requests (its cache holds {:.0f}): a step takes {:.2f} ms, "
      "{:.2f} requests/s on {} {}s. No prompt delays its steps.",
      d.running, d.evaluation.most_requests, 1e3 * d.step.seconds, d.requests, d.units, Unit(q)));
  ask("How many workers of each kind?");
  tell(fmt::format("{} and {}: {}. They take {} of {} {}s.", s.layout.prefill_workers,
                   s.layout.decode_workers, Binds(q, s), s.units(),
                   q.cluster.cuda ? q.cluster.devices() : q.cluster.nodes, Unit(q)));
  ask("Is it better than prompts and decode steps on the same ranks?");
  tell(Together(q, s).substr(1));
  return text + Details(q, s) + SplitCommands(q, s);
}

}  // namespace switchyard::plan
