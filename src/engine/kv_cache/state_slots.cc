#include "engine/kv_cache/state_slots.h"

#include <algorithm>
#include <limits>

#include "core/check.h"

namespace switchyard {

int64_t StateSlots::TotalFor(int64_t running, bool reuses_prefixes, int64_t drafts, int64_t held) {
  constexpr int64_t kFewCheckpoints = 8;
  const int64_t states = ForEach(drafts) * running + held;
  return reuses_prefixes ? states + running + std::max(running, kFewCheckpoints) : states;
}

StateSlots::StateSlots(int64_t total, int64_t pages, int64_t running, int64_t drafts, int64_t held)
    : most_marks_(total - ForEach(drafts) * running - held),
      references_(total, 0),
      page_of_(total, -1),
      last_use_(total, 0),
      slot_of_(pages, -1) {
  CHECK_GE(most_marks_, 0);
  CHECK_LE(total, std::numeric_limits<int32_t>::max());
  free_.reserve(total);
  for (int64_t slot = total - 1; slot >= 0; --slot) free_.push_back(static_cast<int32_t>(slot));
}

int32_t StateSlots::Take() {
  if (free_.empty()) DropLeastRecent();
  const int32_t slot = free_.back();
  free_.pop_back();
  references_[slot] = 1;
  return slot;
}

void StateSlots::Share(int32_t slot) {
  CHECK_GT(references_[slot], 0);
  ++references_[slot];
}

void StateSlots::Drop(int32_t slot) {
  CHECK_GT(references_[slot], 0);
  if (--references_[slot] == 0) free_.push_back(slot);
}

int32_t StateSlots::TakeMark() {
  CHECK(CanMark());
  ++marks_;
  return Take();
}

void StateSlots::ShareMark(int32_t slot) {
  CHECK(CanMark());
  ++marks_;
  Share(slot);
}

void StateSlots::DropMark(int32_t slot) {
  CHECK_GT(marks_, 0);
  --marks_;
  Drop(slot);
}

void StateSlots::Attach(int32_t page, int32_t slot) {
  if (slot_of_[page] >= 0) return Touch(slot_of_[page]);
  CHECK_EQ(page_of_[slot], -1);
  Share(slot);
  slot_of_[page] = slot;
  page_of_[slot] = page;
  ++checkpoints_;
  Touch(slot);
}

void StateSlots::Forget(int32_t page) {
  const int32_t slot = slot_of_[page];
  if (slot < 0) return;
  slot_of_[page] = -1;
  page_of_[slot] = -1;
  --checkpoints_;
  Drop(slot);
}

void StateSlots::DropLeastRecent() {
  int64_t oldest = -1;
  for (int64_t slot = 0; slot < total(); ++slot) {
    if (page_of_[slot] < 0 || references_[slot] > 1) continue;
    if (oldest < 0 || last_use_[slot] < last_use_[oldest]) oldest = slot;
  }
  CHECK_GE(oldest, 0);
  Forget(page_of_[oldest]);
}

bool StateSlots::IsWhole() const {
  for (int64_t slot = 0; slot < total(); ++slot)
    if (references_[slot] != (page_of_[slot] >= 0 ? 1 : 0)) return false;
  return marks_ == 0;
}

}  // namespace switchyard
