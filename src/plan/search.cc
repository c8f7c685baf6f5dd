#include "plan/search.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "engine/machine.h"
#include "moe/options.h"

namespace switchyard::plan {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

Machine MachineOf(const Cluster& cluster) {
  const auto bytes = static_cast<int64_t>(cluster.memory);
  return {.cuda = cluster.cuda,
          .hopper = cluster.card.starts_with("h"),
          .memory = {.total = bytes, .available = bytes},
          .cpus = cluster.cpus};
}

int RanksOfHost(const Layout& layout, const Cluster& cluster) {
  return std::min(layout.mesh.world(), cluster.per_node);
}

// The memory of the stages, as MakePlan computes it.
std::vector<StageMemory> StagesIn(const EngineConfig& config, const EnginePlan& plan) {
  std::vector<StageMemory> stages;
  for (int stage = 0; stage < config.mesh.pp; ++stage) {
    const EnginePlan own = StagePlanOf(config, plan, stage);
    stages.push_back({.layers = plan.stages[stage],
                      .memory = PlanRankMemory(config, own),
                      .cache = static_cast<double>(own.kv_bytes_per_rank)});
  }
  return stages;
}

// The smallest weights of a rank over the layouts of a search.
double LeastWeights(const Question& q) {
  double least = std::numeric_limits<double>::infinity();
  for (const Layout& layout : EnumerateLayouts(q.cluster, q.model, q.stages)) {
    try {
      double bytes = 0;  // of a rank of each stage
      for (const ModelConfig& stage : ModelsOfStages(q, layout, {})) {
        const double of_stage =
            WeightsOfRank(stage, layout.mesh).total() * (q.cluster.cuda ? 1 : layout.mesh.tp);
        bytes = q.cluster.cuda ? std::max(bytes, of_stage) : bytes + of_stage;
      }
      least = std::min(least, bytes);
    } catch (const Error&) {
    }
  }
  return least;
}

// The steady state of an engine with `running` requests. Each request occupies the engine for its
// prefill and for `output` decode steps. Prefill steps and decode steps alternate on the same
// ranks.
Point PointOf(const Question& q, const LayoutCosts& costs, const EnginePlan& plan, int dp,
              double running) {
  const Load& load = q.load;
  Point p{.running = running};
  const auto input = static_cast<double>(load.input), output = static_cast<double>(load.output);
  const double chunk =
      dp * (plan.chunked_prefill_size < 0 ? input : static_cast<double>(plan.chunked_prefill_size));
  // A prefill step holds whole prompts up to the chunk size. Even with few requests, each group
  // prefills one prompt at a time.
  p.prefill_rows = std::min(chunk, std::max<double>(dp, running) * input);
  p.prefill = costs.Prefill(p.prefill_rows, input);
  const double of_prefill =
      costs.PrefillSeconds(p.prefill_rows, input, running * input / p.prefill_rows);
  p.prefill_rate = running * input / of_prefill;
  p.decode = costs.Decode(running, input + output / 2);
  const double of_decode = output * p.decode.seconds;
  const double round = of_prefill + of_decode;  // time to serve `running` requests
  p.requests = running / round;
  p.output_rate = p.requests * output;
  p.itl = round / output;
  // A new prompt waits for half a decode step on average. Then its own rows take `alone` seconds.
  const double steps = std::max(1.0, std::ceil(input / std::max(1.0, chunk / dp)));
  const double alone = costs.PrefillSeconds(std::min(chunk, dp * input), input, steps);
  p.ttft = alone + p.decode.seconds / 2;
  return p;
}

bool Meets(const Load& load, const Point& p) {
  return (load.max_itl <= 0 || p.itl <= load.max_itl) &&
         (load.max_ttft <= 0 || p.ttft <= load.max_ttft);
}

// With an arrival rate, a prompt also waits for other prompts. Estimates this wait from the
// utilization, as in a queue of prefills.
void AddQueue(double requests, Point* p) {
  const double used = std::min(0.99, requests / p->requests);
  p->ttft *= 1 + used / (2 * (1 - used));
}

std::string Binds(const Evaluation& e, const Question& q) {
  const Point& p = *e.best;
  const Cost& step = p.decode.work;
  size_t part = 0, limit = 0;
  for (size_t i = 0; i < step.parts.size(); ++i)
    if (step.parts[i] > step.parts[part]) part = i;
  for (size_t i = 0; i < step.limits.size(); ++i)
    if (step.limits[i] > step.limits[limit]) limit = i;
  std::string text =
      fmt::format("decode is limited by {} ({:.0f} % of a step), most of it in {} ({:.0f} %)",
                  Name(static_cast<Limit>(limit)), 100 * step.limits[limit] / step.sum(),
                  Name(static_cast<Part>(part)), 100 * step.parts[part] / step.sum());
  if (q.load.batch <= 0 && q.load.rate <= 0) {
    const bool by_flag = e.most_requests >= e.plan.max_running_requests * e.layout.mesh.dp;
    if (p.running >= 0.9 * e.most_requests) {
      text += by_flag ? "; the batch is limited by --max-running-requests"
                      : "; the batch is limited by the memory for the cache";
    } else if (q.load.max_itl > 0 || q.load.max_ttft > 0) {
      text += "; the batch is limited by the latency limit";
    }
  }
  return text;
}

void Choose(const Question& q, const LayoutCosts& costs, Evaluation* e) {
  const Load& load = q.load;
  const int dp = e->layout.mesh.dp;
  const auto point = [&](double running) { return PointOf(q, costs, e->plan, dp, running); };
  for (double running = dp; running <= e->most_requests; running *= 2)
    e->points.push_back(point(running));
  if (e->most_requests >= 1 &&
      (e->points.empty() || e->points.back().running < 0.95 * e->most_requests))
    e->points.push_back(point(e->most_requests));
  if (load.batch > 0) {
    const double running = load.batch / e->replicas;
    if (running > e->most_requests) {
      e->refused =
          fmt::format("the cache of an engine holds {:.0f} requests of {} tokens, not {:.0f}",
                      e->most_requests, load.input + load.output, running);
      return;
    }
    e->best = point(running);
    if (!Meets(load, *e->best)) {
      e->refused = fmt::format("TTFT {:.2f} s, ITL {:.1f} ms exceed the limits", e->best->ttft,
                               1e3 * e->best->itl);
      e->best.reset();
    }
    return;
  }
  const double wanted = load.rate / e->replicas;  // requests per second that each engine must serve
  for (Point p : e->points) {
    if (wanted > 0) {
      if (p.requests < wanted) continue;
      AddQueue(wanted, &p);
    }
    if (!Meets(load, p)) continue;
    // With an arrival rate, selects the fewest concurrent requests that sustain it; otherwise, the
    // highest throughput.
    if (!e->best || (wanted <= 0 && p.output_rate > e->best->output_rate)) e->best = p;
    if (wanted > 0) break;
  }
  if (e->best && wanted <= 0 && (load.max_itl > 0 || load.max_ttft > 0)) {
    // The points are powers of two. More requests than the best of them may still meet the limits.
    double high = std::min(2 * e->best->running, e->most_requests);
    for (int i = 0; i < 5 && high - e->best->running > dp; ++i) {
      const double middle = std::floor((e->best->running + high) / 2);
      const Point p = point(middle);
      if (Meets(load, p)) {
        e->best = p;
      } else {
        high = middle;
      }
    }
  }
  if (e->best) return;
  double most = 0, itl = 1e30, ttft = 1e30;
  for (const Point& p : e->points) {
    most = std::max(most, p.requests);
    itl = std::min(itl, p.itl);
    ttft = std::min(ttft, p.ttft);
  }
  e->refused = wanted > most ? fmt::format("sustains {:.2f} requests/s, not {:.2f}",
                                           most * e->replicas, load.rate)
                             : fmt::format(
                                   "the limits are not met: the least TTFT is {:.2f} s, the least "
                                   "ITL {:.1f} ms",
                                   ttft, 1e3 * itl);
}

}  // namespace

