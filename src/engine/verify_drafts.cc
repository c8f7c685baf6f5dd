// Speculative decoding: verification of drafts. A decode step samples tokens up to the first one
// that differs from its draft.
#include <algorithm>
#include <utility>

#include "core/check.h"
#include "engine/rank_engine_impl.h"
#include "engine/sampler/logprobs.h"
#include "engine/sampler/random.h"
#include "engine/speculative/drafter.h"

namespace switchyard {

// Each row is sampled with the sequence as it is after the rows before it. So penalties, minimum
// length, masks of the grammar and stop rules are those of a step without drafts. The random number
// of a token depends only on the seed and the number of tokens before it.
std::string RankEngine::Impl::SampleDrafts(Sequence& sequence, std::span<const int32_t> drafts,
                                           const Rows& own, RequestOutput& output,
                                           ErrorKind& kind) {
  const SamplingParams& params = sequence.request.sampling;
  const bool forced = sequence.drafts_forced;
  const bool simulates = options.simulate_acceptance >= 0 && !forced;
  for (size_t row = 0; row <= drafts.size(); ++row) {
    const Rows one = own.drawn.empty() ? Rows{own.logits.subspan(row * width, width), {}}
                                       : Rows{{}, own.drawn.subspan(row, 1)};
    if (!one.finite()) {
      kind = ErrorKind::kResource;
      return NotFiniteError(sequence);
    }
    std::optional<int32_t> token = Draw(sequence, one);
    kind = ErrorKind::kInvalid;
    if (!token) return WhyNoToken(sequence);
    bool same = row < drafts.size() && *token == drafts[row];
    if (simulates && row < drafts.size()) {
      const auto counter = static_cast<uint64_t>(sequence.output_length());
      same = UniformDraw(~*params.seed, counter) < options.simulate_acceptance;
      if (same) token = drafts[row];
    }
    if (sequence.grammar) {
      sequence.grammar->Accept(*token);
      if (!sequence.grammar->failure().empty()) return sequence.grammar->failure();
    }
    if (sequence.request.logprob.enabled)
      output.output_logprobs.push_back(LogprobsAt(one.logits, *token, sequence.request.logprob));
    output.new_tokens.push_back(*token);
    sequence.tokens.push_back(*token);
    if (same) ++output.drafts.accepted;
    if (row < drafts.size() && !forced) {
      ++counters.verified_by_position[row];
      if (same) ++counters.accepted_by_position[row];
    }
    CheckFinished(sequence, *token, sequence.length(), output);
    if (!same || output.finish != FinishReason::kNone) break;
  }
  return {};
}

void RankEngine::Impl::Verify(Sequence& sequence, const Part& part, const Rows& own,
                              int64_t first_row) {
  const std::vector<int32_t> drafts = std::exchange(sequence.drafts, {});
  CHECK_EQ(drafts.size(), part.drafts);
  CHECK_EQ(own.drawn.empty() ? own.logits.size() / static_cast<size_t>(width) : own.drawn.size(),
           drafts.size() + 1);
  const bool forced = sequence.drafts_forced;
  if (!forced)
    for (auto* counts : {&counters.verified_by_position, &counters.accepted_by_position})
      counts->resize(std::max(counts->size(), drafts.size()));

  RequestOutput sampled;
  ErrorKind kind = ErrorKind::kResource;
  const std::string error = SampleDrafts(sequence, drafts, own, sampled, kind);
  const auto tokens = static_cast<int64_t>(sampled.new_tokens.size());
  // Keeps the rows of the last known token and of the accepted drafts. Later rows are discarded.
  Part kept = part;
  kept.rows = std::max<int64_t>(1, tokens);
  kept.end = part.end - part.rows + kept.rows;
  AppendRoutedExperts(sequence, kept, first_row);
  sequence.computed = sequence.settled = kept.end;
  cache.Record(sequence.settled_tokens(), sequence.request.id, sequence.cache);
  const DraftCounts step = {.steps = 1,
                            .drafted = static_cast<int32_t>(drafts.size()),
                            .accepted = sampled.drafts.accepted};
  (forced ? sequence.forced_counts : sequence.draft_counts) += step;
  (forced ? counters.forced_steps : counters.verify_steps) += 1;
  (forced ? counters.forced_tokens : counters.drafted_tokens) += step.drafted;
  (forced ? counters.accepted_forced_tokens : counters.accepted_tokens) += step.accepted;
  counters.decode_tokens += tokens;

  if (error.empty() || tokens > 0) {
    RequestOutput output = NewOutput(sequence);
    output.new_tokens = std::move(sampled.new_tokens);
    output.output_logprobs = std::move(sampled.output_logprobs);
    output.finish = sampled.finish;
    output.matched = sampled.matched;
    answers.push_back(std::move(output));
  }
  if (!error.empty()) return Fail(sequence, error, kind);
  if (sampled.finish != FinishReason::kNone) Close(sequence, /*discard=*/false);
}

int64_t RankEngine::Impl::WantedDrafts(const Sequence& sequence, int64_t limit) const {
  if (!sequence.decoding()) return 0;
  const int64_t tokens = sequence.request.sampling.max_new_tokens - sequence.output_length();
  const int64_t room = max_length - sequence.length();
  // A step with d drafts gives up to d + 1 tokens.
  return std::clamp<int64_t>(std::min(tokens, room) - 1, 0, limit);
}

std::vector<DraftPart> RankEngine::Impl::ProposeForced(std::span<const Part> pass) {
  std::vector<DraftPart> open;
  int64_t row = 0;
  for (const Part& part : pass) {
    const int64_t first_row = row;
    row += part.rows;
    const auto entry = table.find(part.id);
    if (entry == table.end() || scheduler.IsHeld(&entry->second)) continue;
    Sequence& sequence = entry->second;
    const int64_t begin = part.end - part.rows;
    open.push_back({.sequence = &sequence,
                    .first_row = first_row,
                    .begin = begin,
                    .rows = sequence.computed - begin,
                    .decoding = part.decoding,
                    .wanted = WantedDrafts(sequence, max_forced)});
  }
  grammar_drafter.Draft(open, max_forced);
  // Allocates pages only for drafts that exist, because most grammars force nothing at most points.
  for (const DraftPart& part : open) {
    std::vector<int32_t>& drafts = part.sequence->drafts;
    if (!drafts.empty()) drafts.resize(scheduler.GrowForDrafts(std::ssize(drafts), *part.sequence));
    part.sequence->drafts_forced = !drafts.empty();
  }
  return open;
}

void RankEngine::Impl::ProposeDrafts(std::span<const Part> pass) {
  if (!options.drafter && (max_forced == 0 || open_grammars == 0)) return;
  const profile::Span span(options.profiler, {.name = "draft"});
  std::vector<DraftPart> open = ProposeForced(pass);
  if (options.drafter) {
    for (DraftPart& part : open) {
      Sequence& sequence = *part.sequence;
      part.wanted = sequence.drafts_forced ? 0 : WantedDrafts(sequence, draft_limit);
      part.wanted = scheduler.GrowForDrafts(part.wanted, sequence);
    }
    options.drafter->Draft(open, draft_limit);
  }
  for (const DraftPart& part : open) {
    const Sequence& sequence = *part.sequence;
    if (!sequence.drafts_forced) CHECK_LE(std::ssize(sequence.drafts), part.wanted);
    for (const int32_t token : sequence.drafts) CHECK(token >= 0 && token < vocab);
  }
}

}  // namespace switchyard
