// The recurrent states of sequences and of cached prefixes.
#include <algorithm>

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

void KvCache::DropPlanned(SequenceStates& states) {
  if (states.next >= 0) states_->Drop(states.next);
  states.next = -1;
  DropMark(states.next_branch);
  DropMark(states.next_boundary);
}

void KvCache::DropStates(SequenceStates& states) {
  DropPlanned(states);
  DropMark(states.branch);
  DropMark(states.boundary);
  if (states.current >= 0) states_->Drop(states.current);
  states = {};
}

void KvCache::TryMark(int64_t tokens, SequenceStates::Mark& mark) {
  if (states_->CanMark()) mark = {.tokens = tokens, .slot = states_->TakeMark()};
}

void KvCache::PrepareStates(int64_t computed, int64_t rows, SequencePages& sequence) {
  SequenceStates& states = sequence.states;
  CHECK_EQ(states.current >= 0, computed > 0);
  DropPlanned(states);
  states.next = states_->Take();
  if (!tree_) return;
  const int64_t end = computed + rows, boundary = end / page_size_ * page_size_;
  // A state at `end` is that of `next` (AdvanceStates).
  if (states.matched > computed && states.matched < end)
    TryMark(states.matched, states.next_branch);
  if (boundary <= computed || boundary == end || boundary == states.matched) return;
  if (!states_->CanMark()) DropMark(states.boundary);
  TryMark(boundary, states.next_boundary);
}

void KvCache::AdvanceStates(int64_t computed, SequencePages& sequence) {
  SequenceStates& states = sequence.states;
  CHECK_GE(states.next, 0);
  if (states.current >= 0) states_->Drop(states.current);
  states.current = states.next;
  states.next = -1;
  const auto replace = [&](SequenceStates::Mark& mark, SequenceStates::Mark& by) {
    if (by.slot < 0) return;
    DropMark(mark);
    mark = by;
    by = {};
  };
  replace(states.branch, states.next_branch);
  replace(states.boundary, states.next_boundary);
  if (!tree_ || computed % page_size_ != 0) return;
  SequenceStates::Mark& mark = computed == states.matched ? states.branch : states.boundary;
  DropMark(mark);
  if (!states_->CanMark()) return;
  states_->ShareMark(states.current);
  mark = {.tokens = computed, .slot = states.current};
}

void KvCache::PublishStates(std::span<const int32_t> pages, SequenceStates& states) {
  for (SequenceStates::Mark* mark : {&states.branch, &states.boundary}) {
    const int64_t count = mark->tokens / page_size_;
    if (mark->slot < 0 || count > std::ssize(pages)) continue;
    states_->Attach(pages[count - 1], mark->slot);
    DropMark(*mark);
  }
}

kernels::StateSpan KvCache::SpanOf(const SequencePages& sequence, int64_t computed,
                                   int32_t row_begin, int32_t rows) {
  const SequenceStates& states = sequence.states;
  kernels::StateSpan span{
      .row_begin = row_begin, .rows = rows, .from = states.current, .to = states.next};
  size_t count = 0;
  for (const SequenceStates::Mark* mark : {&states.next_branch, &states.next_boundary})
    if (mark->slot >= 0)
      span.copies[count++] = {.rows = static_cast<int32_t>(mark->tokens - computed),
                              .slot = mark->slot};
  return span;
}

}  // namespace switchyard
