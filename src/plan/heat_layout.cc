#include "plan/heat_layout.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"
#include "core/format.h"
#include "plan/expert_loads.h"
#include "plan/layout_costs.h"

namespace switchyard::plan {
namespace {

using schedule::Phase;

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
constexpr int kMaxSequences = 32;  // of the report

HeatQuestion Checked(HeatQuestion q) {
  if (!q.model.has_moe()) throw Invalid("--cpu-experts: the model has no experts");
  CheckHasCosts(q.model);
  if (q.expert_loads != "uniform" && !q.expert_loads.starts_with("zipf:"))
    throw Invalid("--expert-loads {}: want uniform or zipf:EXPONENT with --cpu-experts",
                  q.expert_loads);
  return q;
}

HostMemory MemoryOf(double bytes) {
  return {.total = static_cast<int64_t>(bytes), .available = static_cast<int64_t>(bytes)};
}

}  // namespace

HeatLayout::HeatLayout(HeatQuestion question)
    : q_(Checked(std::move(question))),
      gpu_formats_(FormatsOf(q_.model, /*cuda=*/true, q_.packs_experts)),
      cpu_formats_(FormatsOf(q_.cpu_model, /*cuda=*/false, /*hopper=*/false)),
      costs_(q_.model, gpu_formats_, q_.gpu, {}, {}) {
  const ExpertLoads loads({.source = q_.expert_loads}, q_.model);
  popularity_.assign(loads.of_rank().begin(), loads.of_rank().end());
  top_k_ = loads.top_k();
  PlanMemory();
}

void HeatLayout::PlanMemory() {
  const Machine machine{.cuda = true,
                        .hopper = q_.packs_experts,
                        .memory = MemoryOf(q_.gpu_memory),
                        .host = MemoryOf(q_.host_memory)};
  ModelConfig model = q_.model;  // MakePlanOn applies these to the ranks on CPUs only
  model.quantization.int8_group_rows = q_.cpu_model.quantization.int8_group_rows;
  model.quantization.fp8_bfloat16_rows = q_.cpu_model.quantization.fp8_bfloat16_rows;
  const ExpertSplit split = SplitExperts(machine, model, q_.config, q_.cache_tokens);
  HeatMemory& m = memory_;
  m.experts = q_.model.moe->router.num_experts;
  m.layers = static_cast<int>(std::ranges::count(q_.model.layers, true, &LayerConfig::moe));
  m.on_gpu = split.on_gpu;
  m.weights = split.gpu.total() - split.gpu.experts;
  m.embedding = split.gpu.embedding;
  m.cache = split.cache;
  m.cache_tokens = split.cache_tokens;
  m.passes = split.passes;
  m.gpu_expert = split.gpu.experts / (static_cast<double>(split.on_gpu) * m.layers);
  if (split.on_cpus > 0)
    m.cpu_expert = split.host.weights / (static_cast<double>(split.on_cpus) * m.layers);
  m.host_buffers = split.host.total() - split.host.weights;
  m.gpu_budget = split.gpu_budget;
  m.host_budget = split.host_budget;
  serve_flags_ = FlagsOfSplit(q_.config, split);
  chunk_ = split.config.chunked_prefill_size;
  if (!split.fits_gpu())
    throw Resource(
        "--memory {:.0f}: weights without routed experts take {:.1f} GiB, an expert of each layer "
        "{:.1f}, the cache {:.1f} and passes {:.1f}, more than {} of it (--mem-fraction-static); "
        "lower --cache-tokens or --chunked-prefill-size",
        q_.gpu_memory / kGiB, m.weights / kGiB, m.gpu_expert * m.layers / kGiB, m.cache / kGiB,
        m.passes / kGiB, q_.config.mem_fraction_static);
  if (!split.fits_host())
    throw Resource(
        "--host-memory {:.0f}: the {} experts of a layer that do not fit the GPU take {:.1f} GiB "
        "in all layers, their rows and exchange buffers {:.1f}, more than {} of it "
        "(--mem-fraction-static); want at least {:.0f}",
        q_.host_memory / kGiB, split.on_cpus, m.host_total() / kGiB, m.host_buffers / kGiB,
        q_.config.mem_fraction_static,
        std::ceil(split.host.total() / q_.config.mem_fraction_static / kGiB));
}

HeatLayout::Work HeatLayout::WorkOf(double tokens, size_t begin, size_t end) const {
  Work work;
  for (size_t e = begin; e < end; ++e) {
    work.rows += tokens * popularity_[e];
    work.used += 1 - std::pow(1 - std::min(popularity_[e], 1.0), tokens);
  }
  return work;
}

// As StepCosts computes the experts of a rank.
double HeatLayout::Seconds(const Work& work, const CostTable& table,
                           const MatrixFormat& format) const {
  if (work.used <= 0) return 0;
  const double weights =
      3.0 * static_cast<double>(q_.model.hidden) * static_cast<double>(q_.model.moe->intermediate);
  const double memory = work.used * weights * format.bytes / table.WeightRate(format.name);
  const double flops = 2 * work.rows * weights /
                       table.ExpertRate(format.name, work.rows / std::max(work.used, 1.0), weights);
  return 2 * table.grouped_seconds + std::max(memory, flops);
}

// A token's row crosses once, if an expert of the CPU is among its experts; each output crosses.
double HeatLayout::LinkSeconds(const Work& work, double tokens) const {
  if (work.rows <= 0) return 0;
  const double row = 2.0 * static_cast<double>(q_.model.hidden);
  return 2 * q_.link.seconds + (std::min(tokens, work.rows) + work.rows) * row / q_.link.rate;
}

void HeatLayout::AddLayer(const StepShape& shape, int on_gpu, double shared, bool streams,
                          HeatTime* time) const {
  const size_t all = popularity_.size();
  const auto hot = static_cast<size_t>(on_gpu);
  const Work gpu_work = WorkOf(shape.rows, 0, hot), cpu_work = WorkOf(shape.rows, hot, all);
  const double gpu = Seconds(gpu_work, q_.gpu, gpu_formats_.experts);
  const double link = LinkSeconds(cpu_work, shape.rows);
  const double cpu = Seconds(cpu_work, q_.cpu, cpu_formats_.experts) + link;
  const double apart = std::max(gpu + shared, cpu);
  if (streams) {
    const double read = cpu_work.used * memory_.cpu_expert / q_.link.rate;
    const double whole = Seconds(WorkOf(shape.rows, 0, all), q_.gpu, gpu_formats_.experts);
    if (const double streamed = std::max(whole + shared, read); streamed < apart) {
      time->gpu += whole;
      time->link += read;
      time->seconds += streamed;
      ++time->streamed;
      return;
    }
  }
  time->gpu += gpu;
  time->cpu += cpu;
  time->link += link;
  time->seconds += apart;
}

HeatTime HeatLayout::Step(const StepShape& shape, ExpertsPlacedBy by, bool streams) const {
  HeatTime time;
  time.other = costs_.Ends(shape).sum();
  double shared = 0;
  for (const LayerConfig& layer : q_.model.layers)
    for (const Phase phase :
         {Phase::kAttention, Phase::kRoute, Phase::kExperts, Phase::kShared, Phase::kFinish}) {
      if (layer.moe && phase == Phase::kExperts) continue;
      if (!layer.moe && phase == Phase::kRoute) continue;
      const double seconds = costs_.Of(shape, layer.moe, phase, /*split=*/false).compute.sum();
      if (layer.moe && phase == Phase::kShared) {
        shared = seconds;
      } else {
        time.other += seconds;
      }
    }
  const HeatMemory& m = memory_;
  const int whole_layers = m.on_gpu * m.layers / m.experts;
  for (int layer = 0; layer < m.layers; ++layer) {
    const int on_gpu = by == ExpertsPlacedBy::kHeat ? m.on_gpu
                       : layer < whole_layers       ? m.experts
                                                    : 0;
    AddLayer(shape, on_gpu, shared, streams, &time);
  }
  time.seconds += time.other;
  const auto hot = static_cast<size_t>(m.on_gpu);
  const double gpu_bytes =
      m.weights - m.embedding + m.layers * WorkOf(shape.rows, 0, hot).used * m.gpu_expert;
  const double cpu_bytes =
      m.layers * WorkOf(shape.rows, hot, popularity_.size()).used * m.cpu_expert;
  const auto reads = [](const CostTable& table) {
    return std::max(table.bandwidth, table.WeightRate("bfloat16"));
  };
  time.bound = std::max(gpu_bytes / reads(q_.gpu), cpu_bytes / reads(q_.cpu));
  return time;
}

HeatTime HeatLayout::Decode(double sequences, double keys, ExpertsPlacedBy by) const {
  return Step({.decode = true,
               .sequences = sequences,
               .rows = sequences,
               .keys = keys,
               .logit_rows = sequences},
              by, /*streams=*/false);
}

HeatTime HeatLayout::Prefill(double rows, ExpertsPlacedBy by, bool streams) const {
  const double chunk = chunk_ > 0 ? chunk_ : rows;
  HeatTime all;
  for (double begin = 0; begin < rows; begin += chunk) {
    const double in_step = std::min(chunk, rows - begin);
    const HeatTime step = Step({.decode = false,
                                .sequences = 1,
                                .rows = in_step,
                                .keys = begin + (in_step + 1) / 2,
                                .logit_rows = 1},
                               by, streams);
    all.seconds += step.seconds;
    all.other += step.other;
    all.gpu += step.gpu;
    all.cpu += step.cpu;
    all.link += step.link;
    all.bound += step.bound;
    all.streamed = std::max(all.streamed, step.streamed);
  }
  return all;
}

std::string HeatReport(const HeatLayout& layout) {
  const HeatQuestion& q = layout.question();
  const HeatMemory& m = layout.memory();
  double hot = 0, all = 0;
  for (size_t e = 0; e < layout.popularity().size(); ++e) {
    all += layout.popularity()[e];
    if (std::cmp_less(e, m.on_gpu)) hot += layout.popularity()[e];
  }
  std::string text = fmt::format(
      "costs: GPU {} ({}), CPUs {} ({})\n"
      "GPU: {:.1f} of {:.1f} GiB ({} of {:.0f}): weights without routed experts {:.1f}, cache of "
      "{} tokens {:.1f}, passes and buffers {:.1f}, experts {:.1f}\n"
      "host: {:.1f} of {:.1f} GiB ({} of {:.0f}): experts {:.1f}, rows and exchange buffers "
      "{:.1f}\n"
      "{} of {} experts of each layer on the GPU; with {} they get {:.1f} % of the rows\n"
      "{}\n\n",
      q.gpu.name, q.gpu.source, q.cpu.name, q.cpu.source, m.gpu_total() / kGiB, m.gpu_budget / kGiB,
      q.config.mem_fraction_static, q.gpu_memory / kGiB, m.weights / kGiB, m.cache_tokens,
      m.cache / kGiB, m.passes / kGiB, m.gpu_expert * m.on_gpu * m.layers / kGiB,
      (m.host_total() + m.host_buffers) / kGiB, m.host_budget / kGiB, q.config.mem_fraction_static,
      q.host_memory / kGiB, m.host_total() / kGiB, m.host_buffers / kGiB, m.on_gpu, m.experts,
      q.expert_loads, 100 * hot / all,
      layout.serve_flags().empty() ? "serve: all experts fit the GPU"
                                   : "serve: " + layout.serve_flags());
  text +=
      "                 tokens/s   step ms  GPU experts  CPU experts     other  of bound  by "
      "layers\n";
  const auto add = [&](const std::string& name, double tokens, const HeatTime& heat,
                       const HeatTime& layers, const std::string& note = {}) {
    text +=
        fmt::format("{:<15} {:>9.1f} {:>9.2f} {:>12.2f} {:>12.2f} {:>9.2f} {:>9} {:>9.2f}x{}\n",
                    name, tokens / heat.seconds, 1e3 * heat.seconds, 1e3 * heat.gpu, 1e3 * heat.cpu,
                    1e3 * heat.other, fmt::format("{:.0f} %", 100 * heat.bound / heat.seconds),
                    layers.seconds / heat.seconds, note);
  };
  for (const int batch : {1, 8, 32}) {
    const double keys = static_cast<double>(q.cache_tokens) / kMaxSequences;
    add(fmt::format("decode of {}", batch), batch, layout.Decode(batch, keys),
        layout.Decode(batch, keys, ExpertsPlacedBy::kLayers));
  }
  for (const int rows : {512, 4096}) {
    const HeatTime heat = layout.Prefill(rows);
    const HeatTime streamed = layout.Prefill(rows, ExpertsPlacedBy::kHeat, /*streams=*/true);
    add(fmt::format("prompt of {}", rows), rows, heat,
        layout.Prefill(rows, ExpertsPlacedBy::kLayers),
        streamed.streamed > 0
            ? fmt::format("  {:.1f} tokens/s with streams", rows / streamed.seconds)
            : "");
  }
  return text +
         "by layers: the time of a placement of whole layers, relative to this one\n"
         "with streams: if the GPU reads experts of the host for long prompts (--stream-experts)\n";
}

}  // namespace switchyard::plan
