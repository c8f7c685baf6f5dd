// `switchyard bench one-batch`: prefill and decode of one batch of equal requests. It runs the
// model with its expert flags directly, without scheduler and HTTP. Each figure is printed with the
// memory read bandwidth measured in the same run.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "apps/commands.h"
#include "apps/one_batch.h"
#include "apps/one_batch_rank.h"
#include "core/error.h"
#include "core/log.h"
#include "engine/config.h"
#include "engine/expert_services.h"
#include "engine/model_forward.h"
#include "kernels/roofline.h"
#include "model/attention_flops.h"
#include "model/model.h"
#include "model/weights/expert_formats.h"
#include "model/weights/routers.h"
#include "plan/uniform_routing.h"
#include "profile/profiler.h"

namespace switchyard {

namespace one_batch {

double Median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

int32_t PrefillRows(const EnginePlan& plan, const Case& c) {
  return plan.chunked_prefill_size < 0 ? c.input : plan.chunked_prefill_size;
}

PassWeights WeightsOfPass(const ModelConfig& config) {
  PassWeights weights{.dense = static_cast<double>(WeightBytesPerRank(config, Mesh()))};
  if (!config.tie_embeddings && (!config.eagle || config.eagle->own_embedding))
    weights.dense -= static_cast<double>(config.vocab_size * config.hidden) * SizeOf(config.dtype);
  const auto layers = std::ranges::count_if(config.layers, &LayerConfig::moe);
  if (!config.has_moe() || layers == 0) return weights;
  const double experts = ExpertFormatsOf(config).bytes;
  weights.dense -= experts;
  weights.moe_layers = static_cast<double>(layers);
  weights.expert = experts / weights.moe_layers / config.moe->router.num_experts;
  return weights;
}

double ExpectedExperts(const ModelConfig& config, double rows) {
  const RouterConfig& router = config.moe->router;
  const double missed =
      std::pow(1.0 - static_cast<double>(router.top_k) / router.num_experts, rows);
  return (1.0 - missed) * router.num_experts;
}

Ceilings Measure(const EngineConfig& config, const EnginePlan& plan) {
  const int others = config.mesh.expert_ranks, attending = config.mesh.tp - others;
  const auto reads = [&](int ranks) {
    return ranks > 0 ? kernels::MeasureReadBandwidth(plan.threads_per_rank * ranks) : 0.0;
  };
  if (!plan.cuda) {
    Ceilings all{.bandwidth = reads(config.mesh.tp)};
    if (others > 0) {
      all.attending = reads(attending);
      all.others = reads(others);
    }
    return all;
  }
  const kernels::GpuCeilings gpu = kernels::MeasureGpu(config.base_gpu_id);
  const int gpus = config.gpu_id_step == 0 ? 1 : attending;
  fmt::print(
      "each GPU, measured in this run: copies {:.2f} TB/s, multiplies bfloat16 at {:.0f} TFLOP/s\n",
      gpu.copy_bandwidth / 1e12, gpu.bf16_flops / 1e12);
  const double bandwidth = gpu.copy_bandwidth * gpus;
  return {.bandwidth = bandwidth,
          .flops = gpu.bf16_flops * gpus,
          .attending = bandwidth,
          .others = reads(others)};
}

}  // namespace one_batch

namespace {

using one_batch::Case;
using one_batch::Ceilings;
using one_batch::Median;
using one_batch::MemoryWatch;
using one_batch::Result;

using Clock = std::chrono::steady_clock;

double Seconds(Clock::time_point since) {
  return std::chrono::duration<double>(Clock::now() - since).count();
}

// Builds the batches of `batch` sequences that grow together; sequence s owns pages [s · per, (s +
// 1) · per). With recurrent states, it also owns the slots 2 s and 2 s + 1: each pass reads the one
// that the previous pass wrote.
class Sequences {
 public:
  Sequences(Case c, int32_t output, int32_t page_size, const EnginePlan& plan)
      : case_(c),
        page_size_(page_size),
        has_states_(plan.model.has_states()),
        state_chunk_(plan.state_chunk()),
        random_(7),
        odd_slots_(c.batch, false) {
    const int32_t per = (c.input + output + page_size - 1) / page_size;
    pages_.resize(c.batch);
    for (int32_t s = 0; s < c.batch; ++s) {
      for (int32_t p = 0; p < per; ++p) pages_[s].push_back(s * per + p);
    }
    const int64_t ids = plan.model.expert_skew ? std::min(kSkewedTokens, plan.model.vocab_size)
                                               : plan.model.vocab_size;
    token_ = std::uniform_int_distribution<int32_t>(0, static_cast<int32_t>(ids) - 1);
  }