const StageMemory& Evaluation::largest() const {
  return *std::ranges::max_element(stages, {}, &StageMemory::total);
}

Evaluation Admit(const Question& q, const Layout& layout) {
  Evaluation e{.layout = layout};
  const int world = layout.mesh.world();
  if (q.cluster.devices() % world != 0) {
    e.refused =
        fmt::format("{} devices cannot be divided into engines of {}", q.cluster.devices(), world);
    return e;
  }
  e.replicas = q.cluster.cuda ? q.cluster.devices() / world : 1;  // a host runs one engine
  e.memory_total = q.cluster.memory;
  EngineConfig config = ConfigOf(layout, q.config);
  config.device = q.cluster.cuda ? "cuda" : "cpu";
  // Allows as many requests as the cache may hold, within a bound, because buffers are sized for
  // this number.
  if (config.max_running_requests == 0)
    config.max_running_requests =
        static_cast<int32_t>(std::min<double>(256.0 * layout.mesh.dp, 4096.0));
  const Machine machine = MachineOf(q.cluster);
  try {
    if (layout.sbo && !CombinesInParts(config.moe, config.backends.get()))
      throw Invalid(
          "{}: single-batch overlap (sbo) needs an exchange that returns outputs in parts, "
          "such as deepep",
          layout.Name());
    e.plan = MakePlanOn(machine, q.model, config, RanksOfHost(layout, q.cluster));
    e.stages = StagesIn(config, e.plan);
  } catch (const Error& error) {
    e.refused = error.what();
    e.refusal = error.kind();
    return e;
  }
  e.accepted = true;
  const double per_request = static_cast<double>(q.load.input + q.load.output);
  const auto of_group = static_cast<double>(e.plan.num_pages * config.page_size);
  e.cache_tokens = of_group * layout.mesh.dp;
  e.longest_context = std::min(of_group, static_cast<double>(e.plan.context_length));
  e.most_requests =
      std::min<double>(std::floor(of_group / per_request), e.plan.max_running_requests) *
      layout.mesh.dp;
  if (e.most_requests < 1) {
    e.refused = fmt::format("the cache holds {:.0f} tokens, less than one request of {:.0f}",
                            of_group, per_request);
  }
  return e;
}

