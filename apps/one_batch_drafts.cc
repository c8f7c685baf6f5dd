// `switchyard bench one-batch --speculative-algorithm`: the time of decode steps with and without
// drafts. The engine of a rank runs the steps, without HTTP. A step with drafts has one pass of the
// target (the verification) and one pass of the draft model for each draft. Its bound is the time
// to read the weights of these passes at the bandwidth measured in the same run. Experts count if a
// row chooses them.
#include "apps/one_batch_drafts.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/one_batch.h"
#include "apps/one_batch_rank.h"
#include "core/error.h"
#include "core/log.h"
#include "engine/expert_services.h"
#include "engine/kept_model.h"
#include "engine/model_forward.h"
#include "engine/rank_engine.h"
#include "engine/speculative/draft_model.h"
#include "engine/speculative/model_drafter.h"
#include "kernels/ops.h"
#include "profile/profiler.h"

namespace switchyard::one_batch {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int32_t kWarmSteps = 2;     // of each run: not measured
constexpr int32_t kCountedSteps = 6;  // steps whose experts are counted

double Seconds(Clock::time_point since) {
  return std::chrono::duration<double>(Clock::now() - since).count();
}

// Mean of the middle half, which excludes passes that are recorded as graphs.
double MiddleMean(std::vector<double> v) {
  std::ranges::sort(v);
  const size_t first = v.size() / 4, last = v.size() - first;
  double sum = 0;
  for (size_t i = first; i < last; ++i) sum += v[i];
  return sum / static_cast<double>(last - first);
}

// The number of experts that the rows of a pass choose, summed over the MoE layers. Each expert of
// a layer counts once. `routed` [rows, layers, top_k], −1: none.
int64_t DistinctExperts(std::span<const int32_t> routed, const ModelConfig& config) {
  const RouterConfig& router = config.moe->router;
  const int64_t layers = config.num_layers(), k = router.top_k;
  std::vector<bool> chosen(static_cast<size_t>(layers * router.num_logits()));
  for (int64_t i = 0; i < std::ssize(routed); ++i)
    if (routed[i] >= 0 && routed[i] < router.num_experts)
      chosen[static_cast<size_t>(i / k % layers * router.num_logits() + routed[i])] = true;
  return std::ranges::count(chosen, true);
}

// Measures the passes of the target. While `counts`, it counts the experts of decode passes
// instead.
class Target : public ModelForward {
 public:
  Target(Model& model, KvStorage& kv, const ExpertServices& experts)
      : ModelForward(model, kv, experts), config_(model.config()) {}

  std::span<const float> Forward(const ForwardBatch& batch) override {
    if (counts && config_.has_moe()) return Count(batch);
    const auto start = Clock::now();
    const std::span<const float> logits = ModelForward::Forward(batch);
    seconds = Seconds(start);
    return logits;
  }
  bool launches() const override { return !counts && ModelForward::launches(); }

  bool counts = false;
  double seconds = 0;   // of the last pass
  int64_t experts = 0;  // of the last counted pass

 private:
  std::span<const float> Count(const ForwardBatch& batch) {
    ForwardBatch counted = batch;
    counted.routed_experts = counted.groups_want_routed_experts = true;
    const std::span<const float> logits = ModelForward::Forward(counted);
    experts = DistinctExperts(routed_experts(), config_);
    return logits;
  }

  const ModelConfig& config_;
};

// Counts the experts of the draft model's passes. On CPUs, where only rows with logits have
// experts, it takes their expected number (ExpectedExperts).
class Draft : public DraftModel {
 public:
  Draft(const EngineConfig& config, const EnginePlan& plan, Model& target,
        profile::Profiler* profiler, RankComm& comm, ThreadPool& pool, KeptModel* kept)
      : DraftModel(config, plan, target, profiler, comm, pool, nullptr, kept),
        config_(*plan.draft),
        layers_(WeightsOfPass(config_).moe_layers) {}

