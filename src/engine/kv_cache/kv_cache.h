// The KV cache of sequences: borrow a cached prefix, grow, publish computed pages, release.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/kv_cache/page_allocator.h"
#include "engine/kv_cache/radix_cache.h"
#include "engine/kv_cache/state_slots.h"
#include "kernels/recurrent.h"

namespace switchyard {

// The recurrent states of one sequence (StateSlots); −1: no slot.
struct SequenceStates {
  int32_t current = -1;  // after the computed tokens; none at the first position
  int32_t next = -1;     // written by the planned pass, after its last row; or by another engine
  // If its rows after the first are drafts: after each other row, in order. The state after the
  // last accepted row becomes `current`.
  std::vector<int32_t> rows;
  int64_t planned = 0;  // tokens before the planned pass
  int32_t before = -1;  // after AdvanceStatesAhead: the state before this pass
  // States at ends of pages. `branch`: where the sequence left a cached prefix that had no
  // checkpoint there, so that the next sequence with this prefix finds one. `boundary`: the last
  // end of a page. next_*: written by the planned pass. `ahead`: the last end of a page in passes
  // that have not ended; it becomes the `boundary` when its pass ends.
  struct Mark {
    int64_t tokens = 0;
    int32_t slot = -1;
  };
  Mark branch, boundary, next_branch, next_boundary, ahead;
  int64_t matched = 0;  // tokens of the cached prefix at Borrow
  // With StateCounts::chunk: the number of leading tokens whose rows are chunked. Other sequences
  // may use only their pages and states.
  int64_t chunked = 0;
};

// The pages of one sequence, in order of position. The first `borrowed` pages belong to the radix
// tree and are locked there through `lock`; the others belong to the sequence.
//
//   pages:   [ tree's, locked  |  own, computed  |  own, to be computed ]
//              0 .. borrowed                                 .. pages.size()
struct SequencePages {
  std::vector<int32_t> pages;
  int64_t borrowed = 0;
  RadixCache::Node* lock = nullptr;
  std::string salt;      // the salt passed to Borrow
  int64_t recorded = 0;  // leading pages that have a record or need none
  SequenceStates states;
};

// Every page is in exactly one of three places: free, in the tree, or in one sequence. Unlocked
// pages of the tree count as available, because Grow evicts them. If there are records of pages
// from an earlier process, the tree initially holds these pages. Borrows the records. Used by the
// rank's thread only.
//
// With recurrent states, a prefix is reused only up to a page whose end has a checkpoint, and there
// are no records, since a process does not keep the states of the one before. Pages after the
// checkpoint stay in the tree; a sequence computes them again and then shares the tree's copies.
//
// Chunked rows of a prompt (kernels/recurrent.h) have other bits than rows that are computed one by
// one. So the form of a row depends only on its position and on the length of its request's prompt:
// rows up to the last whole chunk of the prompt are chunked, all others are not, also if the
// request was retracted. Only pages and states of chunked rows are published, and chunks and
// checkpoints begin at multiples of the chunk. So a prefix has the same bits whichever request
// computed it.
class KvCache {
 public:
  // Slots of recurrent states, and the maximum number of running sequences. 0 slots: the model has
  // no such states. `chunk`: the rows of a chunk, if rows of prompts are chunked; else 0. `drafts`:
  // the maximum number of drafts of a sequence in a pass, at most kMaxStateCopies. `held`: slots
  // for sequences whose pages another engine reads or writes, in addition to those of running ones.
  struct StateCounts {
    int64_t slots = 0, running = 0;
    int32_t chunk = 0, drafts = 0;
    int64_t held = 0;
  };
  KvCache(int64_t num_pages, int32_t page_size, bool reuse_prefixes, PageRecords* records,
          const StateCounts& states);
  KvCache(int64_t num_pages, int32_t page_size, bool reuse_prefixes, PageRecords* records = nullptr)
      : KvCache(num_pages, page_size, reuse_prefixes, records, {}) {}

  int32_t page_size() const { return page_size_; }
  int64_t total() const { return allocator_.total(); }
  int64_t free() const { return allocator_.free(); }
  int64_t cached() const { return tree_ ? tree_->evictable_pages() : 0; }
  int64_t available() const { return free() + cached(); }
  int64_t capacity() const { return total() * page_size_; }  // tokens
  int64_t PagesFor(int64_t tokens) const { return (tokens + page_size_ - 1) / page_size_; }

