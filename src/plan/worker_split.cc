#include "plan/worker_split.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <optional>
#include <tuple>
#include <utility>

#include "core/error.h"
#include "model/kv_storage.h"

namespace switchyard::plan {
namespace {

constexpr size_t kKept = 8;         // layouts of each kind that a search combines
constexpr int kMostWorkers = 4096;  // of each kind, as for --prefill-workers

// "2xtp4": the number and the layout.
Layout ParseWorkers(const std::string& part, int* workers) {
  int number = 0;
  const char* end_of_part = part.data() + part.size();
  const auto [end, error] = std::from_chars(part.data(), end_of_part, number);
  if (error == std::errc::invalid_argument) return ParseLayout(part);
  if (number < 1 || number > kMostWorkers || end == end_of_part || *end != 'x')
    throw Invalid("workers {}: want a number of 1 to {} and a layout, like 2xtp4-ep4", part,
                  kMostWorkers);
  *workers = number;
  return ParseLayout(std::string(end + 1, end_of_part));
}

int Units(const Cluster& c) { return c.cuda ? c.devices() : c.nodes; }

// Devices of a cluster that one worker sees: on CPUs one host.
Question QuestionOfWorker(const Question& q) {
  Question own = q;
  if (!q.cluster.cuda) own.cluster.nodes = 1;
  own.stages = 1;
  return own;
}

void Check(const Question& q) {
  if (q.load.batch > 0)
    throw Invalid("--batch and --disaggregate exclude each other; set --rate, or neither");
  if (!q.cluster.cuda && q.cluster.nodes < 2)
    throw Invalid(
        "--disaggregate with --cpu: each worker has a host of its own; set --nodes to 2 "
        "or more, and --nics");
}

// Whether all workers fit the nodes. Workers of several nodes take whole nodes. The smaller workers
// use what the larger ones leave of a node.
bool Fits(const Cluster& c, std::pair<int, int> a, std::pair<int, int> b) {
  if (!c.cuda) return a.first + b.first <= c.nodes;
  if (a.second < b.second) std::swap(a, b);  // {workers, devices of each}
  const auto of_large = [&](int free_nodes, const std::pair<int, int>& w) {
    return w.second >= c.per_node ? free_nodes - w.first * w.second / c.per_node : free_nodes;
  };
  int nodes = of_large(c.nodes, a);
  if (b.second >= c.per_node) return of_large(nodes, b) >= 0;
  int small = 0;  // places of the smaller workers in nodes that have larger ones
  if (a.second < c.per_node) {
    const int each = c.per_node / a.second, whole = a.first / each, rest = a.first % each;
    small += whole * ((c.per_node - each * a.second) / b.second);
    nodes -= whole;
    if (rest > 0) {
      small += (c.per_node - rest * a.second) / b.second;
      --nodes;
    }
  }
  return nodes >= 0 && small + nodes * (c.per_node / b.second) >= b.first;
}

// Rows of the cache leave over the worker's share of its hosts' NICs, or over the links of its GPUs
// if the cluster is one host.
double LinkOf(const Question& q, const Layout& layout) {
  const Cluster& c = q.cluster;
  if (c.nodes == 1) return q.table.host.rate * layout.mesh.world();
  const double node = c.nics * c.nic_gbit * 1e9 / 8 * q.table.network_share;
  return c.cuda ? node * layout.mesh.world() / c.per_node : node;
}

double KvBytes(const Question& q, DType kv_dtype) {
  return static_cast<double>(KvStorage::BytesPerToken(q.model, Mesh(), kv_dtype));
}

// The plan with --disaggregation-mode. If the engine refuses only this mode, the figures are those
// of the layout without it.
WorkerPlan AdmitWorker(const Question& q, const Layout& layout, const std::string& mode) {
  Question own = QuestionOfWorker(q);
  own.config.disaggregation_mode = mode;
  WorkerPlan worker{.evaluation = Admit(own, layout),
                    .units = q.cluster.cuda ? layout.mesh.world() : 1,
                    .link = LinkOf(q, layout)};
  if (worker.evaluation.accepted) return worker;
  worker.engine_refuses = worker.evaluation.refused;
  own.config.disaggregation_mode = "null";
  worker.evaluation = Admit(own, layout);
  return worker;
}

WorkerPlan PrefillWorker(const Question& q, const Layout& layout) {
  Question prompts = q;
  prompts.load.output = 1;
  WorkerPlan w = AdmitWorker(prompts, layout, "prefill");
  const Evaluation& e = w.evaluation;
  if (!e.refused.empty()) return w;
  const LayoutCosts costs(q, layout, e.plan);
  const double dp = layout.mesh.dp;
  const auto input = static_cast<double>(q.load.input);
  const double chunk =
      dp *
      (e.plan.chunked_prefill_size < 0 ? input : static_cast<double>(e.plan.chunked_prefill_size));
  w.running = e.most_requests;
  w.rows = std::min(chunk, std::max(dp, e.most_requests) * input);
  w.step = costs.Prefill(w.rows, input);
  const double chunks = std::max(1.0, std::ceil(dp * input / chunk));
  w.alone = costs.PrefillSeconds(std::min(chunk, dp * input), input, chunks);
  w.requests =
      std::min(w.rows / w.step.seconds / input, w.link / (input * KvBytes(q, e.plan.kv_dtype)));
  return w;
}

// Sets the step of a decode worker with `running` requests.
void SetRunning(const Question& q, const LayoutCosts& costs, double running, WorkerPlan* w) {
  const auto input = static_cast<double>(q.load.input);
  const double steps = std::max<double>(1, static_cast<double>(q.load.output) - 1);
  w->running = running;
  w->step = costs.Decode(running, input + static_cast<double>(q.load.output) / 2);
  w->requests = running / (steps * w->step.seconds);
}

// The largest batch within the limit of latency; with `wanted` requests per second, the smallest
// one that sustains them.
WorkerPlan DecodeWorker(const Question& q, const Layout& layout, double wanted) {
  WorkerPlan w = AdmitWorker(q, layout, "decode");
  const Evaluation& e = w.evaluation;
  if (!e.refused.empty()) return w;
  const LayoutCosts costs(q, layout, e.plan);
  const double most_of_link =
      w.link / (static_cast<double>(q.load.input) * KvBytes(q, e.plan.kv_dtype));
  const auto enough = [&](double running) {
    SetRunning(q, costs, running, &w);
    if (wanted > 0) return w.requests >= wanted;
    return q.load.max_itl > 0 && w.step.seconds > q.load.max_itl;
  };
  // Bisection: `low` is not enough, `high` is. Both the rate and the time of a step grow with the
  // batch.
  double low = 0, high = e.most_requests;
  if (enough(high)) {
    while (high - low > 1) {
      const double middle = std::floor((low + high) / 2);
      (enough(middle) ? high : low) = middle;
    }
    w.running = wanted > 0 ? high : low;
    if (w.running >= 1) SetRunning(q, costs, w.running, &w);
  }
  if (w.running < 1) {
    w.evaluation.refused = fmt::format("a step of one request takes {:.1f} ms, over --slo-itl",
                                       1e3 * costs.Decode(1, q.load.input).seconds);
    return w;
  }
  if (q.load.max_itl > 0 && w.step.seconds > q.load.max_itl)
    w.evaluation.refused = fmt::format("ITL {:.1f} ms exceeds the limit", 1e3 * w.step.seconds);
  w.requests = std::min(w.requests, most_of_link);
  return w;
}

// Numbers of workers for the rates of one worker of each kind. nullopt: too few devices.
std::optional<std::pair<int, int>> Numbers(const Question& q, const SplitLayout& fixed,
                                           const WorkerPlan& prefill, const WorkerPlan& decode) {
  std::optional<std::pair<int, int>> best;
  double best_rate = 0;
  int best_units = 0;
  const int units = Units(q.cluster);
  const auto count = [](double number) { return static_cast<int>(std::min(number, 1e6)); };
  for (int p = std::max(1, fixed.prefill_workers); p * prefill.units <= units; ++p) {
    if (fixed.prefill_workers > 0 && p != fixed.prefill_workers) break;
    const double rate = q.load.rate > 0 ? q.load.rate : p * prefill.requests;
    const int needed = std::max(1, count(std::ceil(rate / decode.requests - 1e-9)));
    const int room = (units - p * prefill.units) / decode.units;
    int d = fixed.decode_workers > 0 ? fixed.decode_workers : std::min(needed, room);
    while (d > 0 && fixed.decode_workers == 0 &&
           !Fits(q.cluster, {p, prefill.units}, {d, decode.units}))
      --d;
    if (d < 1 || !Fits(q.cluster, {p, prefill.units}, {d, decode.units})) continue;
    double served = std::min(p * prefill.requests, d * decode.requests);
    if (q.load.rate > 0) served = std::min(served, q.load.rate);
    const int taken = p * prefill.units + d * decode.units;
    if (!best || served > best_rate * (1 + 1e-9) ||
        (served >= best_rate * (1 - 1e-9) && taken < best_units)) {
      best = {p, d};
      best_rate = served;
      best_units = taken;
    }
  }
  return best;
}

// Seconds of the rows' transfer after the prompt. The rows of a layer are sent while later layers
// compute, so what takes longer hides the other one but for a layer.
double Exposed(double alone, double transfer, double layers) {
  return std::max(alone + transfer / layers, transfer + alone / layers) - alone;
}

void Finish(const Question& q, Split* s) {
  const Load& load = q.load;
  const WorkerPlan &p = s->prefill, &d = s->decode;
  const int np = s->layout.prefill_workers, nd = s->layout.decode_workers;
  const double most = std::min(np * p.requests, nd * d.requests);
  s->requests = load.rate > 0 ? std::min(load.rate, most) : most;
  s->used_prefill = s->requests / (np * p.requests);
  const auto input = static_cast<double>(load.input);
  s->kv_bytes = KvBytes(q, p.evaluation.plan.kv_dtype);
  s->transfer = input * s->kv_bytes / std::min(p.link, d.link) +
                (q.cluster.nodes > 1 ? q.table.network.seconds : q.table.host.seconds);
  s->exposed = Exposed(p.alone, s->transfer, static_cast<double>(q.model.num_layers()));
  double wait = 0;
  if (load.rate > 0) {
    const double used = std::min(0.99, s->used_prefill);
    wait = p.alone * used / (2 * (1 - used));
  }
  s->ttft = p.alone + wait + s->exposed;
  s->itl = d.step.seconds;
  const double output = s->requests * static_cast<double>(load.output);
  s->per_unit = output / s->units();
  s->per_node = s->per_unit * (q.cluster.cuda ? q.cluster.per_node : 1);
  if (load.price > 0) s->cost = load.price / 3600 / s->per_unit * 1e6;
  if (load.rate > 0 && most < load.rate)
    s->refused = fmt::format("sustains {:.2f} requests/s, not {:.2f}", most, load.rate);
  if (load.max_ttft > 0 && s->ttft > load.max_ttft)
    s->refused = fmt::format("TTFT {:.2f} s exceeds the limit", s->ttft);
}

Split SplitOf(const Question& q, const SplitLayout& layout, WorkerPlan prefill, WorkerPlan decode) {
  Split s{.layout = layout, .prefill = std::move(prefill), .decode = std::move(decode)};
  for (const auto& [kind, worker] : {std::pair("prefill", &s.prefill), {"decode", &s.decode}})
    if (!worker->evaluation.refused.empty()) {
      s.refused = fmt::format("{} worker {}: {}", kind, worker->evaluation.layout.Name(),
                              worker->evaluation.refused);
      return s;
    }
  const auto numbers = Numbers(q, layout, s.prefill, s.decode);
  if (!numbers) {
    s.refused = fmt::format("the workers do not fit {} {}", Units(q.cluster),
                            q.cluster.cuda ? "GPUs" : "hosts");
    return s;
  }
  std::tie(s.layout.prefill_workers, s.layout.decode_workers) = *numbers;
  // With a rate, decode workers run fewer requests at once than they could.
  const double most = s.decode.requests, each = q.load.rate / s.layout.decode_workers;
  if (q.load.rate > 0 && each <= most) s.decode = DecodeWorker(q, layout.decode, each);
  Finish(q, &s);
  s.used_decode = s.requests / (s.layout.decode_workers * most);
  return s;
}

void KeepBest(std::vector<WorkerPlan>* workers) {
  std::erase_if(*workers, [](const WorkerPlan& w) { return !w.evaluation.refused.empty(); });
  std::ranges::stable_sort(*workers, std::greater<>(),
                           [](const WorkerPlan& w) { return w.requests / w.units; });
  if (workers->size() > kKept) workers->erase(workers->begin() + kKept, workers->end());
}

}  // namespace

std::string SplitLayout::Name() const {
  const auto part = [](int workers, const Layout& layout) {
    return workers > 0 ? fmt::format("{}x{}", workers, layout.Name()) : layout.Name();
  };
  return part(prefill_workers, prefill) + "/" + part(decode_workers, decode);
}

bool IsSplitName(const std::string& name) { return name.find('/') != std::string::npos; }

SplitLayout ParseSplitLayout(const std::string& name) {
  const size_t slash = name.find('/');
  if (slash == std::string::npos)
    throw Invalid("workers {}: want two layouts, like 2xtp4/1xtp8-ep8", name);
  SplitLayout split;
  split.prefill = ParseWorkers(name.substr(0, slash), &split.prefill_workers);
  split.decode = ParseWorkers(name.substr(slash + 1), &split.decode_workers);
  return split;
}

Split EvaluateSplit(const Question& q, const SplitLayout& layout) {
  Check(q);
  return SplitOf(q, layout, PrefillWorker(q, layout.prefill), DecodeWorker(q, layout.decode, 0));
}

std::vector<Split> SearchSplits(const Question& q, const SplitLayout& numbers) {
  Check(q);
  std::vector<WorkerPlan> prefill, decode;
  std::string reason;
  for (const Layout& layout : EnumerateLayouts(QuestionOfWorker(q).cluster, q.model, 1)) {
    prefill.push_back(PrefillWorker(q, layout));
    decode.push_back(DecodeWorker(q, layout, 0));
    for (const WorkerPlan* worker : {&prefill.back(), &decode.back()})
      if (!worker->evaluation.refused.empty())
        reason = fmt::format("{}: {}", layout.Name(), worker->evaluation.refused);
  }
  KeepBest(&prefill);
  KeepBest(&decode);
  if (prefill.empty() || decode.empty())
    throw Invalid("no layout can be a {} worker. Last one, {}",
                  prefill.empty() ? "prefill" : "decode", reason);
  std::vector<Split> all;
  for (const WorkerPlan& p : prefill)
    for (const WorkerPlan& d : decode) {
      SplitLayout layout = numbers;
      layout.prefill = p.evaluation.layout;
      layout.decode = d.evaluation.layout;
      all.push_back(SplitOf(q, layout, p, d));
    }
  // Most requests of the cluster, unless a rate is given; then the fewest devices, then the
  // shortest ITL.
  std::ranges::stable_sort(all, [&](const Split& a, const Split& b) {
    if (a.refused.empty() != b.refused.empty()) return a.refused.empty();
    if (q.load.rate <= 0)
      return std::tuple(-a.requests, a.units(), a.itl) < std::tuple(-b.requests, b.units(), b.itl);
    if (a.refused.empty()) return std::pair(a.units(), a.itl) < std::pair(b.units(), b.itl);
    return false;
  });
  if (!all.front().refused.empty())
    throw Invalid("no pair of prefill and decode workers meets the load. The first one, {}: {}",
                  all.front().layout.Name(), all.front().refused);
  return all;
}

}  // namespace switchyard::plan
