// Serialization of the messages in engine/request.h: the fields of each, listed once.
#include "engine/request.h"
#include "engine/wire_fields.h"

namespace switchyard {

constexpr ErrorKind LastOf(ErrorKind) { return ErrorKind::kResource; }
constexpr FinishReason LastOf(FinishReason) { return FinishReason::kError; }
constexpr Pooling LastOf(Pooling) { return Pooling::kMean; }
constexpr KvRole LastOf(KvRole) { return KvRole::kImport; }
constexpr RecordAction LastOf(RecordAction) { return RecordAction::kDump; }
constexpr EplbState LastOf(EplbState) { return EplbState::kDone; }
constexpr PauseAction LastOf(PauseAction) { return PauseAction::kAbort; }
constexpr ProfileOutcome LastOf(ProfileOutcome) { return ProfileOutcome::kNotWritten; }

template <typename Codec, OneOf<SamplingParams> T>
void Fields(Codec& codec, T& p) {
  codec(p.max_new_tokens, p.min_new_tokens, p.temperature, p.top_p, p.top_k, p.min_p,
        p.frequency_penalty, p.presence_penalty, p.repetition_penalty, p.seed, p.stop_token_ids,
        p.ignore_eos, p.logit_bias, p.allowed_token_ids, p.bad_words);
}
template <typename Codec, OneOf<LogprobParams> T>
void Fields(Codec& codec, T& p) {
  codec(p.enabled, p.start, p.top, p.token_ids, p.rank);
}
template <typename Codec, OneOf<RoutedExpertsParams> T>
void Fields(Codec& codec, T& p) {
  codec(p.enabled, p.start);
}
template <typename Codec, OneOf<EngineRequest> T>
void Fields(Codec& codec, T& r) {
  codec(r.id, r.input_ids, r.sampling, r.logprob, r.routed_experts, r.pooling, r.group, r.priority,
        r.cache_salt, r.grammar, r.output_ids, r.cached_tokens, r.kv);
}
template <typename Codec, OneOf<AbortRequest, DropGrammar, WantKv> T>
void Fields(Codec& codec, T& m) {
  codec(m.id);
}
template <
    typename Codec,
    OneOf<FlushCache, GetStats, GetExpertLoad, RebalanceExperts, GetWeightChecksums, StopProfile> T>
void Fields(Codec& codec, T& m) {
  codec(m.ticket);
}
template <typename Codec, OneOf<ChangeCache> T>
void Fields(Codec& codec, T& m) {
  codec(m.ticket, m.release);
}
template <typename Codec, OneOf<RecordExperts> T>
void Fields(Codec& codec, T& m) {
  codec(m.ticket, m.action);
}
template <typename Codec, OneOf<profile::Options> T>
void Fields(Codec& codec, T& o) {
  codec(o.dir, o.name, o.start_step, o.num_steps, o.host, o.device, o.by_stage, o.record_shapes);
}
template <typename Codec, OneOf<StartProfile> T>
void Fields(Codec& codec, T& m) {
  codec(m.ticket, m.options);
}
template <typename Codec, OneOf<EngineControls> T>
void Fields(Codec& codec, T& c) {
  codec(c.paused, c.step_delay_seconds, c.max_running_requests, c.max_micro_batch);
}
template <typename Codec, OneOf<SetControls> T>
void Fields(Codec& codec, T& m) {
  codec(m.ticket, m.controls, m.action);
}
template <typename Codec, OneOf<LimitPrefill> T>
void Fields(Codec& codec, T& m) {
  codec(m.rows);
}
template <typename Codec, OneOf<LimitDrafts> T>
void Fields(Codec& codec, T& m) {
  codec(m.drafts);
}
template <typename Codec, OneOf<GrammarTokens> T>
void Fields(Codec& codec, T& m) {
  codec(m.bytes);
}
template <typename Codec, OneOf<DefineGrammar> T>
void Fields(Codec& codec, T& m) {
  codec(m.id, m.bytes);
}
template <typename Codec, OneOf<ReleaseKv> T>
void Fields(Codec& codec, T& m) {
  codec(m.id, m.error);
}
template <typename Codec, OneOf<Shutdown> T>
void Fields(Codec&, T&) {}

template <typename Codec, OneOf<TokenLogprob> T>
void Fields(Codec& codec, T& l) {
  codec(l.token, l.logprob);
}
template <typename Codec, OneOf<PositionLogprobs> T>
void Fields(Codec& codec, T& l) {
  codec(l.logprob, l.token, l.rank, l.top, l.requested);
}
template <typename Codec, OneOf<DraftCounts> T>
void Fields(Codec& codec, T& d) {
  codec(d.steps, d.drafted, d.accepted);
}
template <typename Codec, OneOf<KvPages> T>
void Fields(Codec& codec, T& p) {
  codec(p.begin, p.end, p.pages, p.computed, p.pass, p.pinned, p.state);
}
template <typename Codec, OneOf<RequestOutput> T>
void Fields(Codec& codec, T& o) {
  codec(o.id, o.new_tokens, o.finish, o.matched, o.prompt_tokens, o.cached_tokens, o.queue_seconds,
        o.drafts, o.forced, o.next_drafts, o.input_logprobs, o.output_logprobs, o.routed_experts,
        o.pooled, o.error, o.error_kind, o.kv);
}
template <typename Codec, OneOf<StartImported> T>
void Fields(Codec& codec, T& m) {
  codec(m.id, m.first);
}
template <typename Codec, OneOf<EngineStats> T>
void Fields(Codec& codec, T& s) {
  codec(s.running, s.waiting, s.waiting_tokens, s.total_pages, s.free_pages, s.cached_pages,
        s.page_size, s.steps, s.prefill_tokens, s.cached_prompt_tokens, s.decode_tokens,
        s.retractions, s.verify_steps, s.drafted_tokens, s.accepted_tokens, s.verified_by_position,
        s.accepted_by_position, s.forced_steps, s.forced_tokens, s.accepted_forced_tokens);
}
template <typename Codec, OneOf<StatsReport> T>
void Fields(Codec& codec, T& m) {
  codec(m.ticket, m.groups);
}
template <typename Codec, OneOf<FlushResult> T>
void Fields(Codec& codec, T& m) {
  codec(m.ticket, m.done);
}
template <typename Codec, OneOf<ExpertDump> T>
void Fields(Codec& codec, T& d) {
  codec(d.file, d.error, d.steps, d.layers, d.experts, d.logical_count);
}
template <typename Codec, OneOf<Balancedness> T>
void Fields(Codec& codec, T& b) {
  codec(b.current, b.last_10, b.last_100, b.last_1000);
}
template <typename Codec, OneOf<ExpertLoad> T>
void Fields(Codec& codec, T& l) {
  codec(l.layers, l.experts, l.ranks, l.passes, l.recording, l.balancedness, l.rank_count,
        l.logical_count, l.stage_times, l.timed_passes);
}
template <typename Codec, OneOf<RecordResult> T>
void Fields(Codec& codec, T& m) {
  codec(m.ticket, m.changed, m.dump);
}
template <typename Codec, OneOf<ExpertLoadReport> T>
void Fields(Codec& codec, T& m) {
  codec(m.ticket, m.load, m.error);
}
template <typename Codec, OneOf<EplbStatus> T>
void Fields(Codec& codec, T& s) {
  codec(s.state, s.passes, s.balancedness, s.trigger, s.planned_at, s.layer, s.layers_done,
        s.layers_to_move, s.fills, s.transfer_batches, s.plan_seconds, s.longest_switch_seconds,
        s.move_seconds, s.move_passes, s.plans, s.rebalances, s.layers_moved, s.experts_loaded,
        s.experts_received, s.failures, s.watchdog_resets, s.last_result, s.last_failure);
}
template <typename Codec, OneOf<GetEplb> T>
void Fields(Codec& codec, T& m) {
  codec(m.ticket, m.slots);
}
template <typename Codec, OneOf<EplbReport> T>
void Fields(Codec& codec, T& m) {
  codec(m.ticket, m.status, m.refused, m.slots);
}
template <typename Codec, OneOf<PlacementChanged> T>
void Fields(Codec& codec, T& m) {
  codec(m.ranks, m.slots);
}
template <typename Codec, OneOf<WeightChecksums> T>
void Fields(Codec& codec, T& m) {
  codec(m.ticket, m.ranks, m.error);
}
template <typename Codec, OneOf<CacheChanged> T>
void Fields(Codec& codec, T& m) {
  codec(m.ticket, m.error);
}
template <typename Codec, OneOf<profile::Result> T>
void Fields(Codec& codec, T& r) {
  codec(r.files, r.error, r.events, r.dropped);
}
template <typename Codec, OneOf<ProfileReport> T>
void Fields(Codec& codec, T& m) {
  codec(m.ticket, m.outcome, m.result);
}
template <typename Codec, OneOf<ControlsSet> T>
void Fields(Codec& codec, T& m) {
  codec(m.ticket, m.requests);
}
template <typename Codec, OneOf<StepOutputs> T>
void Fields(Codec& codec, T& m) {
  codec(m.outputs);
}
template <typename Codec, OneOf<RankReady> T>
void Fields(Codec& codec, T& m) {
  codec(m.total_pages, m.page_size, m.max_running_requests, m.context_length);
}
template <typename Codec, OneOf<LoadProgress> T>
void Fields(Codec& codec, T& m) {
  codec(m.done, m.total);
}
template <typename Codec, OneOf<EngineFailure> T>
void Fields(Codec& codec, T& m) {
  codec(m.what, m.kind);
}

std::string EncodeControl(const std::vector<ControlMessage>& messages) {
  return EncodeFields(messages);
}
std::vector<ControlMessage> DecodeControl(std::string_view bytes) {
  return DecodeFields<std::vector<ControlMessage>>(bytes);
}
std::string EncodeMessage(const EngineMessage& message) { return EncodeFields(message); }
EngineMessage DecodeMessage(std::string_view bytes) { return DecodeFields<EngineMessage>(bytes); }
std::string EncodeMessages(const std::vector<EngineMessage>& messages) {
  return EncodeFields(messages);
}
std::vector<EngineMessage> DecodeMessages(std::string_view bytes) {
  return DecodeFields<std::vector<EngineMessage>>(bytes);
}

namespace {

void AddTo(std::vector<int64_t>& sums, const std::vector<int64_t>& values) {
  if (sums.size() < values.size()) sums.resize(values.size());
  for (size_t i = 0; i < values.size(); ++i) sums[i] += values[i];
}

}  // namespace

EngineStats Total(const std::vector<EngineStats>& groups) {
  EngineStats total;
  for (const EngineStats& g : groups) {
    total.running += g.running;
    total.waiting += g.waiting;
    total.waiting_tokens += g.waiting_tokens;
    total.total_pages += g.total_pages;
    total.free_pages += g.free_pages;
    total.cached_pages += g.cached_pages;
    total.page_size = g.page_size;
    total.steps += g.steps;
    total.prefill_tokens += g.prefill_tokens;
    total.cached_prompt_tokens += g.cached_prompt_tokens;
    total.decode_tokens += g.decode_tokens;
    total.retractions += g.retractions;
    total.verify_steps += g.verify_steps;
    total.drafted_tokens += g.drafted_tokens;
    total.accepted_tokens += g.accepted_tokens;
    AddTo(total.verified_by_position, g.verified_by_position);
    AddTo(total.accepted_by_position, g.accepted_by_position);
    total.forced_steps += g.forced_steps;
    total.forced_tokens += g.forced_tokens;
    total.accepted_forced_tokens += g.accepted_forced_tokens;
  }
  return total;
}

}  // namespace switchyard