  // Gives an empty sequence the longest cached prefix of `tokens` among sequences of the same
  // `salt`; returns its length in tokens. `prompt`: the length of its prompt, which matters only if
  // rows are chunked.
  int64_t Borrow(std::span<const int32_t> tokens, SequencePages& sequence,
                 const std::string& salt = {}, int64_t prompt = 0);
  // Of the tokens that `sequence` has borrowed, the number that `request` itself computed, in an
  // earlier epoch.
  int64_t ComputedBy(uint64_t request, const SequencePages& sequence) const;
  bool reuses_prefixes() const { return tree_.has_value(); }
  // The nodes and the length of the prefix that Borrow would find. Changes nothing.
  RadixCache::PrefixPath Peek(std::span<const int32_t> tokens, const std::string& salt = {}) const;
  // Allocates pages for `tokens` positions in total. Returns false, without effect, if there are
  // too few.
  bool Grow(int64_t tokens, SequencePages& sequence);
  // Writes records of the full pages of `computed`, the sequence's leading tokens.
  void Record(std::span<const int32_t> computed, uint64_t request, SequencePages& sequence);
  // Inserts the full pages of `computed`, the sequence's leading tokens, into the tree. The
  // sequence then borrows these pages from the tree, and later requests can share them.
  void Publish(std::span<const int32_t> computed, SequencePages& sequence);
  // Publishes `computed` and releases all pages. An empty span publishes nothing.
  void Release(std::span<const int32_t> computed, SequencePages& sequence);

  // Recurrent states, which a sequence takes for a pass and keeps after it.
  bool has_states() const { return states_.has_value(); }
  // Before a pass that computes the `rows` after `computed`: takes the slots that it writes. Call
  // it again if the pass was aborted. `drafts`: whether the rows after the first are drafts.
  void PrepareStates(int64_t computed, int64_t rows, SequencePages& sequence, bool drafts = false);
  // After the pass: `computed` includes its rows, of drafts the accepted ones.
  void AdvanceStates(int64_t computed, SequencePages& sequence);
  // The same for a pass that is launched, but has not ended. `decoding`: its token may end the
  // sequence. The rows of a further pass may be prepared before this one ends.
  void AdvanceStatesAhead(int64_t computed, bool decoding, SequencePages& sequence);
  // A launched pass has ended: `computed` includes its rows, not those of later passes.
  void SettleStates(int64_t computed, SequencePages& sequence);
  // Undoes AdvanceStatesAhead, if PrepareStates has not been called since. `computed`: without the
  // rows of the pass.
  void RevertStates(int64_t computed, SequencePages& sequence);
  // Of the `rows` after `computed`, the number that a pass may have: fewer if it would end within a
  // chunk. Possibly 0, if `rows` is less than a chunk.
  int64_t WholeChunks(const SequencePages& sequence, int64_t computed, int64_t rows) const;
  int32_t chunk() const { return chunk_; }  // StateCounts::chunk
  // Whether there are slots for so many sequences. A running one needs more than a held one, so it
  // may always become a held one. True without states.
  bool HasSlotsFor(int64_t running, int64_t held) const {
    return !states_ || StateSlots::ForEach(drafts_) * running + held <= state_room_;
  }
  // A sequence whose first `computed` tokens are cached, and whose state after `end` another engine
  // will write. Takes the slot, unless the cache has this state. Call it after Borrow and Grow, and
  // AdvanceImported once the state is there.
  void PrepareImported(int64_t computed, int64_t end, SequencePages& sequence);
  void AdvanceImported(int64_t end, SequencePages& sequence);
  // The slots of the prepared pass. `row_begin`, `rows`: as in SequenceSpan.
  static kernels::StateSpan SpanOf(const SequencePages& sequence, int64_t computed,
                                   int32_t row_begin, int32_t rows);
  const StateSlots* states() const { return states_ ? &*states_ : nullptr; }

  void DropPrefixes();   // evicts all unlocked pages
  bool IsWhole() const;  // no sequence holds a page

 private:
  void Restore();
  // The leading tokens of a cached prefix that have a checkpoint.
  int64_t WithState(std::span<const int32_t> pages) const;
  // Makes `next` the current state, and a mark of it in `boundary` at the end of a page. `keep`:
  // does not replace the mark that `boundary` is.
  void Advance(int64_t computed, bool keep, SequenceStates::Mark& boundary, SequenceStates& states);
  // After a pass with drafts: makes the state after the last accepted row `next`, and a mark of the
  // last end of a page before it.
  void KeepRow(int64_t computed, SequenceStates& states);
  void DropSlot(int32_t& slot);
  void DropRows(SequenceStates& states);
  void DropStates(SequenceStates& states);
  void DropPlanned(SequenceStates& states);
  void DropMark(SequenceStates::Mark& mark);
  void TryMark(int64_t tokens, SequenceStates::Mark& mark);
  // Makes checkpoints of the marks within `pages`, which are in the tree.
  void PublishStates(std::span<const int32_t> pages, SequenceStates& states);

  // The number of leading tokens, of the `computed` ones, whose pages and states may be published.
  int64_t Publishable(int64_t computed, const SequenceStates& states) const;

  const int32_t page_size_;
  const int32_t chunk_, drafts_;
  const int64_t state_room_;    // slots for the states of running and held sequences
  const int64_t unit_;          // checkpoints are at multiples of it: of pages, and of chunks
  PageRecords* const records_;  // or null
  std::optional<StateSlots> states_;
  PageAllocator allocator_;
  std::optional<RadixCache> tree_;
};

}  // namespace switchyard
