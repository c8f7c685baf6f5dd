// Speculative decoding: verification of drafts. A decode step samples tokens up to the first one
// that differs from its draft.
#include <algorithm>
#include <utility>

#include "core/check.h"
#include "engine/rank_engine_impl.h"
#include "engine/sampler/random.h"
#include "engine/speculative/drafter.h"

namespace switchyard {

// Each row is sampled with the sequence as it is after the rows of its path. So penalties, minimum
// length, masks of the grammar and stop rules are those of a step without drafts. The random number
// of a token depends only on the seed and the number of tokens before it.
std::string RankEngine::Impl::SampleDrafts(Sequence& sequence, const DraftTree& tree,
                                           const Rows& own, std::vector<int32_t>& path,
                                           RequestOutput& output, ErrorKind& kind) {
  const SamplingParams& params = sequence.request.sampling;
  const bool forced = sequence.drafts_forced;
  const bool simulates = options.simulate_acceptance >= 0 && !forced;
  for (int32_t row = 0;;) {
    path.push_back(row);
    const Rows one = own.drawn.empty() ? Rows{own.logits.subspan(row * width, width), {}}
                                       : Rows{{}, own.drawn.subspan(row, 1)};
    if (!one.finite()) {
      kind = ErrorKind::kResource;
      return NotFiniteError(sequence);
    }
    std::optional<int32_t> token = Draw(sequence, one);
    kind = ErrorKind::kInvalid;
    if (!token) return WhyNoToken(sequence);
    const int32_t first = tree.FirstChild(row);
    int32_t next = first > 0 ? tree.ChildWith(row, *token) : 0;  // 0: no draft has the token
    if (simulates && first > 0) {
      const auto counter = static_cast<uint64_t>(sequence.output_length());
      next = UniformDraw(~*params.seed, counter) < options.simulate_acceptance ? first : 0;
      if (next > 0) token = tree.tokens[first - 1];
    }
    if (sequence.grammar) {
      sequence.grammar->Accept(*token);
      if (!sequence.grammar->failure().empty()) return sequence.grammar->failure();
    }
    AppendLogprobs(sequence, one.logits, *token, output.output_logprobs);
    output.new_tokens.push_back(*token);
    sequence.tokens.push_back(*token);
    if (first > 0) ++output.drafts.drafted;
    if (next > 0) ++output.drafts.accepted;
    CheckFinished(sequence, *token, sequence.length(), output);
    if (next == 0 || output.finish != FinishReason::kNone) return {};
    row = next;
  }
}

void RankEngine::Impl::CountVerified(const DraftCounts& path, size_t depth) {
  const auto count = [&](std::vector<int64_t>& positions, int32_t number) {
    positions.resize(std::max(positions.size(), depth));
    for (int32_t i = 0; i < number; ++i) ++positions[static_cast<size_t>(i)];
  };
  count(counters.verified_by_position, path.drafted);
  count(counters.accepted_by_position, path.accepted);
}

// A row of the path is never before the slot of its position, so no later row is overwritten.
void RankEngine::Impl::MoveKeptRows(const Sequence& sequence, std::span<const int32_t> path) {
  const auto slot = [&](int64_t row) {
    const int64_t position = sequence.computed + row;
    return sequence.cache.pages[position / options.page_size] * options.page_size +
           static_cast<int32_t>(position % options.page_size);
  };
  std::vector<SlotMove> moves;
  for (size_t i = 0; i < path.size(); ++i)
    if (path[i] != static_cast<int32_t>(i))
      moves.push_back({.from = slot(path[i]), .to = slot(static_cast<int64_t>(i))});
  if (!moves.empty()) model.MoveRows(moves);
}

void RankEngine::Impl::Verify(Sequence& sequence, const Part& part, const Rows& own,
                              int64_t first_row) {
  const DraftTree tree{std::exchange(sequence.drafts, {}),
                       std::exchange(sequence.draft_parents, {})};
  const std::vector<int32_t>& drafts = tree.tokens;
  CHECK_EQ(drafts.size(), part.drafts);
  CHECK_EQ(own.drawn.empty() ? own.logits.size() / static_cast<size_t>(width) : own.drawn.size(),
           drafts.size() + 1);
  const bool forced = sequence.drafts_forced;
  RequestOutput sampled;
  ErrorKind kind = ErrorKind::kResource;
  std::vector<int32_t> path;
  const std::string error = SampleDrafts(sequence, tree, own, path, sampled, kind);
  if (!forced) CountVerified(sampled.drafts, static_cast<size_t>(std::ranges::max(tree.Depths())));
  const auto tokens = static_cast<int64_t>(sampled.new_tokens.size());
  // Keeps the rows of the last known token and of the accepted drafts. Other rows are discarded.
  Part kept = part;
  kept.rows = std::max<int64_t>(1, tokens);
  kept.end = part.end - part.rows + kept.rows;
  path.resize(static_cast<size_t>(kept.rows));
  AppendRoutedExperts(sequence, kept, first_row, path);
  MoveKeptRows(sequence, path);
  sequence.kept_rows = std::move(path);
  sequence.computed = sequence.settled = kept.end;
  if (cache.has_states()) cache.AdvanceStates(kept.end, sequence.cache);
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
    if (entry == table.end()) continue;
    Sequence& sequence = entry->second;
    const int64_t begin = part.end - part.rows;
    // Another engine continues a prompt that is held, with the keys and values of the drafter's
    // model too.
    const bool held = scheduler.IsHeld(&sequence);
    if (held && !options.drafter) continue;
    // A prompt that is computed again has no first token, so the drafter cannot have its last row.
    const int64_t rows = std::min(sequence.computed, sequence.length() - (held ? 1 : 0)) - begin;
    if (held && rows <= 0) continue;
    // With pipeline stages, a later chunk may be in flight, or the sequence was retracted.
    if (sequence.unknown > 0 || sequence.admissions != part.admission || sequence.computed <= begin)
      continue;
    open.push_back({.sequence = &sequence,
                    .first_row = first_row,
                    .begin = begin,
                    .rows = rows,
                    .decoding = part.decoding,
                    .wanted = held ? 0 : WantedDrafts(sequence, max_forced),
                    .path = part.drafts > 0 ? std::span<const int32_t>(sequence.kept_rows)
                                            : std::span<const int32_t>()});
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
      const bool wants = !sequence.drafts_forced && !scheduler.IsHeld(&sequence);
      part.wanted = wants ? WantedDrafts(sequence, draft_limit) : 0;
      int64_t slots = part.wanted;
      if (slots > 0 && options.tree_depth > 0)
        slots = std::min<int64_t>(options.tree_slots, max_length - sequence.length() - 1);
      part.slots = scheduler.GrowForDrafts(slots, sequence);
      part.wanted = std::min(part.wanted, part.slots);
    }
    options.drafter->Draft(open, draft_limit);
  }
  for (const DraftPart& part : open) {
    const Sequence& sequence = *part.sequence;
    const int64_t most = std::min<int64_t>(part.slots, options.max_drafts);
    if (!sequence.drafts_forced) CHECK_LE(std::ssize(sequence.drafts), most);
    CHECK(sequence.draft_parents.empty() ||
          sequence.draft_parents.size() == sequence.drafts.size());
    for (const int32_t token : sequence.drafts) CHECK(token >= 0 && token < vocab);
  }
}

}  // namespace switchyard
