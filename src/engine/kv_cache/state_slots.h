// Slots of recurrent states: of running sequences, and at the ends of cached pages.
#pragma once

#include <cstdint>
#include <vector>

namespace switchyard {

// Allocates slot numbers [0, total); StateStorage (model/state_storage.h) owns their memory. A slot
// is not changed after the pass that wrote it, so a sequence and the prefix cache may share it.
//
// Three kinds of references:
//   states: a running sequence has the state before its next pass, and the ones that this pass
//     writes: after its last row and, if the others are drafts, after each row. So at most two
//     slots for each running sequence, and one more for each of its drafts. A sequence whose pages
//     another engine reads or writes has one.
//   marks: states of a sequence at ends of pages, until its pages are in the tree.
//     There are at most as many as slots that are not states. While its output is computed, a
//     sequence has one.
//   checkpoints: the state at the end of a page of the tree. If no slot is free, the least recently
//     used checkpoint that nothing else refers to is dropped.
// These limits guarantee that Take always finds a slot. The order of uses is a counter and the free
// list is LIFO, so that every rank gets the same slots. Used by the rank's thread only.
class StateSlots {
 public:
  // A suitable number of slots: those for the states of each running sequence, which has up to
  // `drafts` drafts in a pass. If prefixes are reused, also one for the mark of each, and as many
  // again for checkpoints, at least 8. So the marks of outputs do not evict all checkpoints.
  // `held`: sequences that do not run, and have a state each (StateCounts::held).
  static int64_t TotalFor(int64_t running, bool reuses_prefixes, int64_t drafts = 0,
                          int64_t held = 0);
  // Slots for the states of a running sequence.
  static constexpr int64_t ForEach(int64_t drafts) { return 2 + drafts; }

  // `pages`: number of pages of the cache. `running`: maximum number of running sequences.
  StateSlots(int64_t total, int64_t pages, int64_t running, int64_t drafts = 0, int64_t held = 0);

  int32_t Take();  // a slot with one reference
  void Share(int32_t slot);
  void Drop(int32_t slot);

  // Whether one more mark may exist.
  bool CanMark() const { return marks_ < most_marks_; }
  int32_t TakeMark();            // requires CanMark()
  void ShareMark(int32_t slot);  // requires CanMark()
  void DropMark(int32_t slot);

  // The checkpoint of a page; −1: none.
  int32_t OfPage(int32_t page) const { return slot_of_[page]; }
  void Touch(int32_t slot) { last_use_[slot] = ++clock_; }
  // Adds a checkpoint, unless the page has one.
  void Attach(int32_t page, int32_t slot);
  void Forget(int32_t page);  // drops the checkpoint of a page, if it has one

  int64_t total() const { return static_cast<int64_t>(references_.size()); }
  int64_t free() const { return static_cast<int64_t>(free_.size()); }
  int64_t checkpoints() const { return checkpoints_; }
  bool IsWhole() const;  // every slot is free or only a checkpoint

 private:
  void DropLeastRecent();

  const int64_t most_marks_;
  std::vector<int32_t> free_;
  std::vector<int32_t> references_;  // [total]
  std::vector<int32_t> page_of_;     // [total] the page whose checkpoint this slot is; −1: none
  std::vector<uint64_t> last_use_;   // [total] of checkpoints
  std::vector<int32_t> slot_of_;     // [pages]
  uint64_t clock_ = 0;
  int64_t marks_ = 0, checkpoints_ = 0;
};

}  // namespace switchyard