  std::span<const float> Forward(const ForwardBatch& batch) override {
    if (!counts || layers_ == 0) return DraftModel::Forward(batch);
    if (batch.only_logit_rows) {
      const auto rows = static_cast<double>(batch.logit_rows.size());
      experts += layers_ * (config_.same_experts ? config_.moe->router.top_k
                                                 : ExpectedExperts(config_, rows));
      return DraftModel::Forward(batch);
    }
    ForwardBatch counted = batch;
    counted.routed_experts = counted.groups_want_routed_experts = true;
    const std::span<const float> logits = DraftModel::Forward(counted);
    experts += static_cast<double>(DistinctExperts(routed_experts(), config_));
    return logits;
  }
  bool launches() const override { return !counts && DraftModel::launches(); }

  bool counts = false;
  double experts = 0;  // of all counted passes

 private:
  const ModelConfig& config_;
  const double layers_;
};

class TimedDrafter : public Drafter {
 public:
  explicit TimedDrafter(Drafter& drafter) : drafter_(drafter) {}
  void Draft(std::span<const DraftPart> parts, int64_t limit) override {
    const auto start = Clock::now();
    drafter_.Draft(parts, limit);
    seconds = Seconds(start);
  }
  int64_t Backlog(const Sequence& sequence) const override { return drafter_.Backlog(sequence); }

  double seconds = 0;  // of the last call

 private:
  Drafter& drafter_;
};

// Steps of a case with one number of drafts.
struct Steps {
  std::vector<double> step, draft, verify;                   // seconds
  double tokens = 0;                                         // of a sequence, sum over the steps
  double target_experts = 0, draft_experts = 0, passes = 0;  // sums over counted steps
};

struct Sizes {
  std::vector<Case> cases;
  std::vector<int32_t> drafts;  // the numbers of drafts; 0 is the first
  int32_t steps = 0;            // of a run, those for warming up included
  int64_t tokens_of(int32_t input, int32_t most) const {
    return input + int64_t{steps + 3} * (most + 1) + 8;
  }
};

Sizes SizesOf(const OneBatchArgs& args) {
  Sizes sizes;
  for (const int32_t batch : args.batch_sizes)
    for (const int32_t input : args.input_lengths) sizes.cases.push_back({batch, input});
  sizes.steps = kWarmSteps + std::max(args.output_length, kCountedSteps);
  const SpeculativeOptions& flags = args.server.engine.speculative;
  const DraftLimits limits = LimitsOf(flags);
  sizes.drafts = {0};
  if (limits.adapts) {
    for (int32_t drafts = 1; drafts <= limits.most; ++drafts) sizes.drafts.push_back(drafts);
  } else {
    sizes.drafts.push_back(limits.most);
  }
  return sizes;
}

void CheckFlags(const OneBatchArgs& args) {
  const EngineConfig& config = args.server.engine;
  const SpeculativeOptions& flags = config.speculative;
  const auto refuse = [](bool given, std::string_view flag) {
    if (given)
      throw Invalid("bench one-batch: {} and --speculative-algorithm exclude each other", flag);
  };
  refuse(config.mesh.dp > 1, "--dp-size");
  refuse(config.mesh.pp > 1, "--pp-size");
  refuse(flags.eagle_topk > 1, "--speculative-eagle-topk");
  refuse(args.profile, "--profile");
  refuse(!args.cost_table.empty(), "--cost-table");
  refuse(args.expert_skew.has_value(), "--expert-skew");
  if (SourceOf(flags) == DraftSource::kNgram)
    throw Invalid(
        "bench one-batch: --speculative-algorithm {} drafts from the text, but prompts are random; "
        "want a draft model",
        flags.algorithm);
  if (args.same_experts && config.load_format != "dummy")
    throw Invalid("--same-experts: needs --load-format dummy");
}

void CheckSizes(const EnginePlan& plan, const Sizes& sizes) {
  if (plan.model.has_states())
    throw Invalid("bench one-batch: drafts of {}, which has recurrent states, are not measured",
                  plan.model.architecture);
  for (const Case& c : sizes.cases) {
    if (c.batch > plan.max_running_requests)
      throw Invalid(
          "--batch-size {}: a decode step runs at most {} sequences; raise --max-running-requests",
          c.batch, plan.max_running_requests);
    if (const int64_t length = sizes.tokens_of(c.input, plan.drafts.most);
        length > plan.context_length)
      throw Invalid(
          "--input-len {} and --output-len {}: outputs with drafts may have {} tokens in all, more "
          "than the context length of {}",
          c.input, sizes.steps - kWarmSteps, length, plan.context_length);
  }
}

// Runs the cases on one rank. All ranks do the same.
class Bench {
 public:
  Bench(const OneBatchArgs& args, const EnginePlan& plan, const Sizes& sizes, Target& target,
        Draft& draft)
      : args_(args),
        plan_(plan),
        sizes_(sizes),
        target_(target),
        draft_(draft),
        drafter_(draft, args.server.engine.page_size, plan.max_batch_tokens, /*max_saved_rows=*/0,
                 /*ends_early=*/false, plan.model.eos_token_ids),
        timed_(drafter_) {}

