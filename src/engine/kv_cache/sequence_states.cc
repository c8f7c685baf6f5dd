// The recurrent states of sequences and of cached prefixes.
#include <algorithm>
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

void KvCache::DropPlanned(SequenceStates& states) {
  DropSlot(states.next);
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

void KvCache::PrepareStates(int64_t computed, int64_t rows, SequencePages& sequence) {
  SequenceStates& states = sequence.states;
  CHECK_EQ(states.current >= 0, computed > 0);
  DropPlanned(states);
  DropSlot(states.before);
  states.next = states_->Take();
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
  Advance(computed, /*keep=*/false, states.boundary, states);
}

void KvCache::AdvanceStatesAhead(int64_t computed, bool decoding, SequencePages& sequence) {
  SequenceStates& states = sequence.states;
  CHECK_EQ(states.before, -1);
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
  return span;
}

}  // namespace switchyard