Evaluation Evaluate(const Question& q, const Layout& layout) {
  Evaluation e = Admit(q, layout);
  if (!e.refused.empty()) return e;
  const LayoutCosts costs(q, layout, e.plan);
  Choose(q, costs, &e);
  if (!e.best) return e;
  e.per_device = e.best->output_rate / (q.cluster.cuda ? layout.mesh.world() : 1);
  if (q.load.price > 0) e.cost = q.load.price / 3600 / e.per_device * 1e6;
  e.binds = Binds(e, q);
  return e;
}

std::vector<Evaluation> Search(const Question& q) {
  std::vector<Evaluation> all;
  for (const Layout& layout : EnumerateLayouts(q.cluster, q.model, q.stages))
    all.push_back(Evaluate(q, layout));
  if (all.empty())
    throw Invalid("--pp-size {}: {} devices cannot be divided into engines of that many stages",
                  q.stages, q.cluster.devices());
  const bool latency = q.load.batch > 0 || q.load.rate > 0;
  std::ranges::stable_sort(all, [&](const Evaluation& a, const Evaluation& b) {
    if (a.best.has_value() != b.best.has_value()) return a.best.has_value();
    if (!a.best) return a.accepted && !b.accepted;
    if (latency) return a.best->itl < b.best->itl;
    return a.per_device > b.per_device;
  });
  if (!all.front().best) {
    if (all.front().accepted)
      throw Invalid("no layout meets the load. The best one, {}: {}", all.front().layout.Name(),
                    all.front().refused);
    const auto too_large = std::ranges::find(all, ErrorKind::kResource, &Evaluation::refusal);
    if (too_large == all.end())
      throw Invalid("no layout is accepted. First one, {}: {}", all.front().layout.Name(),
                    all.front().refused);
    const double least = LeastWeights(q);
    throw Error(
        ErrorKind::kResource,
        fmt::format("{} does not fit {} x {}: the weights take at least {:.1f} GiB per {}, "
                    "which has {:.1f} GiB. First layout, {}: {}",
                    q.config.model_path.string(), q.cluster.devices(), q.cluster.card, least / kGiB,
                    q.cluster.cuda ? "device" : "host", q.cluster.memory / kGiB,
                    too_large->layout.Name(), too_large->refused),
        fmt::format("about {:.0f} devices of this size would hold it; or use --quantization, or "
                    "cards with more memory{}",
                    std::ceil(least * q.cluster.devices() / (0.8 * q.cluster.memory)),
                    q.cluster.cuda && q.cluster.devices() == 1 && q.model.has_moe()
                        ? "; --cpu-experts plans a GPU with experts on CPUs"
                        : ""));
  }
  return all;
}

}  // namespace switchyard::plan