  // Rows [begin, begin + rows) of sequences [first, last). `draw`: the model samples the tokens.
  ForwardBatch Rows(int32_t first, int32_t last, int32_t begin, int32_t rows, bool logits,
                    bool draw) {
    ForwardBatch b;
    for (int32_t s = first; s < last; ++s) {
      b.sequences.push_back({.row_begin = static_cast<int32_t>(b.tokens.size()),
                             .rows = rows,
                             .kv_len = begin + rows,
                             .pages = pages_[s].data()});
      if (has_states_) AddState(s, begin, b);
      for (int32_t i = begin; i < begin + rows; ++i) {
        b.tokens.push_back(token_(random_));
        b.positions.push_back(i);
        b.slots.push_back(pages_[s][i / page_size_] * page_size_ + i % page_size_);
      }
      b.request_ids.push_back(static_cast<uint64_t>(s));
      if (logits) b.logit_rows.push_back(static_cast<int32_t>(b.tokens.size()) - 1);
    }
    b.decode_tokens = rows == 1 ? b.num_tokens() : 0;
    if (draw) b.draws.resize(b.logit_rows.size());
    return b;
  }

 private:
  // Of the last sequence of `b`.
  void AddState(int32_t s, int32_t begin, ForwardBatch& b) {
    const auto slot = [&] { return 2 * s + (odd_slots_[s] ? 1 : 0); };
    const int32_t from = begin == 0 ? -1 : slot();
    odd_slots_[s] = !odd_slots_[s];
    const auto& sequence = b.sequences.back();
    const bool chunked = state_chunk_ > 0 && begin % state_chunk_ == 0;
    b.states.push_back({.row_begin = sequence.row_begin,
                        .rows = sequence.rows,
                        .from = from,
                        .to = slot(),
                        .chunked = chunked ? sequence.rows / state_chunk_ * state_chunk_ : 0});
  }