  Steps Measure(Case c, int32_t drafts) {
    Steps measured;
    target_.counts = draft_.counts = true;
    Run(c, drafts, kWarmSteps + kCountedSteps, &measured);
    target_.counts = draft_.counts = false;
    Steps ignored;
    Run(c, drafts, sizes_.steps, &ignored);  // warms up, and records passes as graphs
    for (int32_t i = 0; i < args_.repeat; ++i) Run(c, drafts, sizes_.steps, &measured);
    return measured;
  }

 private:
  RankEngine::Options Options(int32_t drafts) {
    const EngineConfig& config = args_.server.engine;
    return {.page_size = config.page_size,
            .num_pages = plan_.num_pages,
            .num_states = plan_.num_states,
            .state_chunk = plan_.state_chunk(),
            .max_running_requests = plan_.max_running_requests,
            .chunked_prefill_size = plan_.chunked_prefill_size,
            .max_prefill_tokens = config.max_prefill_tokens,
            .enable_radix_cache = false,
            .overlap_schedule = !config.disable_overlap_schedule,
            .context_length = plan_.context_length,
            .eos_token_ids = plan_.model.eos_token_ids,
            .random_seed = config.random_seed,
            .max_drafts = drafts,
            .drafter = drafts > 0 ? &timed_ : nullptr,
            .simulate_acceptance = config.speculative.simulate_acceptance};
  }

  std::vector<ControlMessage> Requests(Case c) {
    std::mt19937 random(7);
    std::uniform_int_distribution<int32_t> token(0,
                                                 static_cast<int32_t>(plan_.model.vocab_size) - 1);
    std::vector<ControlMessage> messages;
    for (int32_t s = 0; s < c.batch; ++s) {
      EngineRequest request{.id = static_cast<uint64_t>(s) + 1};
      for (int32_t i = 0; i < c.input; ++i) request.input_ids.push_back(token(random));
      request.sampling.max_new_tokens =
          static_cast<int32_t>(sizes_.tokens_of(0, plan_.drafts.most));
      request.sampling.temperature = 1;  // greedy outputs of dummy weights repeat themselves
      request.sampling.seed = static_cast<uint64_t>(s);
      request.sampling.ignore_eos = true;
      messages.emplace_back(std::move(request));
    }
    return messages;
  }

  static int64_t TokensOf(const StepOutputs& outputs) {
    int64_t tokens = 0;
    for (const RequestOutput& output : outputs.outputs) {
      if (output.finish == FinishReason::kError)
        throw Resource("a request failed: {}", output.error);
      tokens += std::ssize(output.new_tokens);
    }
    return tokens;
  }

  // Runs `count` steps in which all sequences decode. With `target_.counts` it adds the experts of
  // the last kCountedSteps steps to `steps`, else the times of all steps after the first ones.
  void Run(Case c, int32_t drafts, int32_t count, Steps* steps) {
    RankEngine engine(Options(drafts), target_);
    engine.Apply(Requests(c));
    for (int32_t done = 0; done < count;) {
      if (!engine.HasWork()) throw Resource("all requests ended after {} decode steps", done);
      draft_.experts = 0;
      const auto start = Clock::now();
      const StepCounts counts = engine.Plan();
      const int64_t tokens = TokensOf(engine.Run());
      const double seconds = Seconds(start);
      if (counts.decoding < c.batch || counts.tokens > counts.decode_tokens) continue;
      if (done++ < kWarmSteps) continue;
      if (target_.counts) {
        ++steps->passes;
        steps->target_experts += static_cast<double>(target_.experts);
        steps->draft_experts += draft_.experts;
        continue;
      }
      steps->step.push_back(seconds);
      steps->draft.push_back(drafts > 0 ? timed_.seconds : 0);
      steps->verify.push_back(target_.seconds);
      steps->tokens += static_cast<double>(tokens) / c.batch;
    }
    std::vector<ControlMessage> aborts;
    aborts.reserve(c.batch);
    for (int32_t s = 0; s < c.batch; ++s)
      aborts.emplace_back(AbortRequest{.id = static_cast<uint64_t>(s) + 1});
    engine.Apply(aborts);
    while (engine.HasWork()) engine.Step();
  }

