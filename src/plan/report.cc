#include "plan/report.h"

#include <algorithm>
#include <cmath>

#include "core/format.h"
#include "core/json.h"

namespace switchyard::plan {
namespace {

using nlohmann::ordered_json;

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

std::string Unit(const Question& q) { return q.cluster.cuda ? "GPU" : "host"; }

std::string Row(const Question& q, int place, const Evaluation& e) {
  const Point& p = *e.best;
  return fmt::format(
      "{:>4}  {:<34} {:>7} {:>8.1f} {:>10.0f} {:>8.0f} {:>10.0f} {:>9.2f} {:>9.0f} "
      "{:>9.0f} {:>8.1f} {:>9}\n",
      place, e.layout.Name(), e.replicas, e.largest().memory.weights.total() / kGiB, e.cache_tokens,
      p.running * e.replicas, p.prefill_rate * e.replicas, 1e3 * p.decode.seconds, e.per_device,
      1e3 * p.ttft, 1e3 * p.itl, q.load.price > 0 ? fmt::format("{:.2f}", e.cost) : "-");
}

// Explains why `a` ranks before `b`: their latency or rate, the part of a decode step in which `a`
// gains most, and the number of concurrent requests.
std::string Compare(const Question& q, const Evaluation& a, const Evaluation& b) {
  const bool latency = q.load.batch > 0 || q.load.rate > 0;
  const Point &p = *a.best, &o = *b.best;
  std::string text =
      latency ? fmt::format("{:.2f} against {:.2f} ms between tokens", 1e3 * p.itl, 1e3 * o.itl)
              : fmt::format("{:.0f} against {:.0f} output tokens/s for each device", a.per_device,
                            b.per_device);
  // Seconds of a decode step per request, so that batches of different sizes can be compared.
  const auto devices = [&](const Evaluation& e) {
    return (q.cluster.cuda ? e.layout.mesh.world() : 1) / e.best->running;
  };
  const double devices_a = devices(a), devices_b = devices(b);
  size_t part = 0;
  double most = -1;
  for (size_t i = 0; i < p.decode.work.parts.size(); ++i) {
    const double gain = o.decode.work.parts[i] * devices_b - p.decode.work.parts[i] * devices_a;
    if (gain > most) {
      most = gain;
      part = i;
    }
  }
  if (most > 0)
    text += fmt::format("; per token, {} takes {:.0f} instead of {:.0f} device-microseconds",
                        Name(static_cast<Part>(part)), 1e6 * p.decode.work.parts[part] * devices_a,
                        1e6 * o.decode.work.parts[part] * devices_b);
  if (p.running > 1.2 * o.running && a.layout.mesh.world() == b.layout.mesh.world())
    text +=
        fmt::format("; it runs {:.0f} instead of {:.0f} concurrent requests", p.running, o.running);
  return text;
}

ordered_json StepJson(const StepTime& time) {
  ordered_json parts;
  for (size_t i = 0; i < time.work.parts.size(); ++i)
    if (time.work.parts[i] > 0) parts[Name(static_cast<Part>(i))] = time.work.parts[i];
  return {
      {"seconds", time.seconds}, {"overlapped", std::max(0.0, time.hidden())}, {"parts", parts}};
}

ordered_json PointJson(const Evaluation& e, const Point& p) {
  return {{"running", p.running * e.replicas},
          {"ttft", p.ttft},
          {"itl", p.itl},
          {"requests_per_second", p.requests * e.replicas},
          {"output_tokens_per_second", p.output_rate * e.replicas},
          {"prefill_tokens_per_second", p.prefill_rate * e.replicas},
          {"prefill", StepJson(p.prefill)},
          {"decode", StepJson(p.decode)}};
}

ordered_json MemoryJson(const StageMemory& stage) {
  const RankMemory& m = stage.memory;
  ordered_json weights;
  for (const auto& [name, bytes] : m.weights.Parts())
    if (bytes > 0) weights[name] = bytes;
  return {{"weights", weights},
          {"kv_per_token", m.kv_per_token},
          {"kv", stage.cache},
          {"states", m.states},
          {"activations", m.activations},
          {"experts_rows", m.moe},
          {"logits", m.logits},
          {"tables", m.tables},
          {"scratch", m.scratch},
          {"exchange", m.exchange}};
}

ordered_json StagesJson(const Evaluation& e) {
  ordered_json stages = ordered_json::array();
  for (const StageMemory& stage : e.stages)
    stages.push_back({{"layers", {stage.layers.begin, stage.layers.end}},
                      {"memory_per_rank", MemoryJson(stage)}});
  return stages;
}

// Memory of a rank of one stage, by kind.
std::string MemoryText(const StageMemory& stage) {
  const RankMemory& m = stage.memory;
  std::string text;
  for (const auto& [name, bytes] : m.weights.Parts())
    if (bytes > 0.005 * kGiB) text += fmt::format("  {} {:.2f}", name, bytes / kGiB);
  const std::string states =
      m.states > 0 ? fmt::format("  recurrent states {:.2f}", m.states / kGiB) : "";
  return text + fmt::format(
                    "  cache {:.2f}{}  activations {:.2f}  experts' rows {:.2f}  logits "
                    "{:.2f}  exchange {:.2f}",
                    stage.cache / kGiB, states, m.activations / kGiB, m.moe / kGiB, m.logits / kGiB,
                    m.exchange / kGiB);
}

// The flags that shape the memory plan, and those that all layouts share.
std::string SharedFlags(const EngineConfig& c, const Layout& layout) {
  const EngineConfig defaults;
  std::string flags;
  if (c.dtype != "auto") flags += " --dtype " + c.dtype;
  if (c.kv_cache_dtype != "auto") flags += " --kv-cache-dtype " + c.kv_cache_dtype;
  if (!c.quantization.method.empty()) flags += " --quantization " + c.quantization.method;
  if (!c.quantization.rules.empty())
    flags += fmt::format(" --quantization-config '{}'", c.quantization.rules);
  if (c.quantization.layout != "auto") flags += " --cpu-weight-layout " + c.quantization.layout;
  if (!c.model_override_args.empty())
    flags += fmt::format(" --json-model-override-args '{}'", c.model_override_args);
  if (c.context_length > 0) flags += fmt::format(" --context-length {}", c.context_length);
  if (c.mem_fraction_static != defaults.mem_fraction_static)
    flags += fmt::format(" --mem-fraction-static {}", c.mem_fraction_static);
  if (c.page_size != defaults.page_size) flags += fmt::format(" --page-size {}", c.page_size);
  if (layout.chunk == 0 && c.chunked_prefill_size != 0)
    flags += fmt::format(" --chunked-prefill-size {}", c.chunked_prefill_size);
  if (layout.mesh.pp > 1 && !c.pp_layer_partition.empty())
    flags += " --pp-layer-partition " + c.pp_layer_partition;
  return flags;
}

}  // namespace

std::string Assumptions(const Question& q, const std::string& ranks) {
  const Cluster& c = q.cluster;
  std::string text =
      fmt::format("model: {}, {} layers", q.model.architecture, q.model.num_layers());
  if (q.model.has_moe())
    text += fmt::format(", {} experts, top-{}", q.model.moe->router.num_experts,
                        q.model.moe->router.top_k);
  text += c.cuda ? fmt::format("\ncluster: {} node{} of {} x {}, {:.1f} GiB each", c.nodes,
                               c.nodes > 1 ? "s" : "", c.per_node, c.card, c.memory / kGiB)
                 : fmt::format("\nhost: {} CPUs, {:.1f} GiB", c.cpus, c.memory / kGiB);
  if (c.nics > 0) text += fmt::format(", {} NICs of {:.0f} Gbit/s a node", c.nics, c.nic_gbit);
  text += fmt::format("\ncosts: {}: {}", q.table.name, q.table.source);
  text += fmt::format("\nload: {} prompt and {} output tokens", q.load.input, q.load.output);
  if (q.load.rate > 0) text += fmt::format(", {} requests/s", q.load.rate);
  if (q.load.batch > 0) text += fmt::format(", {:.0f} concurrent requests", q.load.batch);
  if (q.load.max_ttft > 0) text += fmt::format(", TTFT at most {:.0f} ms", 1e3 * q.load.max_ttft);
  if (q.load.max_itl > 0) text += fmt::format(", ITL at most {:.1f} ms", 1e3 * q.load.max_itl);
  text += fmt::format(
      "\nassumed: routing is random and even, and in addition the most loaded rank has {:.2f} "
      "times the mean load; {}no prefix is cached; {}\n",
      q.load.imbalance,
      q.load.correlation > 0
          ? fmt::format("the experts of two tokens of a prompt have a correlation "
                        "of {:.2f}; ",
                        q.load.correlation)
          : "",
      ranks);
  if (c.nics > 0)
    text += fmt::format(
        "assumed: a rank sends at {:.0f} % of the rate of its share of the NICs, and an exchange "
        "between hosts has a fixed cost of {:.0f} us\n",
        100 * q.table.network_share, 1e6 * q.table.network.seconds);
  if (q.model.has_moe())
    text +=
        "assumed: combine returns an output for each expert of a token; two-batch overlap hides an "
        "exchange as far as the other micro-batch computes meanwhile\n";
  return text;
}

std::string StepText(const StepTime& time) {
  std::string text;
  for (size_t i = 0; i < time.work.parts.size(); ++i) {
    const double seconds = time.work.parts[i];
    if (seconds <= 0) continue;
    text += fmt::format(" {} {:.2f}", Name(static_cast<Part>(i)), 1e3 * seconds);
  }
  if (time.hidden() > 1e-9) text += fmt::format(" overlapped -{:.2f}", 1e3 * time.hidden());
  return text;
}

std::string ServeCommand(const Question& q, const Evaluation& e) {
  const EngineConfig& c = q.config;
  std::string command =
      fmt::format("switchyard serve --model-path {}{}", c.model_path.string(), FlagsOf(e.layout));
  if (!q.cluster.cuda) command += " --device cpu";
  command += SharedFlags(c, e.layout);
  if (e.accepted) {
    // The memory plan depends on this limit, so the command repeats the plan's value.
    command +=
        fmt::format(" --max-running-requests {}", e.plan.max_running_requests * e.layout.mesh.dp);
  }
  const int nodes = std::max(1, e.layout.mesh.world() / std::max(1, q.cluster.per_node));
  if (nodes > 1)
    command += fmt::format(" --nnodes {} --node-rank 0 --dist-init-addr HOST:PORT", nodes);
  return command;
}

std::string MemoryDetails(const Question& q, const Evaluation& e) {
  std::string text;
  if (e.stages.size() == 1) text += "\n  memory of a rank, GiB:" + MemoryText(e.stages.front());
  for (size_t i = 0; e.stages.size() > 1 && i < e.stages.size(); ++i)
    text += fmt::format("\n  memory of a rank of stage {} (layers {} to {}), GiB: {:.2f} ={}", i,
                        e.stages[i].layers.begin, e.stages[i].layers.end - 1,
                        e.stages[i].total() / kGiB, MemoryText(e.stages[i]));
  const double planned = e.largest().total();
  if (q.cluster.cuda)
    text += fmt::format(
        "\n  {:.1f} of {:.1f} GiB; the rest is for graphs, NCCL and memory that other ranks map "
        "(--mem-fraction-static {})",
        planned / kGiB, e.memory_total / kGiB, q.config.mem_fraction_static);
  text += fmt::format(
      "\n  the cache of an engine: {:.0f} tokens, {:.0f} requests of {} tokens; "
      "longest context {:.0f}",
      e.cache_tokens, e.most_requests, q.load.input + q.load.output, e.longest_context);
  return text;
}

std::string Details(const Question& q, const Evaluation& e) {
  std::string text = fmt::format("\n{}", e.layout.Name());
  if (!e.refused.empty()) return text + ": " + e.refused + "\n";
  text += MemoryDetails(q, e);
  const Point& p = *e.best;
  text += fmt::format("\n  prefill step of {:.0f} tokens, ms: {:.2f} ={}", p.prefill_rows,
                      1e3 * p.prefill.seconds, StepText(p.prefill));
  text += fmt::format("\n  decode step of {:.0f} requests, ms: {:.2f} ={}", p.running,
                      1e3 * p.decode.seconds, StepText(p.decode));
  const double node = e.per_device * (q.cluster.cuda ? q.cluster.per_node : 1);
  text += fmt::format(
      "\n  output {:.0f} tokens/s for each {}, {:.0f} for each node; TTFT {:.0f} ms, "
      "ITL {:.2f} ms",
      e.per_device, Unit(q), node, 1e3 * p.ttft, 1e3 * p.itl);
  if (e.cost > 0) text += fmt::format("; {:.3f} for a million output tokens", e.cost);
  return text + "\n  " + e.binds + "\n";
}

std::string Report(const Question& q, const std::vector<Evaluation>& ranked, int rows) {
  std::string text = Assumptions(q, "prefill and decode share the ranks");
  text += fmt::format(
      "\n{:>4}  {:<34} {:>7} {:>8} {:>10} {:>8} {:>10} {:>9} {:>9} {:>9} {:>8} "
      "{:>9}\n",
      "", "layout", "engines", "weights", "cache", "running", "prefill", "decode", "out/s per",
      "TTFT", "ITL", "cost per");
  text += fmt::format(
      "{:>4}  {:<34} {:>7} {:>8} {:>10} {:>8} {:>10} {:>9} {:>9} {:>9} {:>8} "
      "{:>9}\n",
      "", "", "", "GiB", "tokens", "requests", "tokens/s", "ms", Unit(q), "ms", "ms", "M out");
  int place = 0;
  for (const Evaluation& e : ranked)
    if (e.best && place < rows) text += Row(q, ++place, e);
  const auto count = [&](auto test) { return std::ranges::count_if(ranked, test); };
  text += fmt::format("{} layouts fit and meet the load, {} do not, {} are refused by the engine\n",
                      count([](const Evaluation& e) { return e.best.has_value(); }),
                      count([](const Evaluation& e) { return e.accepted && !e.best; }),
                      count([](const Evaluation& e) { return !e.accepted; }));
  const Evaluation& first = ranked.front();
  text += Details(q, first);
  // The reasons why the first layout precedes the next three that divide attention or experts
  // differently, or use another exchange.
  int shown = 0;
  for (const Evaluation& e : ranked) {
    const bool other = e.layout.mesh.tp != first.layout.mesh.tp ||
                       e.layout.mesh.pp != first.layout.mesh.pp ||
                       e.layout.mesh.ep != first.layout.mesh.ep ||
                       e.layout.mesh.dp != first.layout.mesh.dp || e.layout.a2a != first.layout.a2a;
    if (!e.best || !other || shown == 3) continue;
    ++shown;
    text += fmt::format("  before {}: {}\n", e.layout.Name(), Compare(q, first, e));
  }
  text += fmt::format("\n{}{}\n", ServeCommand(q, first),
                      first.replicas > 1
                          ? fmt::format("\n(start {} of these behind a router, each with GPUs of "
                                        "its own: --base-gpu-id)",
                                        first.replicas)
                          : "");
  return text;
}

std::string ReportJson(const Question& q, const std::vector<Evaluation>& ranked) {
  ordered_json layouts = ordered_json::array();
  for (const Evaluation& e : ranked) {
    ordered_json entry = {{"layout", e.layout.Name()}, {"accepted", e.accepted}};
    if (!e.refused.empty()) entry["refused"] = e.refused;
    if (e.accepted) {
      entry["engines"] = e.replicas;
      entry["memory_per_rank"] = MemoryJson(e.largest());
      if (e.stages.size() > 1) entry["stages"] = StagesJson(e);
      entry["cache_tokens"] = e.cache_tokens;
      entry["most_requests"] = e.most_requests;
      entry["longest_context"] = e.longest_context;
    }
    if (e.best) {
      entry["output_tokens_per_second_per_device"] = e.per_device;
      entry["best"] = PointJson(e, *e.best);
      entry["binds"] = e.binds;
      entry["command"] = ServeCommand(q, e);
      if (e.cost > 0) entry["cost_per_million_output_tokens"] = e.cost;
    }
    layouts.push_back(std::move(entry));
  }
  const ordered_json out = {
      {"costs",
       {{"name", q.table.name}, {"source", q.table.source}, {"measured", q.table.measured}}},
      {"input_len", q.load.input},
      {"output_len", q.load.output},
      {"imbalance", q.load.imbalance},
      {"token_correlation", q.load.correlation},
      {"layouts", layouts}};
  return out.dump(1) + "\n";
}

}  // namespace switchyard::plan
