// Proposals of tokens for speculative decoding.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "engine/scheduler/sequence.h"
#include "model/forward_batch.h"

namespace switchyard {

// An open sequence after a pass of the model. It already includes the tokens that the pass sampled.
struct DraftPart {
  Sequence* sequence = nullptr;
  int64_t first_row = 0;  // row of position `begin` in the pass
  // Positions [begin, begin + rows): those rows of the pass whose input tokens are final. Rows of
  // rejected drafts are not included.
  int64_t begin = 0, rows = 0;
  bool decoding = false;  // the rows were decode rows
  // Maximum number of drafts that the sequence can use; 0: it does not decode in the next step, or
  // has drafts from another source. The sequence has pages for them.
  int64_t wanted = 0;
  // With trees: `wanted` is the maximum number of drafts on a path. The sequence has pages for
  // `slots` rows after its last token, for the rows of a tree in both models' caches.
  int64_t slots = 0;
  // Set after a verification: the rows of the pass whose input tokens are final,
  // relative to first_row. Empty: they are the first ones.
  std::span<const int32_t> path = {};

  // The row of position `begin` + i in the pass.
  int64_t RowOf(int64_t i) const { return first_row + (path.empty() ? i : path[i]); }
};

// Fills Sequence::drafts, and Sequence::draft_parents if they are a tree. A draft affects speed
// only: the model verifies each draft, and its own token is the output (RankEngine). So drafts may
// come from approximations, but they must be equal on all ranks of an attention group. Used by the
// rank's thread only.
class Drafter {
 public:
  virtual ~Drafter() = default;
  // Called after each pass of the model that was not aborted, on every rank of the world, in the
  // same order. Parts are in the order of the batch. `limit`: the maximum number of drafts of any
  // sequence, equal on all ranks. May be collective over the world.
  virtual void Draft(std::span<const DraftPart> parts, int64_t limit) = 0;
  // Number of rows of an open sequence that the drafter did not compute while `limit` was 0. The
  // drafter has to compute them when `limit` rises.
  virtual int64_t Backlog(const Sequence&) const { return 0; }
};

}  // namespace switchyard