  Case case_;
  int32_t page_size_;
  bool has_states_;
  int32_t state_chunk_;  // rows of prompts that are computed together; 0: none
  std::mt19937 random_;
  std::uniform_int_distribution<int32_t> token_;
  std::vector<std::vector<int32_t>> pages_;
  std::vector<bool> odd_slots_;  // [batch] whether the last pass wrote slot 2 s + 1
};

// This rank's batch of a pass. The ranks with attention are one attention group, which has all
// rows; ranks with experts only have none.
ForwardBatch OfRank(ForwardBatch all, const Mesh& mesh) {
  if (mesh.dp() == 1) return all;
  const auto counts = [&](int64_t of_first) {
    std::vector<int64_t> groups(mesh.dp());
    groups.front() = of_first;
    return groups;
  };
  ForwardBatch own;
  own.groups_want_routed_experts = all.groups_want_routed_experts;
  own.group_tokens = counts(all.num_tokens());
  own.group_decode_tokens = counts(all.decode_tokens);
  own.group_logit_rows = counts(std::ssize(all.logit_rows));
  if (!mesh.attends()) return own;
  all.group_tokens = own.group_tokens;
  all.group_decode_tokens = own.group_decode_tokens;
  all.group_logit_rows = own.group_logit_rows;
  return all;
}

// One step. `profiler`: this rank's profiler; null: no profile.
void Forward(ForwardFunction& model, ForwardBatch all, const Mesh& mesh,
             profile::Profiler* profiler) {
  const bool decodes = all.decode_tokens > 0;
  const ForwardBatch batch = OfRank(std::move(all), mesh);
  profile::Step step(profiler);
  {
    const profile::Span span(profiler, {.name = "forward", .rows = batch.num_tokens()});
    model.Forward(batch);
  }
  step.End(decodes ? profile::Stage::kDecode : profile::Stage::kPrefill, batch.num_tokens());
}

// One prefill step takes as many prompts as fit; longer prompts run in chunks. A decode step takes
// all sequences. `parts`: null if the times of layers are not measured.
void TimeCase(const OneBatchArgs& args, const EnginePlan& plan, Case c, ForwardFunction& model,
              RankComm& comm, profile::Profiler* profiler, one_batch::LayerParts* parts,
              Result& result) {
  Sequences sequences(c, args.output_length, args.server.engine.page_size, plan);
  const int32_t step = one_batch::PrefillRows(plan, c);
  const int32_t chunk = std::min(step, c.input);
  const int32_t together = std::min(c.batch, std::max(1, step / c.input));
  comm.tp->Barrier("bench start");
  auto start = Clock::now();
  for (int32_t s = 0; s < c.batch; s += together) {
    const int32_t last = std::min(c.batch, s + together);
    for (int32_t begin = 0; begin < c.input; begin += chunk) {
      const int32_t rows = std::min(chunk, c.input - begin);
      Forward(model, sequences.Rows(s, last, begin, rows, begin + rows == c.input, model.draws()),
              comm.mesh, profiler);
    }
  }
  result.prefill.push_back(Seconds(start));
  std::vector<double> steps;
  if (parts) parts->Take();  // of the prompts
  for (int32_t i = 1; i < args.output_length; ++i) {
    ForwardBatch batch = sequences.Rows(0, c.batch, c.input + i - 1, 1, true, model.draws());
    start = Clock::now();
    Forward(model, std::move(batch), comm.mesh, profiler);
    steps.push_back(Seconds(start));
    if (parts) result.parts.push_back(parts->Take());
  }
  result.decode.push_back(Median(steps));
}

// The correlation of the experts that the tokens of one prompt choose, in a pass that is not timed.
double CountCorrelation(const OneBatchArgs& args, const EnginePlan& plan, Case c,
                        ForwardFunction& model, const Mesh& mesh) {
  if (!plan.model.has_moe()) return 0;
  Sequences sequences(c, args.output_length, args.server.engine.page_size, plan);
  const int32_t rows = std::min(one_batch::PrefillRows(plan, c), c.input);
  ForwardBatch batch = sequences.Rows(0, 1, 0, rows, /*logits=*/true, model.draws());
  batch.routed_experts = batch.groups_want_routed_experts = true;
  Forward(model, std::move(batch), mesh, /*profiler=*/nullptr);
  if (!mesh.attends()) return 0;
  const RouterConfig& router = plan.model.moe->router;
  return plan::TokenCorrelation(model.routed_experts(), plan.model.num_layers(), router.top_k,
                                router.num_experts);
}

// With ranks with experts only: the experts of decode steps that are not timed, by the ranks that
// hold them.
void CountExperts(const OneBatchArgs& args, const EnginePlan& plan, Case c, ForwardFunction& model,
                  const RankComm& comm, const ExpertServices& experts, Result& result) {
  constexpr int32_t kSteps = 8;
  const EngineConfig& config = args.server.engine;
  if (config.mesh.expert_ranks == 0) return;
  const RouterConfig& router = plan.model.moe->router;
  result.chosen = {plan.model.num_layers(), router.num_experts};
  Sequences sequences(c, args.output_length, config.page_size, plan);
  for (int32_t i = 0; i < std::min(kSteps, args.output_length - 1); ++i) {
    ForwardBatch batch = sequences.Rows(0, c.batch, c.input + i, 1, true, model.draws());
    batch.routed_experts = batch.groups_want_routed_experts = true;
    // EPLB may move experts between the steps.
    const std::vector<bool> held = one_batch::HeldByAttending(config, plan, experts);
    Forward(model, std::move(batch), comm.mesh, /*profiler=*/nullptr);
    if (comm.mesh.attends()) result.chosen.Add(model.routed_experts(), router.top_k, held);
  }
}

void CheckCases(const OneBatchArgs& args, const EnginePlan& plan, const std::vector<Case>& cases) {
  if (const int groups = args.server.engine.mesh.attention_groups(); groups > 1)
    throw Invalid(
        "--dp-size {}: bench one-batch runs a single attention group; omit --dp-size or set it to "
        "1",
        groups);
  for (const Case& c : cases) {
    if (c.batch > plan.max_running_requests)
      throw Invalid(
          "--batch-size {}: a decode step runs at most {} sequences; raise --max-running-requests",
          c.batch, plan.max_running_requests);
    if (int64_t{c.input} + args.output_length > plan.context_length)
      throw Invalid(
          "--input-len {} and --output-len {}: the sum exceeds the context length of {} tokens",
          c.input, args.output_length, plan.context_length);
  }
}

// Bytes of weights that one decode step of `batch` tokens reads on all ranks. Experts are counted
// by the number that uniform routing is expected to select.
double DecodeBytes(const ModelConfig& config, int32_t batch) {
  const one_batch::PassWeights weights = one_batch::WeightsOfPass(config);
  if (weights.moe_layers == 0) return weights.dense;
  return weights.dense +
         weights.moe_layers * one_batch::ExpectedExperts(config, batch) * weights.expert;
}

// FLOPs of prefill: two for each weight by which a token is multiplied, plus the FLOPs of causal
// attention.
double PrefillFlops(const ModelConfig& config, const Case& c) {
  const double weights = DecodeBytes(config, 1) / SizeOf(config.dtype);
  return c.batch * (static_cast<double>(c.input) * 2.0 * weights + AttentionFlops(config, c.input));
}

// Fraction of the roofline.
double Fraction(const Ceilings& ceilings, double bytes, double flops, double seconds) {
  const double of_flops = ceilings.flops > 0.0 ? flops / ceilings.flops : 0.0;
  return std::max(bytes / ceilings.bandwidth, of_flops) / seconds;
}

void Report(const OneBatchArgs& args, const EngineConfig& config, const EnginePlan& plan,
            const std::vector<Case>& cases, const std::vector<Result>& results,
            const Ceilings& ceilings) {
  const double bandwidth = ceilings.bandwidth;
  const bool split = config.mesh.expert_ranks > 0;
  if (split) {
    one_batch::PrintRates(config, plan, ceilings);
  } else {
    fmt::print("memory bandwidth of all ranks, measured in this run: {:.1f} GB/s\n",
               bandwidth / 1e9);
  }
  // Prefill's fraction of the roofline needs the peak FLOP rate. It is measured on GPUs only, and
  // for bfloat16 only, so quantized models have no such figure.
  const bool of_prefill = ceilings.flops > 0.0 && plan.model.quantization.method.empty() && !split;
  fmt::print("{:>6} {:>7} {:>15} {:>10} {:>14} {:>13} {:>13} {:>10}\n", "batch", "input",
             "prefill tok/s", "roofline", "decode tok/s", "ms per step", "GB per step", "roofline");
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (size_t i = 0; i < cases.size(); ++i) {
    const double prefill = Median(results[i].prefill), step = Median(results[i].decode);
    const auto bound = one_batch::SplitBoundOf(config, plan, results[i], ceilings);
    const double bytes = bound ? bound->attending_bytes + bound->other_bytes
                               : DecodeBytes(plan.model, cases[i].batch);
    const double flops = of_prefill ? PrefillFlops(plan.model, {cases[i].batch, 1}) : 0.0;
    const double fraction = bound   ? bound->seconds / step
                            : split ? 0.0
                                    : Fraction(ceilings, bytes, flops, step);
    const double prefill_fraction =
        of_prefill ? Fraction(ceilings, DecodeBytes(plan.model, cases[i].batch * cases[i].input),
                              PrefillFlops(plan.model, cases[i]), prefill)
                   : 0.0;
    const auto percent = [](bool known, double of) {
      return known ? fmt::format("{:.0f}%", 100 * of) : "-";
    };
    fmt::print("{:6} {:7} {:15.1f} {:>10} {:14.2f} {:13.2f} {:13.2f} {:>10}\n", cases[i].batch,
               cases[i].input, cases[i].batch * cases[i].input / prefill,
               percent(of_prefill, prefill_fraction), cases[i].batch / step, step * 1e3,
               bytes / 1e9, percent(!split || bound, fraction));
    rows.push_back({{"batch_size", cases[i].batch},
                    {"input_len", cases[i].input},
                    {"prefill_tokens_per_second", cases[i].batch * cases[i].input / prefill},
                    {"decode_tokens_per_second", cases[i].batch / step},
                    {"decode_bytes_per_step", bytes},
                    {"bandwidth", bandwidth},
                    {"prefill_roofline_fraction", prefill_fraction},
                    {"decode_roofline_fraction", fraction}});
  }
  if (split) one_batch::ReportSplit(args, config, plan, cases, results, ceilings, rows);
  if (split) one_batch::ReportParts(config, cases, results, rows);
  one_batch::ReportPredictions(args, config, plan, cases, results, rows);
  if (args.json.empty()) return;
  std::ofstream out(args.json);
  if (!(out << rows.dump(2) << "\n")) throw Resource("--json {}: cannot be written", args.json);
}

profile::Options ProfileOptions(const OneBatchArgs& args) {
  return {.dir = args.profile_dir.empty() ? profile::DefaultDirectory() : args.profile_dir,
          .name = profile::NameOfNow()};
}

}  // namespace

int RunOneBatch(const OneBatchArgs& args) {
  if (!args.server.engine.speculative.algorithm.empty()) return one_batch::RunDrafts(args);
  if (args.same_experts) throw Invalid("--same-experts: needs --speculative-algorithm");
  if (args.expert_skew && args.server.engine.load_format != "dummy")
    throw Invalid("--expert-skew: needs --load-format dummy");
  std::vector<Case> cases;
  int64_t most = 0;
  for (int32_t batch : args.batch_sizes) {
    for (int32_t input : args.input_lengths) {
      cases.push_back({batch, input});
      const int64_t page = args.server.engine.page_size;
      most = std::max(most, batch * ((input + args.output_length + page - 1) / page * page));
    }
  }
  EngineConfig config = args.server.engine;
  if (config.mesh.pp > 1)
    throw Invalid("--pp-size {}: this benchmark runs one pipeline stage only", config.mesh.pp);
  config.max_total_tokens = std::max(config.max_total_tokens, most);
  if (config.load_format != "dummy") CheckCheckpoint(config.model_path, ReadModelConfig(config));
  EnginePlan plan = MakePlan(config);
  if (args.expert_skew) SkewRouting(*args.expert_skew, &plan.model);
  CheckCases(args, plan, cases);
  one_batch::CheckCostTable(args, plan);
  kernels::SelectIsa(config.cpu_isa);
  const Ceilings ceilings = one_batch::Measure(config, plan);

  std::vector<Result> results(cases.size());
  const int first_of_experts = config.mesh.tp - config.mesh.expert_ranks;
  std::vector<std::vector<MoeTimes>> parts(cases.size());  // of that rank
  MemoryWatch memory(config, plan);
  std::vector<profile::Result> traces(config.mesh.tp);
  const profile::Options profiled = ProfileOptions(args);
  const auto run = [&](int r, std::shared_ptr<SharedArena> arena) {
    one_batch::Rank rank(config, plan, r, std::move(arena));
    Communicator& world = *rank.comm().tp;
    if (args.profile) rank.profiler().Start(profiled);
    memory.Ended(MemoryWatch::kStart, r, world);
    Model& model = rank.Load();
    memory.Ended(MemoryWatch::kLoading, r, world);
    KvStorage kv = rank.MakeCache();
    memory.Ended(MemoryWatch::kCache, r, world);
    const ExpertServices::Attached attached(rank.experts(), model);
    ModelForward forward(model, kv, rank.experts());
    for (size_t i = 0; i < cases.size(); ++i) {
      for (int32_t repeat = -1; repeat < args.repeat; ++repeat) {  // the first run warms up
        Result result;
        TimeCase(args, plan, cases[i], forward, rank.comm(),
                 repeat < 0 ? nullptr : &rank.profiler(), rank.parts(), result);
        if (r == first_of_experts && repeat >= 0)
          parts[i].insert(parts[i].end(), result.parts.begin(), result.parts.end());
        if (r != 0 || repeat < 0) continue;
        results[i].prefill.push_back(result.prefill[0]);
        results[i].decode.push_back(result.decode[0]);
      }
      Result counted;
      counted.correlation = CountCorrelation(args, plan, cases[i], forward, rank.comm().mesh);
      CountExperts(args, plan, cases[i], forward, rank.comm(), rank.experts(), counted);
      if (r == 0) {
        results[i].correlation = counted.correlation;
        results[i].chosen = std::move(counted.chosen);
      }
      if (r == 0) LOG_INFO("case {} of {} done", i + 1, cases.size());
    }
    memory.Ended(MemoryWatch::kSteps, r, world);
    if (args.profile) traces[r] = rank.profiler().Stop().value();
  };
  RunRankThreads(config.mesh.tp, plan.symmetric_bytes_per_rank, run);
  for (size_t i = 0; i < cases.size(); ++i) results[i].parts = std::move(parts[i]);
  Report(args, config, plan, cases, results, ceilings);
  memory.Report();
  for (const profile::Result& trace : traces) {
    if (!trace.error.empty()) throw Resource("--profile {}", trace.error);
    for (const std::string& file : trace.files) fmt::print("trace: {}\n", file);
  }
  return 0;
}

}  // namespace switchyard
