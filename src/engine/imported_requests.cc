// Requests whose prompt and output are computed by different engines: pages that another engine
// reads (KvRole::kExport) or writes (KvRole::kImport).
#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "engine/rank_engine_impl.h"
#include "grammar/compiled_grammar.h"

namespace switchyard {
namespace {

std::vector<int32_t> FirstPages(const SequencePages& cache, int64_t count) {
  CHECK_LE(count, std::ssize(cache.pages));
  return {cache.pages.begin(), cache.pages.begin() + count};
}

}  // namespace

bool RankEngine::Impl::Exports() const {
  return std::ranges::any_of(
      plan, [](const ScheduledRows& part) { return part.sequence->request.kv == KvRole::kExport; });
}

KvPages RankEngine::Impl::Export(Sequence& sequence) const {
  const int64_t end = std::min(sequence.computed, sequence.prompt_length);
  sequence.exported = end;
  const bool in_flight = !staged.empty() && !scheduler.IsHeld(&sequence);
  return {
      .begin = 0,
      .end = end,
      .pages = FirstPages(sequence.cache, cache.PagesFor(end)),
      .computed = end,
      .pass = in_flight ? last_pass + 1 : 0,
      .pinned = sequence.wanted,
      .state = end == sequence.prompt_length && !in_flight ? sequence.cache.states.current : -1};
}

std::vector<RequestOutput> RankEngine::Announced() const {
  std::vector<RequestOutput> outputs;
  for (size_t i = 0; i < impl_->plan.size(); ++i) {
    const Sequence& sequence = *impl_->plan[i].sequence;
    if (sequence.request.kv != KvRole::kExport || impl_->parts[i].decoding) continue;
    const int64_t end = std::min(impl_->parts[i].end, sequence.prompt_length);
    outputs.push_back(impl_->PagesOutput(
        sequence, {.begin = 0,
                   .end = end,
                   .pages = FirstPages(sequence.cache, impl_->cache.PagesFor(end)),
                   .computed = std::min(sequence.computed, end),
                   .pass = impl_->last_pass + 1,
                   .pinned = sequence.wanted}));
  }
  return outputs;
}

void RankEngine::Impl::AnswerPages(int64_t retractions_before) {
  for (Sequence* const sequence : scheduler.reserved()) {
    const auto waited = std::chrono::steady_clock::now() - sequence->arrival;
    sequence->queue_seconds = std::chrono::duration<float>(waited).count();
    if (staged.empty()) {
      AnswerImport(*sequence);
    } else {
      late_imports.push_back({sequence->request.id, last_pass});
    }
  }
  if (scheduler.retractions() != retractions_before) AnswerRetractedPages();
}

void RankEngine::Impl::AnswerImport(const Sequence& sequence) {
  const int64_t end = sequence.prompt_length;
  answers.push_back(PagesOutput(sequence, {.begin = sequence.computed,
                                           .end = end,
                                           .pages = FirstPages(sequence.cache, cache.PagesFor(end)),
                                           .state = sequence.cache.states.next}));
}

void RankEngine::Impl::AnswerLateImports(uint64_t ended_pass) {
  for (; !late_imports.empty() && late_imports.front().pass <= ended_pass;
       late_imports.pop_front()) {
    const auto entry = table.find(late_imports.front().id);
    if (entry != table.end() && scheduler.IsHeld(&entry->second)) AnswerImport(entry->second);
  }
}

void RankEngine::Impl::AnswerRetractedPages() {
  for (auto& [id, sequence] : table) {
    if (sequence.computed >= sequence.exported) continue;
    sequence.exported = 0;
    answers.push_back(PagesOutput(sequence, {}));
  }
}

RequestOutput RankEngine::Impl::PagesOutput(const Sequence& sequence, KvPages pages) const {
  return {.id = sequence.request.id,
          .prompt_tokens = static_cast<int32_t>(sequence.prompt_length),
          .cached_tokens = sequence.cached_tokens,
          .queue_seconds = sequence.queue_seconds,
          .kv = std::move(pages)};
}

void RankEngine::Impl::Start(const StartImported& start) {
  const auto entry = table.find(start.id);
  if (entry == table.end()) return;  // aborted
  Sequence& sequence = entry->second;
  RequestOutput first = start.first;
  first.id = start.id;
  first.kv.reset();
  first.prompt_tokens = static_cast<int32_t>(sequence.prompt_length);
  if (first.finish != FinishReason::kNone) {
    answers.push_back(std::move(first));
    return Close(sequence, /*discard=*/true);
  }
  const bool valid = scheduler.IsHeld(&sequence) && first.new_tokens.size() == 1 &&
                     first.new_tokens[0] >= 0 && first.new_tokens[0] < vocab;
  if (!valid)
    return Fail(sequence, "the engine that computed the prompt returned no valid first token",
                ErrorKind::kPeer);
  sequence.computed = sequence.settled = sequence.draft_computed = sequence.prompt_length;
  cache.AdvanceImported(sequence.prompt_length, sequence.cache);
  cache.Record(sequence.settled_tokens(), start.id, sequence.cache);
  cache.Publish(sequence.settled_tokens(), sequence.cache);
  if (sequence.grammar && model.has_logits()) {  // its matcher begins with the first mask
    masks.words.resize(MaskWords(vocab));
    if (!sequence.grammar->FillMask(masks.words))
      return Fail(sequence, WhyNoToken(sequence), ErrorKind::kInvalid);
  }
  if (!AcceptToken(sequence, first.new_tokens[0])) return;
  sequence.tokens.push_back(first.new_tokens[0]);
  sequence.admitted_before = true;
  ++sequence.admissions;  // with stages, chosen experts are kept from here on
  sequence.cached_tokens = first.cached_tokens;
  sequence.next_logprob = sequence.prompt_length;  // `first` has those of the prompt
  sequence.input_logprobs.clear();
  if (sequence.routed_experts_pending())
    sequence.next_routed = std::max(sequence.next_routed, sequence.prompt_length);
  scheduler.Start(&sequence);
  answers.push_back(std::move(first));
}

void RankEngine::Impl::Release(const ReleaseKv& release) {
  const auto entry = table.find(release.id);
  if (entry == table.end() || entry->second.request.kv != KvRole::kExport) return;
  Sequence& sequence = entry->second;
  RequestOutput output = NewOutput(sequence);
  output.finish = release.error.empty() ? FinishReason::kLength : FinishReason::kError;
  output.error = release.error;
  output.error_kind = ErrorKind::kUnavailable;
  answers.push_back(std::move(output));
  Close(sequence, /*discard=*/false);
}

std::optional<RequestOutput> RankEngine::Impl::Want(const WantKv& want) {
  const auto entry = table.find(want.id);
  if (entry == table.end() || entry->second.request.kv != KvRole::kExport) return std::nullopt;
  Sequence& sequence = entry->second;
  scheduler.Want(&sequence);
  return PagesOutput(sequence, Export(sequence));
}

}  // namespace switchyard
