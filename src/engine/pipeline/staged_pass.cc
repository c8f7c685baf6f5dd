// Passes of pipeline stages: several are in flight, and their results come from the last stage.
#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "engine/rank_engine_impl.h"
#include "engine/speculative/draft_tree.h"
#include "engine/speculative/drafter.h"

namespace switchyard {
namespace {

bool IsNotFinite(const RequestOutput& result) {
  return result.finish == FinishReason::kError && result.error.empty();
}

bool HasLogitRows(const auto& part) { return part.logit_rows > 0; }

// The rows of a verified part that are kept: of the last known token and of the accepted drafts.
template <typename Part>
Part KeptRows(Part part, size_t tokens) {
  const int64_t begin = part.end - part.rows;
  part.rows = std::max<int64_t>(1, static_cast<int64_t>(tokens));
  part.end = begin + part.rows;
  return part;
}

// What a stage needs to follow the others: results without log-probabilities, chosen experts and
// pooled vectors.
StepOutputs WithoutValues(const StepOutputs& results) {
  StepOutputs small;
  for (const RequestOutput& result : results.outputs)
    small.outputs.push_back({.id = result.id,
                             .new_tokens = result.new_tokens,
                             .finish = result.finish,
                             .drafts = result.drafts,
                             .next_drafts = result.next_drafts,
                             .error = result.error,
                             .error_kind = result.error_kind});
  return small;
}

}  // namespace

StepOutputs RankEngine::Impl::RunStaged(std::span<const StepCounts> groups, bool runs) {
  if (runs) StartStaged(groups);
  plan = {};
  if (!staged.empty() && (!runs || std::ssize(staged) >= model.passes_in_flight())) ProcessStaged();
  if (batch.decode_tokens > 0 && runs) LogDecoding();
  return {std::exchange(answers, {})};
}

// The device computes a launched pass while the host collects the pass before, and then processes
// the oldest one. The pass before need not be known first: it is in flight at another stage, too.
void RankEngine::Impl::StartStaged(std::span<const StepCounts> groups) {
  batch.pass = ++last_pass;
  if (!batch.draws.empty() && PlansGrammars()) {
    // Only sequences whose tokens are known are planned, so the masks depend on no pass in flight.
    batch.masks = [this]() -> const TokenMasks& {
      FillMasks(parts);
      return masks;
    };
  }
  StagedPass pass;
  if (CanLaunch(groups)) {
    Launch();
    pass.launched = true;
    if (!staged.empty()) CollectStaged(staged.back());
  } else {
    if (!staged.empty()) CollectStaged(staged.back());  // results are sent in the order of passes
    const std::span<const float> logits = Forward();
    if (model.has_logits()) pass.results = Evaluate(logits);
  }
  batch.masks = nullptr;
  AdvanceStaged();
  pass.number = batch.pass;
  pass.parts = std::exchange(parts, {});
  staged.push_back(std::move(pass));
}

StepOutputs RankEngine::Impl::Evaluate(std::span<const float> logits) {
  Rows all;
  if (batch.draws.empty()) {
    all.logits = logits;
    CHECK_EQ(std::ssize(logits), std::ssize(batch.logit_rows) * width);
  } else {
    all.drawn = model.drawn();
    CHECK_EQ(all.drawn.size(), batch.logit_rows.size());
  }
  const profile::Span span(options.profiler,
                           {.name = "sample", .rows = std::ssize(batch.logit_rows)});
  StepOutputs results;
  size_t begin = 0;
  int64_t first_row = 0;
  for (size_t i = 0; i < plan.size(); ++i) {
    const Part& part = parts[i];
    Sequence& sequence = *plan[i].sequence;
    const int64_t own_row = first_row;
    first_row += part.rows;
    if (part.drafts == 0) KeepRouted(sequence, part, own_row);
    if (part.logit_rows == 0) continue;
    Rows own;
    if (batch.draws.empty()) {
      own.logits = all.logits.subspan(begin * width, part.logit_rows * width);
    } else {
      own.drawn = all.drawn.subspan(begin, part.logit_rows);
    }
    begin += part.logit_rows;
    if (part.drafts == 0) {
      results.outputs.push_back(ResultOf(sequence, part, own));
    } else {
      results.outputs.push_back(ResultOfDrafts(sequence, part, own));
      KeepRouted(sequence, KeptRows(part, results.outputs.back().new_tokens.size()), own_row);
    }
    results.outputs.back().routed_experts = std::exchange(sequence.staged_routed.rows, {});
  }
  if (options.results_have_drafts) ProposeInResults(results);
  SendResults(results);
  return results;
}

int64_t RankEngine::Impl::ReserveDrafts(const ScheduledRows& part) {
  Sequence& sequence = *part.sequence;
  if (part.rows < sequence.pending() || sequence.pooled()) return 0;
  if (sequence.request.kv == KvRole::kExport) return 0;  // another engine continues it
  const int64_t tokens = sequence.request.sampling.max_new_tokens - sequence.output_length();
  const int64_t room = max_length - sequence.length();
  const int64_t most = std::ssize(sequence.drafts) + 1 + draft_limit;
  // The last token of an output has no row.
  return scheduler.GrowForDrafts(std::min({most, tokens - 1, room - 1}), sequence);
}

// The drafter needs the sequences as they will be when the results are applied.
void RankEngine::Impl::ProposeInResults(StepOutputs& results) {
  struct Ahead {
    RequestOutput* result = nullptr;  // null: of a part that gives no token
    int64_t length = 0, computed = 0;
  };
  const profile::Span span(options.profiler, {.name = "draft"});
  std::vector<DraftPart> open;
  std::vector<Ahead> ahead;
  auto next = results.outputs.begin();
  int64_t row = 0;
  for (size_t i = 0; i < plan.size(); ++i) {
    const Part& part = parts[i];
    Sequence& sequence = *plan[i].sequence;
    const int64_t first_row = std::exchange(row, row + part.rows);
    RequestOutput* const result = HasLogitRows(part) ? &*next++ : nullptr;
    const bool failed = result && result->finish == FinishReason::kError;
    // A prompt that is computed again for another engine has no first token.
    const bool again = sequence.first_sent && part.last;
    if (failed || (part.last && !part.samples && !again)) continue;  // the request ends
    if (again && part.rows == 1) continue;
    const Ahead before{part.samples ? result : nullptr, sequence.length(), sequence.computed};
    const auto tokens = part.samples ? std::ssize(result->new_tokens) : 0;
    const Part kept = part.drafts > 0 ? KeptRows(part, static_cast<size_t>(tokens)) : part;
    if (part.samples) {
      sequence.tokens.insert(sequence.tokens.end(), result->new_tokens.begin(),
                             result->new_tokens.end());
      RequestOutput end;
      CheckFinished(sequence, sequence.tokens.back(), sequence.length(), end);
      if (end.finish != FinishReason::kNone) {
        sequence.tokens.resize(static_cast<size_t>(before.length));
        continue;
      }
    }
    sequence.computed = kept.end;
    sequence.KeepDrafts(0);
    const bool exports = sequence.request.kv == KvRole::kExport;  // another engine continues it
    const int64_t wanted = exports ? 0
                                   : std::min(WantedDrafts(sequence, draft_limit),
                                              std::max<int64_t>(0, part.draft_slots - tokens));
    open.push_back({.sequence = &sequence,
                    .first_row = first_row,
                    .begin = kept.end - kept.rows,
                    .rows = kept.rows - (again ? 1 : 0),
                    .decoding = part.decoding,
                    .wanted = wanted,
                    .slots = wanted});
    ahead.push_back(before);
  }
  options.drafter->Draft(open, draft_limit);
  for (size_t i = 0; i < open.size(); ++i) {
    Sequence& sequence = *open[i].sequence;
    CHECK_LE(std::ssize(sequence.drafts), open[i].wanted);
    if (ahead[i].result) ahead[i].result->next_drafts = std::exchange(sequence.drafts, {});
    sequence.tokens.resize(static_cast<size_t>(ahead[i].length));
    sequence.computed = ahead[i].computed;
  }
}

void RankEngine::Impl::TakeDrafts(Sequence& sequence, RequestOutput& result) {
  sequence.drafts = std::move(result.next_drafts);
  if (sequence.drafts.empty()) return;  // the last token may have no page yet
  CHECK_LE(sequence.length() + std::ssize(sequence.drafts),
           std::ssize(sequence.cache.pages) * options.page_size);
  for (const int32_t token : sequence.drafts) CHECK(token >= 0 && token < vocab);
}

void RankEngine::Impl::SendResults(const StepOutputs& results) {
  if (results.outputs.empty() && !options.all_results) return;
  model.SendResults(EncodeMessage(model.sends_values() ? results : WithoutValues(results)));
}

// The tokens of a launched pass need no state of its sequences, which may have ended.
void RankEngine::Impl::CollectStaged(StagedPass& pass) {
  if (!std::exchange(pass.launched, false)) return;
  std::span<const int32_t> drawn;
  {
    const profile::Span span(options.profiler, {.name = "collect"});
    drawn = model.Collect();
  }
  if (!model.has_logits()) return;
  CHECK_EQ(std::ssize(drawn), std::ranges::count_if(pass.parts, HasLogitRows<Part>));
  auto token = drawn.begin();
  for (const Part& part : pass.parts) {
    if (!HasLogitRows(part)) continue;
    RequestOutput& result = pass.results.outputs.emplace_back();
    result.id = part.id;
    if (*token < 0) {
      result.finish = FinishReason::kError;  // a logit is not finite
    } else {
      result.new_tokens.push_back(*token);
    }
    ++token;
  }
  SendResults(pass.results);
}

void RankEngine::Impl::KeepRouted(Sequence& sequence, const Part& part, int64_t first_row) const {
  if (!sequence.routed_experts_pending() || !model.sends_values()) return;
  Sequence::StagedRouted& kept = sequence.staged_routed;
  if (kept.admission != part.admission)
    kept = {.rows = {}, .end = sequence.next_routed, .admission = part.admission};
  const int64_t begin = part.end - part.rows, first = std::max(begin, kept.end);
  if (first >= part.end) return;
  CHECK_LE(begin, kept.end);  // guaranteed by max_reusable
  const int64_t width = model.routed_width();
  const auto rows = model.routed_experts().subspan((first_row + first - begin) * width,
                                                   (part.end - first) * width);
  kept.rows.insert(kept.rows.end(), rows.begin(), rows.end());
  kept.end = part.end;
}

RequestOutput RankEngine::Impl::ResultOf(Sequence& sequence, const Part& part, const Rows& own) {
  RequestOutput result{.id = part.id};
  if (!own.finite()) {
    result.finish = FinishReason::kError;
    return result;
  }
  if (sequence.pooled()) {
    // Sums in the order of passes. After a retraction, rows in the sum may be computed again.
    const int64_t known =
        std::clamp<int64_t>(sequence.pooled_end - part.range.begin, 0, part.range.size());
    AddPooled(sequence, own.logits.subspan(static_cast<size_t>(known * width)));
    sequence.pooled_end = std::max(sequence.pooled_end, part.range.end);
    if (part.last) result.pooled = PooledOf(sequence);
    return result;
  }
  // Earlier chunks may be in flight, so next_logprob may be behind.
  for (int64_t i = 0; i < PromptLogprobs(sequence, part); ++i)
    AppendLogprobs(sequence, own.logits.subspan(i * vocab, vocab),
                   sequence.tokens[part.range.begin + i + 1], result.input_logprobs);
  if (!part.samples) return result;
  const std::optional<int32_t> token = Draw(sequence, own);
  if (!token) {
    result.finish = FinishReason::kError;
    result.error = WhyNoToken(sequence);
    result.error_kind = ErrorKind::kInvalid;
    return result;
  }
  if (options.results_have_drafts && sequence.grammar) {  // drafts follow the token's state
    sequence.grammar->Accept(*token);
    sequence.grammar_ahead = true;
    if (!sequence.grammar->failure().empty()) {
      result.finish = FinishReason::kError;
      result.error = sequence.grammar->failure();
      result.error_kind = ErrorKind::kInvalid;
      return result;
    }
  }
  result.new_tokens.push_back(*token);
  AppendLogprobs(sequence, own.logits, *token, result.output_logprobs);
  return result;
}

void RankEngine::Impl::AdvanceStaged() {
  if (!plan.empty()) ++counters.steps;
  for (size_t i = 0; i < plan.size(); ++i) {
    Sequence& sequence = *plan[i].sequence;
    const Part& part = parts[i];
    if (!part.decoding) counters.prefill_tokens += part.rows;
    // Of rows with drafts, only the first one is certain to be kept.
    sequence.computed = part.end - static_cast<int64_t>(part.drafts);
    if (sequence.request.kv == KvRole::kExport)  // Announced has sent the pages of these rows
      sequence.exported = std::min(part.end, sequence.prompt_length);
    sequence.KeepDrafts(0);
    // A slot that is free now is written by a later pass, and all stages run the passes in the same
    // order. States of rows whose results are unknown do not become checkpoints.
    if (cache.has_states()) cache.AdvanceStates(part.end, sequence.cache);
    if (!part.samples) continue;
    sequence.tokens.push_back(Sequence::kUnknown);
    ++sequence.unknown;
    sequence.complete = sequence.output_length() >= sequence.request.sampling.max_new_tokens ||
                        sequence.length() >= max_length;
  }
}

int64_t RankEngine::Impl::PromptLogprobs(const Sequence& sequence, const Part& part) {
  if (!sequence.logprobs_pending()) return 0;
  const int64_t end = std::min(part.range.end, sequence.prompt_length - 1);
  return std::max<int64_t>(0, end - part.range.begin);
}

void RankEngine::Impl::ReceiveResults(StagedPass& pass) {
  if (model.has_logits() || pass.received) return;
  if (!options.all_results && std::ranges::none_of(pass.parts, HasLogitRows<Part>)) return;
  const profile::Span span(options.profiler, {.name = "collect"});
  pass.results = std::get<StepOutputs>(DecodeMessage(model.ReceiveResults()));
  pass.received = true;
  model.PassOnResults(EncodeMessage(WithoutValues(pass.results)));
}

void RankEngine::Impl::ProcessStaged() {
  StagedPass pass = std::move(staged.front());
  staged.pop_front();
  CollectStaged(pass);
  ReceiveResults(pass);
  std::vector<RequestOutput>& results = pass.results.outputs;
  CHECK_EQ(std::ssize(results), std::ranges::count_if(pass.parts, HasLogitRows<Part>));
  std::map<uint64_t, std::string> router_faults;
  if (std::ranges::any_of(results, IsNotFinite)) {
    // All stages have the same results, so either all of them call this collective or none. The
    // last stage calls it after it has sent the results of the later passes, and sending may wait
    // for room. So the other stages receive these results first.
    for (StagedPass& later : staged) {
      CollectStaged(later);
      ReceiveResults(later);
    }
    router_faults = FaultsOf(pass.parts);
  }
  auto next = results.begin();
  for (const Part& part : pass.parts) {
    RequestOutput* const result = HasLogitRows(part) ? &*next++ : nullptr;
    CHECK(result == nullptr || result->id == part.id);
    const auto entry = table.find(part.id);
    if (entry == table.end()) continue;  // aborted, or failed in an earlier pass
    if (const auto fault = router_faults.find(part.id);
        fault != router_faults.end() && entry->second.router_fault.empty())
      entry->second.router_fault = fault->second;
    ApplyResult(entry->second, part, result);
  }
  if (!options.results_have_drafts) ProposeDrafts(pass.parts);
  AnswerLateImports(pass.number);
}

// A retracted sequence waits, with the results of its passes in flight, until it is admitted again.
void RankEngine::Impl::ApplyResult(Sequence& sequence, const Part& part, RequestOutput* result) {
  if (sequence.admissions != part.admission) {
    CHECK(!part.samples);  // an unknown token prevents the admission
    return;
  }
  if (part.drafts > 0) return ApplyDrafts(sequence, part, *result);
  const bool kept = sequence.computed >= part.end;  // not retracted
  if (result && IsNotFinite(*result)) return FailNotFinite(sequence);
  if (result && sequence.pooled())
    sequence.next_pooled = std::max(sequence.next_pooled, part.range.end);
  if (result && sequence.routed_experts_pending()) {
    sequence.next_routed = std::max(sequence.next_routed, part.end);
    std::ranges::copy(result->routed_experts, std::back_inserter(sequence.routed_experts));
  }
  if (result) {
    sequence.next_logprob += PromptLogprobs(sequence, part);
    std::ranges::move(result->input_logprobs, std::back_inserter(sequence.input_logprobs));
  }
  if (kept) sequence.settled = part.end;
  if (!part.last) return;
  if (kept && !part.decoding)
    cache.Publish(std::span(sequence.tokens).first(part.end), sequence.cache);
  CHECK(result != nullptr);
  if (sequence.pooled()) return FinishPooled(sequence, std::move(result->pooled));
  FinishStaged(sequence, part, *result);
}

RequestOutput RankEngine::Impl::ResultOfDrafts(Sequence& sequence, const Part& part,
                                               const Rows& own) {
  CHECK(sequence.draft_parents.empty());
  CHECK_EQ(sequence.drafts.size(), part.drafts);
  const DraftTree chain{.tokens = sequence.drafts, .parents = {}};
  RequestOutput result{.id = part.id};
  ErrorKind kind = ErrorKind::kResource;
  std::vector<int32_t> path;
  const int64_t known = sequence.length();
  result.error = SampleDrafts(sequence, chain, own, path, result, kind);
  sequence.tokens.resize(static_cast<size_t>(known));
  sequence.grammar_ahead = sequence.grammar != nullptr;
  result.finish = FinishReason::kNone;  // all stages derive it from the tokens
  result.matched = -1;
  if (result.error.empty()) return result;
  result.finish = FinishReason::kError;
  result.error_kind = kind;
  if (kind == ErrorKind::kResource) result.error.clear();  // a logit is not finite
  return result;
}

// The last token of the result is the only one that may end the sequence.
void RankEngine::Impl::ApplyDrafts(Sequence& sequence, const Part& part, RequestOutput& result) {
  const Part kept = KeptRows(part, result.new_tokens.size());
  const bool stays = sequence.computed > kept.end - kept.rows;  // not retracted
  const auto tokens = static_cast<int64_t>(result.new_tokens.size());
  CountVerified(result.drafts, part.drafts);
  sequence.draft_counts += {
      .steps = 1, .drafted = static_cast<int32_t>(part.drafts), .accepted = result.drafts.accepted};
  ++counters.verify_steps;
  counters.drafted_tokens += static_cast<int64_t>(part.drafts);
  counters.accepted_tokens += result.drafts.accepted;
  counters.decode_tokens += tokens;
  sequence.tokens.resize(static_cast<size_t>(sequence.known_length()));
  sequence.unknown = 0;
  const bool ahead = std::exchange(sequence.grammar_ahead, false);
  for (const int32_t token : result.new_tokens) {
    if (!ahead && !AcceptToken(sequence, token)) return;
    sequence.tokens.push_back(token);
  }
  if (stays) sequence.computed = sequence.settled = kept.end;
  if (sequence.routed_experts_pending()) {
    sequence.next_routed = std::max(sequence.next_routed, kept.end);
    std::ranges::copy(result.routed_experts, std::back_inserter(sequence.routed_experts));
  }
  const bool failed = result.finish == FinishReason::kError;
  bool finished = false;
  if (tokens > 0) {
    RequestOutput output = NewOutput(sequence);
    output.new_tokens = result.new_tokens;
    output.output_logprobs = std::move(result.output_logprobs);
    if (!failed) CheckFinished(sequence, output.new_tokens.back(), sequence.length(), output);
    finished = output.finish != FinishReason::kNone;
    answers.push_back(std::move(output));
  }
  if (failed && IsNotFinite(result)) return FailNotFinite(sequence);
  if (failed) return Fail(sequence, result.error, result.error_kind);
  if (finished) return Close(sequence, /*discard=*/false);
  if (stays) TakeDrafts(sequence, result);
}

void RankEngine::Impl::FinishStaged(Sequence& sequence, const Part& part, RequestOutput& result) {
  if (result.finish == FinishReason::kError) return Fail(sequence, result.error, result.error_kind);
  const bool kept = sequence.computed >= part.end;  // not retracted
  if (sequence.first_sent) {                        // it had lost its pages
    if (!kept) return;
    scheduler.Hold(&sequence);
    answers.push_back(PagesOutput(sequence, Export(sequence)));
    return;
  }
  const bool ahead = std::exchange(sequence.grammar_ahead, false);
  if (part.samples && !ahead && !AcceptToken(sequence, result.new_tokens.at(0))) return;
  RequestOutput output = NewOutput(sequence);
  output.input_logprobs = std::exchange(sequence.input_logprobs, {});
  if (!part.samples) {  // prompt logprobs only
    output.finish = FinishReason::kLength;
  } else {
    const int32_t token = result.new_tokens.front();
    sequence.tokens[part.end] = token;
    --sequence.unknown;
    output.new_tokens.push_back(token);
    output.output_logprobs = std::move(result.output_logprobs);
    ++counters.decode_tokens;
    CheckFinished(sequence, token, part.end + 1, output);
  }
  const bool finished = output.finish != FinishReason::kNone;
  if (!finished && sequence.request.kv == KvRole::kExport) {
    if (kept) {
      scheduler.Hold(&sequence);
      output.kv = Export(sequence);
    } else {  // it waits, and its rows are computed again
      sequence.Truncate(sequence.prompt_length);
      sequence.first_sent = true;
      output.kv = KvPages();
    }
    answers.push_back(std::move(output));
    return;
  }
  answers.push_back(std::move(output));
  if (finished) return Close(sequence, /*discard=*/false);
  if (kept) TakeDrafts(sequence, result);
}

}  // namespace switchyard
