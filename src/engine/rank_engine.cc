#include "engine/rank_engine.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <optional>
#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "engine/kv_cache/kv_cache.h"
#include "engine/rank_engine_impl.h"
#include "engine/sampler/logprobs.h"
#include "engine/sampler/penalties.h"
#include "engine/sampler/random.h"
#include "engine/sampler/sampler.h"
#include "engine/sampler/softmax.h"
#include "engine/scheduler/batch.h"
#include "engine/scheduler/scheduler.h"
#include "engine/speculative/drafter.h"
#include "kernels/state_rule.h"

namespace switchyard {

int64_t MaxLogitRows(int64_t width) {
  constexpr int64_t kBytes = int64_t{256} << 20;
  return std::max<int64_t>(1, kBytes / (width * static_cast<int64_t>(sizeof(float))));
}

int64_t MaxPromptRows(int64_t chunk, int64_t max_prefill_tokens, int64_t context_length) {
  if (chunk < 0) return std::max(context_length, max_prefill_tokens);
  return max_prefill_tokens > 0 ? std::min(chunk, max_prefill_tokens) : chunk;
}

namespace {

// Parameters for sampling the sequence's next token on the device. nullopt if the engine needs the
// token's logits on the host. `more`: the number of drafts before the token.
std::optional<kernels::RowSampling> DeviceDrawParams(const Sequence& sequence, int64_t more) {
  const EngineRequest& request = sequence.request;
  const SamplingParams& params = request.sampling;
  const int64_t drawn = std::ssize(sequence.output()) + more;
  if (sequence.pooled() || params.max_new_tokens == 0 || request.logprob.enabled ||
      sequence.logprobs_pending() || Penalties::Needed(params, drawn))
    return std::nullopt;
  return Sampler::RowSamplingOf(params, UniformDraw(*params.seed, drawn));
}

Scheduler::Options SchedulerOptions(const RankEngine::Options& options, int64_t width, int passes) {
  const bool whole = options.chunked_prefill_size < 0;
  return {.max_running_requests = options.max_running_requests,
          .chunk_rows = MaxPromptRows(options.chunked_prefill_size, options.max_prefill_tokens,
                                      options.context_length),
          .whole_prompts = whole,
          // Prompts with many logit rows also advance by whole chunks.
          .max_logit_rows = std::max<int64_t>(
              options.max_logit_rows ? options.max_logit_rows : MaxLogitRows(width),
              options.state_chunk > 0 ? options.max_running_requests + options.state_chunk : 0),
          .policy = options.policy,
          .conservativeness = options.conservativeness,
          .priorities = options.priorities,
          .preemption_threshold = options.preemption_threshold,
          .max_draft_rows = int64_t{options.max_drafts} * options.max_running_requests,
          .drafts_take_room = options.max_forced > 0,
          .chunk_keys = options.chunk_keys,
          .passes = passes,
          .max_micro_batch = options.max_micro_batch};
}

}  // namespace

RankEngine::Impl::Impl(Options from, ForwardFunction& model)
    : options(std::move(from)),
      model(model),
      vocab(model.vocab_size()),
      width(model.output_width()),
      cache(options.num_pages, options.page_size, options.enable_radix_cache, options.records,
            {.slots = options.num_states,
             .running = options.max_running_requests,
             .chunk = options.state_chunk,
             .drafts = options.drafter ? options.max_drafts : 0,
             .held = options.held_states}),
      scheduler(SchedulerOptions(options, width, model.passes_in_flight()), cache),
      sampler(vocab, options.eos_token_ids),
      max_length(std::min(options.context_length, cache.capacity())),
      max_forced(model.draws() ? 0 : options.max_forced),
      draft_limit(speculates() ? most_drafts() : 0) {
  CHECK(options.max_running_requests > 0 && options.context_length > 0);
  CHECK_NE(options.chunked_prefill_size, 0);
  CHECK(MaxPromptRows(options.chunked_prefill_size, options.max_prefill_tokens,
                      options.context_length) >=
        std::min<int64_t>(options.state_chunk, options.context_length));
  CHECK(options.num_states == 0 ||
        (options.max_drafts <= kernels::kMaxStateCopies && options.tree_depth == 0 &&
         options.max_forced == 0 && (!speculates() || model.passes_in_flight() == 1)));
  CHECK(!options.results_have_drafts ||
        (model.passes_in_flight() > 1 && max_forced == 0 && options.tree_depth == 0 &&
         (options.drafter != nullptr) == model.has_logits()));
  for (const int32_t id : options.eos_token_ids) CHECK(id >= 0 && id < vocab);
}

void RankEngine::Impl::CheckRequest(const EngineRequest& request) const {
  const auto length = static_cast<int64_t>(request.input_ids.size());
  if (length == 0) throw Invalid("the prompt is empty");
  if (request.pooling != model.pooling())
    throw Invalid("the model {}", request.pooling == Pooling::kNone
                                      ? "generates no text: it returns one vector for each prompt"
                                      : "generates text, or has another kind of pooling");
  const int64_t room = options.context_length - (request.pooling == Pooling::kNone ? 1 : 0);
  if (length > room)
    throw Invalid("the prompt has {} tokens; {}the context holds {}", length,
                  room < options.context_length ? "with one to generate, " : "", room);
  // An imported request has pages for its first token before it runs.
  if (length + (request.kv == KvRole::kImport ? 1 : 0) > cache.capacity())
    throw Invalid("the prompt has {} tokens; the cache holds {} (--max-total-tokens)", length,
                  cache.capacity());
  for (const int32_t id : request.input_ids)
    if (id < 0 || id >= vocab)
      throw Invalid("the prompt has token id {}, want 0 to {}", id, vocab - 1);
  Validate(request.sampling, vocab);
  Validate(request.logprob, vocab);
  Validate(request.routed_experts, length, model.routed_width() > 0);
  if (request.grammar != 0 && !grammars.Find(request.grammar))
    throw Invalid("grammar {} is not defined", request.grammar);
  CheckOutput(request);
}

void RankEngine::Impl::CheckOutput(const EngineRequest& request) const {
  const auto input = std::ssize(request.input_ids), output = std::ssize(request.output_ids);
  if (output == 0) return;
  if (request.pooling != Pooling::kNone) throw Invalid("a pooled request has no output");
  if (output >= request.sampling.max_new_tokens || input + output >= max_length)
    throw Invalid("the request has {} tokens of output already, which is its limit", output);
  for (const int32_t id : request.output_ids)
    if (id < 0 || id >= vocab)
      throw Invalid("the output so far has token id {}, want 0 to {}", id, vocab - 1);
}

void RankEngine::Impl::Enqueue(const EngineRequest& request) {
  try {
    CheckRequest(request);
  } catch (const Error& error) {
    answers.push_back({.id = request.id,
                       .finish = FinishReason::kError,
                       .prompt_tokens = static_cast<int32_t>(request.input_ids.size()),
                       .error = error.what(),
                       .error_kind = error.kind()});
    return;
  }
  const auto [entry, added] = table.try_emplace(request.id, request);
  CHECK(added);  // ids of open requests are unique
  Sequence& sequence = entry->second;
  if (request.grammar != 0) {
    sequence.grammar =
        std::make_unique<SequenceGrammar>(*grammars.Find(request.grammar), request.output_ids);
    ++open_grammars;
  }
  if (!sequence.request.sampling.seed)
    sequence.request.sampling.seed = DeriveSeed(options.random_seed, request.id);
  if (request.kv == KvRole::kImport) {
    scheduler.EnqueueImport(&sequence);
  } else {
    scheduler.Enqueue(&sequence);
  }
}

void RankEngine::Impl::Abort(uint64_t id) {
  const auto entry = table.find(id);
  if (entry == table.end()) return;  // already finished
  RequestOutput output = NewOutput(entry->second);
  output.finish = FinishReason::kAbort;
  answers.push_back(std::move(output));
  Close(entry->second, /*discard=*/false);
}

RequestOutput RankEngine::Impl::NewOutput(Sequence& sequence) const {
  return {.id = sequence.request.id,
          .prompt_tokens = static_cast<int32_t>(sequence.prompt_length),
          .cached_tokens = sequence.cached_tokens,
          .queue_seconds = sequence.queue_seconds,
          .drafts = sequence.draft_counts,
          .forced = sequence.forced_counts,
          .routed_experts = std::exchange(sequence.routed_experts, {})};
}

void RankEngine::Impl::Close(Sequence& sequence, bool discard) {
  const uint64_t id = sequence.request.id;
  sequence.Truncate(sequence.known_length());
  scheduler.Remove(&sequence, discard);
  if (sequence.grammar) --open_grammars;
  table.erase(id);
}

void RankEngine::Impl::Fail(Sequence& sequence, const std::string& error, ErrorKind kind) {
  RequestOutput output = NewOutput(sequence);
  output.finish = FinishReason::kError;
  output.error = error;
  output.error_kind = kind;
  answers.push_back(std::move(output));
  Close(sequence, /*discard=*/true);  // its results are not trusted
}

void RankEngine::Impl::MeasureQueue() {
  std::optional<std::chrono::steady_clock::time_point> now;
  for (const ScheduledRows& part : plan) {
    Sequence& sequence = *part.sequence;
    if (sequence.queue_seconds >= 0) continue;
    if (!now) now = std::chrono::steady_clock::now();
    sequence.queue_seconds = std::chrono::duration<float>(*now - sequence.arrival).count();
  }
}

StepCounts RankEngine::Impl::Plan() {
  const profile::Span span(options.profiler, {.name = "plan"});
  const int64_t retractions = scheduler.retractions();
  if (controls.paused) {
    plan = {};
  } else {
    plan = scheduler.Plan();
    AnswerPages(retractions);
  }
  MeasureQueue();
  reverts_states = !cache.has_states();
  if (cache.has_states())
    for (const ScheduledRows& part : plan)
      cache.PrepareStates(part.sequence->computed, part.rows, part.sequence->cache,
                          part.sequence->decoding() && !part.sequence->drafts.empty());
  parts.clear();
  std::vector<int64_t> draft_slots(plan.size());
  for (size_t i = 0; options.results_have_drafts && i < plan.size(); ++i)
    draft_slots[i] = ReserveDrafts(plan[i]);
  BuildBatch(plan, options.page_size, batch);
  for (const ScheduledRows& part : plan) {
    const Sequence& sequence = *part.sequence;
    parts.push_back({.id = sequence.request.id,
                     .rows = part.rows,
                     .end = sequence.computed + part.rows,
                     .logit_rows = static_cast<size_t>(sequence.LogitRows(part.rows).size()),
                     .decoding = sequence.decoding(),
                     .drafts = sequence.decoding() ? sequence.drafts.size() : 0,
                     .admission = sequence.admissions,
                     .range = sequence.LogitRows(part.rows),
                     .last = part.rows >= sequence.pending(),
                     .samples = part.rows >= sequence.pending() && !sequence.pooled() &&
                                !sequence.first_sent &&
                                sequence.request.sampling.max_new_tokens > 0,
                     .draft_slots = draft_slots[parts.size()]});
  }
  RequestDeviceSampling();
  return {.tokens = batch.num_tokens(),
          .decode_tokens = batch.decode_tokens,
          .logit_rows = std::ssize(batch.logit_rows),
          .decoding = std::ranges::count_if(parts, &Part::decoding),
          .routed_experts = batch.routed_experts ? 1 : 0,
          .host_logits = NeedsLogits() || Exports() ? 1 : 0};
}

void RankEngine::Impl::SetGroups(std::span<const StepCounts> groups) {
  batch.group_tokens.clear();
  batch.group_decode_tokens.clear();
  batch.group_logit_rows.clear();
  batch.groups_want_routed_experts = false;
  for (const StepCounts& group : groups) {
    batch.group_tokens.push_back(group.tokens);
    batch.group_decode_tokens.push_back(group.decode_tokens);
    batch.group_logit_rows.push_back(group.logit_rows);
    batch.groups_want_routed_experts |= group.routed_experts != 0;
  }
}

StepOutputs RankEngine::Impl::Run(std::span<const StepCounts> groups) {
  SetGroups(groups);
  scheduler.SetOthersDecode(
      std::ranges::any_of(groups, [](const StepCounts& group) { return group.decode_tokens > 0; }));
  const bool others =
      std::ranges::any_of(groups, [](const StepCounts& group) { return group.tokens > 0; });
  const bool runs = others || !plan.empty();
  if (model.passes_in_flight() > 1) return RunStaged(groups, runs);
  const bool launches = runs && CanLaunch(groups);
  bool aborted = false;
  std::span<const float> logits;
  std::optional<LaunchedPass> previous = std::exchange(launched, std::nullopt);
  const auto end_previous = [&] {
    if (const auto pass = std::exchange(previous, std::nullopt)) ProcessLaunched(pass->parts);
  };
  if (runs && !batch.draws.empty() && PlansGrammars()) {
    // Called when the device may already compute the current pass. The masks depend on the tokens
    // of the previous pass.
    batch.masks = [&]() -> const TokenMasks& {
      if (launches) AdvanceLaunched();
      end_previous();
      FillMasks(launches ? launched->parts : parts);
      return masks;
    };
  }
  try {
    if (runs) batch.pass = ++last_pass;
    if (launches) {
      Launch();
    } else if (runs) {
      logits = Forward();
      aborted = model.aborted();
    }
  } catch (...) {
    batch.masks = nullptr;
    forwards = false;
    plan = {};
    if (launched) RevertLaunched();  // the error came after the masks were filled
    launched = std::move(previous);
    throw;
  }
  batch.masks = nullptr;
  if (launches && !launched) AdvanceLaunched();
  end_previous();
  if (runs && !launches && !aborted) {
    const profile::Span span(options.profiler,
                             {.name = "sample", .rows = std::ssize(batch.logit_rows)});
    const std::vector<Part> pass = parts;
    ProcessPass({logits, model.drawn()});
    ProposeDrafts(pass);
  }
  if (batch.decode_tokens > 0 && runs) LogDecoding();
  plan = {};
  return {std::exchange(answers, {})};
}

std::span<const float> RankEngine::Impl::Forward() {
  const profile::Span span(options.profiler, {.name = "forward", .rows = batch.num_tokens()});
  forwards = true;
  const std::span<const float> logits = model.Forward(batch);
  forwards = false;
  return logits;
}

void RankEngine::Impl::Launch() {
  const profile::Span span(options.profiler, {.name = "launch", .rows = batch.num_tokens()});
  model.Launch(batch);
}

void RankEngine::Impl::RequestDeviceSampling() {
  batch.draws.clear();
  if (!model.draws() || batch.logit_rows.empty()) return;
  for (size_t i = 0; i < plan.size(); ++i) {
    const Sequence& sequence = *plan[i].sequence;
    if (parts[i].logit_rows == 0) continue;
    std::vector<int32_t> depths = {0};  // of the rows: the number of drafts before their tokens
    if (parts[i].drafts > 0) depths = DraftTree{sequence.drafts, sequence.draft_parents}.Depths();
    // The token mask after a draft depends on that draft, but FillMasks fills one mask for each
    // sequence. So tokens with both drafts and a grammar are sampled on the host.
    const bool masked_drafts = parts[i].drafts > 0 && sequence.grammar;
    for (const int32_t depth : depths) {
      const auto draw = masked_drafts ? std::nullopt : DeviceDrawParams(sequence, depth);
      if (!draw) {
        batch.draws.clear();
        return;
      }
      batch.draws.push_back(*draw);
    }
  }
}

bool RankEngine::Impl::PlansGrammars() const {
  return std::ranges::any_of(plan, [](const ScheduledRows& part) {
    return part.sequence->grammar && part.sequence->LogitRows(part.rows).size() > 0;
  });
}

bool RankEngine::Impl::NeedsLogits() const {
  return batch.routed_experts ||
         (model.has_logits() && batch.draws.size() != batch.logit_rows.size());
}

bool RankEngine::Impl::CanLaunch(std::span<const StepCounts> groups) const {
  if (!options.overlap_schedule || !model.launches() || NeedsLogits() || speculates()) return false;
  const auto forwards_now = [](const StepCounts& group) { return group.host_logits != 0; };
  return !Exports() && !(model.launches_together() && std::ranges::any_of(groups, forwards_now));
}

RankEngine::RankEngine(Options options, ForwardFunction& model)
    : impl_(std::make_unique<Impl>(std::move(options), model)) {}
RankEngine::~RankEngine() = default;

std::vector<EngineMessage> RankEngine::Apply(const std::vector<ControlMessage>& messages) {
  std::vector<EngineMessage> answers;
  for (const ControlMessage& message : messages) {
    if (const auto* request = std::get_if<EngineRequest>(&message)) {
      if (request->group.value_or(0) == impl_->options.group) impl_->Enqueue(*request);
    } else if (const auto* abort = std::get_if<AbortRequest>(&message)) {
      impl_->Abort(abort->id);
    } else if (const auto* start = std::get_if<StartImported>(&message)) {
      impl_->Start(*start);
    } else if (const auto* release = std::get_if<ReleaseKv>(&message)) {
      impl_->Release(*release);
    } else if (const auto* want = std::get_if<WantKv>(&message)) {
      if (auto answer = impl_->Want(*want)) answers.emplace_back(StepOutputs{{*std::move(answer)}});
    } else if (const auto* flush = std::get_if<FlushCache>(&message)) {
      const bool idle = impl_->CanFlush();
      if (idle) impl_->cache.DropPrefixes();
      answers.emplace_back(FlushResult{.ticket = flush->ticket, .done = idle});
    } else if (const auto* get = std::get_if<GetStats>(&message)) {
      answers.emplace_back(StatsReport{.ticket = get->ticket, .groups = {Stats()}});
    } else if (const auto* set = std::get_if<SetControls>(&message)) {
      impl_->Set(*set, &answers);
    } else if (std::holds_alternative<ChangeCache>(message)) {
      impl_->Reset(&answers);
    } else if (const auto* limit = std::get_if<LimitPrefill>(&message)) {
      impl_->scheduler.LimitPrefill(limit->rows);
    } else if (const auto* limit = std::get_if<LimitDrafts>(&message)) {
      impl_->draft_limit =
          impl_->speculates() ? std::min<int64_t>(limit->drafts, impl_->most_drafts()) : 0;
    } else if (const auto* tokens = std::get_if<GrammarTokens>(&message)) {
      impl_->grammars.SetVocabulary(tokens->bytes);
    } else if (const auto* define = std::get_if<DefineGrammar>(&message)) {
      impl_->grammars.Define(define->id, define->bytes);
    } else if (const auto* drop = std::get_if<DropGrammar>(&message)) {
      impl_->grammars.Drop(drop->id);
    }  // the loop handles Shutdown and messages for the recorder
  }
  return answers;
}

std::optional<PrefillPace> RankEngine::prefill_pace() const {
  const Options& o = impl_->options;
  if (o.target_step_ms == 0 || o.chunked_prefill_size < 0) return std::nullopt;
  const int64_t rows =
      MaxPromptRows(o.chunked_prefill_size, o.max_prefill_tokens, o.context_length);
  return PrefillPace(std::max(0.0, o.target_step_ms) / 1e3, rows);
}

std::optional<DraftPace> RankEngine::draft_pace() const {
  const Options& o = impl_->options;
  if (!o.drafter || !o.adapt_drafts) return std::nullopt;
  return DraftPace(o.max_drafts);
}

int32_t RankEngine::draft_limit() const { return static_cast<int32_t>(impl_->draft_limit); }

std::span<const int64_t> RankEngine::accepted_drafts() const {
  return impl_->counters.accepted_by_position;
}

int64_t RankEngine::running() const { return impl_->scheduler.running(); }

bool RankEngine::DraftsPayBacklog() const {
  if (!impl_->options.drafter) return true;
  int64_t missed = 0, remaining = 0;
  for (const auto& [id, sequence] : impl_->table) {
    if (!sequence.decoding()) continue;
    missed += impl_->options.drafter->Backlog(sequence);
    remaining += sequence.request.sampling.max_new_tokens - sequence.output_length();
  }
  return missed <= remaining;
}

bool RankEngine::launched() const { return impl_->launched.has_value(); }
bool RankEngine::launches() const { return impl_->model.launches(); }

std::vector<uint64_t> RankEngine::InFlight() const {
  std::vector<uint64_t> ids;
  for (const ScheduledRows& part : impl_->plan) ids.push_back(part.sequence->request.id);
  if (impl_->launched)
    for (const Impl::Part& part : impl_->launched->parts) ids.push_back(part.id);
  for (const Impl::StagedPass& pass : impl_->staged)
    for (const Impl::Part& part : pass.parts) ids.push_back(part.id);
  return ids;
}
uint64_t RankEngine::last_pass() const { return impl_->last_pass; }

void RankEngine::Impl::Collect() {
  CHECK(plan.empty());
  if (const auto pass = std::exchange(launched, std::nullopt)) ProcessLaunched(pass->parts);
  while (!staged.empty()) ProcessStaged();
}

StepOutputs RankEngine::Collect() {
  impl_->Collect();
  return {std::exchange(impl_->answers, {})};
}

bool RankEngine::paused() const { return impl_->controls.paused; }
std::chrono::duration<double> RankEngine::step_delay() const {
  return std::chrono::duration<double>(impl_->controls.step_delay_seconds);
}

bool RankEngine::AbortPass(uint64_t pass) {
  const bool forwards = impl_->forwards && pass == impl_->last_pass;
  const bool launched =
      !impl_->forwards && impl_->launched && impl_->launched->pass == pass && impl_->reverts_states;
  if (!forwards && !launched) return false;
  impl_->model.AbortPass(pass);
  if (launched) impl_->RevertLaunched();
  return true;
}
bool RankEngine::HasWork() const { return impl_->HasWork(); }
StepCounts RankEngine::Plan() { return impl_->Plan(); }
StepOutputs RankEngine::Run(std::span<const StepCounts> groups) { return impl_->Run(groups); }
EngineStats RankEngine::Stats() const { return impl_->Stats(); }
bool RankEngine::PoolIsWhole() const { return impl_->cache.IsWhole(); }

}  // namespace switchyard
