// The recurrent states of sequences and of cached prefixes.
#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

#include "core/check.h"
#include "engine/kv_cache/kv_cache.h"

namespace switchyard {

RadixCache::PrefixPath KvCache::Peek(std::span<const int32_t> tokens,
                                     const std::string& salt) const {
  if (!tree_) return {};
  RadixCache::PrefixPath path = tree_->Peek(tokens, salt);
  if (states_) path.tokens = WithState(path.pages);
  return path;
}

int64_t KvCache::WithState(std::span<const int32_t> pages) const {
  auto count = std::ssize(pages);
  while (count > 0 && states_->OfPage(pages[count - 1]) < 0) --count;
  return count * page_size_;
}

void KvCache::DropMark(SequenceStates::Mark& mark) {
  if (mark.slot >= 0) states_->DropMark(mark.slot);
  mark = {};
}

void KvCache::DropSlot(int32_t& slot) {
  if (slot >= 0) states_->Drop(slot);
  slot = -1;
}

void KvCache::DropRows(SequenceStates& states) {
  for (int32_t& slot : states.rows) DropSlot(slot);
  states.rows.clear();
}

void KvCache::DropPlanned(SequenceStates& states) {
  DropSlot(states.next);
  DropRows(states);
  DropMark(states.next_branch);
  DropMark(states.next_boundary);
}

void KvCache::DropStates(SequenceStates& states) {
  DropPlanned(states);
  for (SequenceStates::Mark* mark : {&states.branch, &states.boundary, &states.ahead})
    DropMark(*mark);
  DropSlot(states.before);
  DropSlot(states.current);
  states = {};
}

void KvCache::TryMark(int64_t tokens, SequenceStates::Mark& mark) {
  if (states_->CanMark()) mark = {.tokens = tokens, .slot = states_->TakeMark()};
}

void KvCache::PrepareStates(int64_t computed, int64_t rows, SequencePages& sequence, bool drafts) {
  SequenceStates& states = sequence.states;
  CHECK_EQ(states.current >= 0, computed > 0);
  DropPlanned(states);
  DropSlot(states.before);
  states.next = states_->Take();
  states.planned = computed;
  if (drafts) {  // no mark: the accepted rows are not known yet (KeepRow)
    for (int64_t row = 1; row < rows; ++row) states.rows.push_back(states_->Take());
    return;
  }
  if (!tree_) return;
  const int64_t end = computed + rows;
  const int64_t boundary = Publishable(end, states) / unit_ * unit_;
  // A state at `end` is that of `next` (AdvanceStates).
  if (states.matched > computed && states.matched < end)
    TryMark(states.matched, states.next_branch);
  if (boundary <= computed || boundary == end || boundary == states.matched) return;
  if (!states_->CanMark()) DropMark(states.boundary);
  TryMark(boundary, states.next_boundary);
}

void KvCache::AdvanceStates(int64_t computed, SequencePages& sequence) {
  SequenceStates& states = sequence.states;
  DropSlot(states.current);
  if (!states.rows.empty()) KeepRow(computed, states);
  Advance(computed, /*keep=*/false, states.boundary, states);
}

void KvCache::KeepRow(int64_t computed, SequenceStates& states) {
  const int64_t kept = computed - states.planned;
  CHECK(kept >= 1 && kept <= std::ssize(states.rows) + 1);
  if (kept <= std::ssize(states.rows)) std::swap(states.next, states.rows[kept - 1]);
  // A state at `computed` is that of `next` (Advance).
  const int64_t boundary = Publishable(computed, states) / unit_ * unit_;
  if (tree_ && boundary > states.planned && boundary < computed) {
    if (!states_->CanMark()) DropMark(states.boundary);
    if (states_->CanMark()) {
      const int32_t slot = states.rows[boundary - states.planned - 1];
      states_->ShareMark(slot);
      states.next_boundary = {.tokens = boundary, .slot = slot};
    }
  }
  DropRows(states);
}

void KvCache::AdvanceStatesAhead(int64_t computed, bool decoding, SequencePages& sequence) {
  SequenceStates& states = sequence.states;
  CHECK_EQ(states.before, -1);
  CHECK(states.rows.empty());  // drafts are verified before the next pass
  states.before = states.current;
  // If the token of an earlier pass ends the sequence, a mark of this pass is lost. So it must not
  // replace a mark of that pass.
  Advance(computed, /*keep=*/decoding && states.ahead.slot >= 0, states.ahead, states);
}

void KvCache::Advance(int64_t computed, bool keep, SequenceStates::Mark& boundary,
                      SequenceStates& states) {
  CHECK_GE(states.next, 0);
  states.current = std::exchange(states.next, -1);
  const auto replace = [&](SequenceStates::Mark& mark, SequenceStates::Mark& by) {
    if (by.slot < 0) return;
    DropMark(mark);
    mark = std::exchange(by, {});
  };
  replace(states.branch, states.next_branch);
  replace(boundary, states.next_boundary);
  if (!tree_ || computed % unit_ != 0 || Publishable(computed, states) < computed) return;
  SequenceStates::Mark& mark = computed == states.matched ? states.branch : boundary;
  if (keep && &mark == &boundary) return;
  DropMark(mark);
  const bool ended = &boundary == &states.boundary;
  if (!ended && !states_->CanMark()) DropMark(states.boundary);
  if (!states_->CanMark()) return;
  states_->ShareMark(states.current);
  mark = {.tokens = computed, .slot = states.current};
}

void KvCache::SettleStates(int64_t computed, SequencePages& sequence) {
  SequenceStates& states = sequence.states;
  if (states.ahead.slot < 0 || states.ahead.tokens > computed) return;
  DropMark(states.boundary);
  states.boundary = std::exchange(states.ahead, {});
}

void KvCache::RevertStates(int64_t computed, SequencePages& sequence) {
  SequenceStates& states = sequence.states;
  CHECK_EQ(states.before >= 0, computed > 0);
  DropSlot(states.current);
  states.current = std::exchange(states.before, -1);
  for (SequenceStates::Mark* mark : {&states.branch, &states.ahead})
    if (mark->tokens > computed) DropMark(*mark);
}

void KvCache::PrepareImported(int64_t computed, int64_t end, SequencePages& sequence) {
  if (!states_ || computed == end) return;
  DropSlot(sequence.states.current);  // only its pages are needed
  sequence.states.next = states_->Take();
}

void KvCache::AdvanceImported(int64_t end, SequencePages& sequence) {
  if (sequence.states.next >= 0) AdvanceStates(end, sequence);
}

void KvCache::PublishStates(std::span<const int32_t> pages, SequenceStates& states) {
  for (SequenceStates::Mark* mark : {&states.branch, &states.boundary, &states.ahead}) {
    const int64_t count = mark->tokens / page_size_;
    if (mark->slot < 0 || count > std::ssize(pages)) continue;
    states_->Attach(pages[count - 1], mark->slot);
    DropMark(*mark);
  }
}

int64_t KvCache::Publishable(int64_t computed, const SequenceStates& states) const {
  return chunk_ > 0 ? std::min(computed, states.chunked) : computed;
}

int64_t KvCache::WholeChunks(const SequencePages& sequence, int64_t computed, int64_t rows) const {
  const int64_t end = computed + rows;
  if (chunk_ == 0 || end >= sequence.states.chunked) return rows;
  return end / chunk_ * chunk_ - computed;
}

kernels::StateSpan KvCache::SpanOf(const SequencePages& sequence, int64_t computed,
                                   int32_t row_begin, int32_t rows) {
  const SequenceStates& states = sequence.states;
  kernels::StateSpan span{
      .row_begin = row_begin, .rows = rows, .from = states.current, .to = states.next};
  const int64_t chunked = std::min<int64_t>(states.chunked - computed, rows);
  span.chunked = static_cast<int32_t>(std::max<int64_t>(chunked, 0));
  size_t count = 0;
  for (const SequenceStates::Mark* mark : {&states.next_branch, &states.next_boundary})
    if (mark->slot >= 0)
      span.copies[count++] = {.rows = static_cast<int32_t>(mark->tokens - computed),
                              .slot = mark->slot};
  CHECK_LE(count + states.rows.size(), std::size(span.copies));
  for (const int32_t slot : states.rows) {
    span.copies[count] = {.rows = static_cast<int32_t>(count) + 1, .slot = slot};
    ++count;
  }
  return span;
}

}  // namespace switchyard