  const OneBatchArgs& args_;
  const EnginePlan& plan_;
  const Sizes& sizes_;
  Target& target_;
  Draft& draft_;
  ModelDrafter drafter_;
  TimedDrafter timed_;
};

// Bytes of weights that passes of the draft model read outside of experts.
double DraftDenseBytes(const EnginePlan& plan) {
  double bytes = WeightsOfPass(*plan.draft).dense;
  if (plan.draft->eagle && !plan.draft->eagle->own_head && !plan.draft->reduced_head)
    bytes += static_cast<double>(plan.model.vocab_size * plan.model.hidden) *
             static_cast<double>(SizeOf(plan.model.dtype));
  return bytes;
}

DraftFigures FiguresOf(Case c, int32_t drafts, const Steps& steps, const EnginePlan& plan) {
  DraftFigures f{.of = c,
                 .drafts = drafts,
                 .step = MiddleMean(steps.step),
                 .draft = MiddleMean(steps.draft),
                 .verify = MiddleMean(steps.verify),
                 .tokens = steps.tokens / static_cast<double>(steps.step.size()),
                 .target_experts = steps.target_experts / steps.passes,
                 .draft_experts = steps.draft_experts / steps.passes};
  const PassWeights target = WeightsOfPass(plan.model), draft = WeightsOfPass(*plan.draft);
  f.bytes = target.dense + f.target_experts * target.expert + drafts * DraftDenseBytes(plan) +
            f.draft_experts * draft.expert;
  return f;
}

}  // namespace

int RunDrafts(const OneBatchArgs& args) {
  CheckFlags(args);
  const Sizes sizes = SizesOf(args);
  EngineConfig config = args.server.engine;
  const int32_t most = sizes.drafts.back();
  for (const Case& c : sizes.cases) {
    const int64_t page = config.page_size;
    const int64_t pages = (sizes.tokens_of(c.input, most) + page - 1) / page + 2;
    config.max_total_tokens = std::max(config.max_total_tokens, c.batch * pages * page);
  }
  if (config.load_format != "dummy") CheckCheckpoint(config.model_path, ReadModelConfig(config));
  EnginePlan plan = MakePlan(config);
  plan.model.same_experts = plan.draft->same_experts = args.same_experts;
  CheckSizes(plan, sizes);
  kernels::SelectIsa(config.cpu_isa);
  const Ceilings ceilings = Measure(config, plan);

  std::vector<DraftFigures> figures;
  const auto run = [&](int r, std::shared_ptr<SharedArena> arena) {
    Rank rank(config, plan, r, std::move(arena));
    rank.options().keeps_hidden = plan.draft->takes_hidden();
    rank.options().kept_inputs = InputsReadBy(*plan.draft, plan.model);
    Model& model = rank.Load();
    KvStorage kv = rank.MakeCache();
    const ExpertServices::Attached attached(rank.experts(), model);
    Target target(model, kv, rank.experts());
    KeptModel kept;
    Draft draft(config, plan, model, &rank.profiler(), rank.comm(), rank.pool(), &kept);
    Bench bench(args, plan, sizes, target, draft);
    for (const Case& c : sizes.cases) {
      for (const int32_t drafts : sizes.drafts) {
        const Steps steps = bench.Measure(c, drafts);
        if (r == 0) figures.push_back(FiguresOf(c, drafts, steps, plan));
      }
      if (r == 0) LOG_INFO("batch {}, input {} done", c.batch, c.input);
    }
  };
  RunRankThreads(config.mesh.tp, plan.symmetric_bytes_per_rank, run);

  ReportDrafts(args, plan, ceilings, figures);
  return 0;
}

}  // namespace switchyard::one_batch
