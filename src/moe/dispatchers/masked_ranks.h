// The active ranks of an EP group. An agreement protocol ensures that all active ranks have the
// same set.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/device/communicator.h"

namespace switchyard {

// Lets an exchange continue without ranks that have died, are stopped, or are too slow (the
// active-rank mask of Mooncake EP and of DeepEP's shrinking, on top of an agreement protocol).
//
// An exchange is a sequence of stages, the same on every rank; a rank ends a stage by raising
// flags. Before that it *commits* the stage. Each rank has a cell in its own arena, which every
// rank maps. To commit, the rank replaces "n - 1 stages done" by "n done" in its cell with a
// compare-and-swap. A rank whose wait for a peer times out *closes* the peer's cell with the same
// compare-and-swap. So for each rank and stage, either the commit or the close comes first. All
// ranks observe the same outcome, at any later time:
//   - The stage is committed: the rank's writes for it are complete, and all ranks use them, even
//     if the rank died before it raised the flag.
//   - The cell was closed first: the rank is lost for this stage and all later ones, on all ranks.
// All ranks wait for the same stages in the same order, so after each wait they have the same mask.
// The destinations of rows, which they compute from the mask, are then consistent without any
// messages.
//
// A rank only closes cells of ranks that have committed fewer stages. So two ranks cannot exclude
// each other, and the most advanced rank is never excluded.
//
// Limits. Cells must be mapped: ranks of other hosts are rejected. A rank counts as lost if it
// starts later than others by more than the timeout, or computes longer than that between two
// stages. A lost rank that is alive detects it at its next commit or wait, and throws. Until then
// it may finish writes that it has begun. Token rows of the lost rank do no harm, because no rank
// reads their segments any more. Outputs may do harm: combine by slot stores them by token and
// slot, so an output of the lost rank may overwrite an output of another rank in a later round. The
// launcher must therefore end a lost rank instead of letting it continue.
//
// Owned by the dispatcher. Used by the rank's thread only.
class MaskedRanks {
 public:
  // Allocates SymmetricBytes() of symmetric memory. Error kInvalid if a rank is on another host.
  MaskedRanks(RankComm& comm, std::chrono::milliseconds timeout);
  static size_t SymmetricBytes();

  // [EP] 1: active, 0: lost. Changes only in Wait.
  std::span<const uint8_t> mask() const { return mask_; }
  bool active(int ep_rank) const { return mask_[ep_rank] != 0; }
  bool all_active() const { return all_active_; }

  // Commits this rank's next stage. All earlier writes of this rank are visible to ranks that
  // observe the commit. Returns the stage number, the same on every rank. Error kPeer if the others
  // have excluded this rank.
  uint64_t Commit();
  // Deadline for all stages that one wait covers.
  Deadline WaitDeadline() const { return std::chrono::steady_clock::now() + timeout_; }
  // Waits until EP rank `ep_rank` has committed stage `number`; the peer signals this by raising
  // `flag` to `value`. Masks the rank if the deadline `until` passes or other ranks have closed its
  // cell. Then logs a warning that names the stage (`what`).
  void Wait(int ep_rank, uint64_t number, size_t flag, uint32_t value, Deadline until,
            const char* what);

 private:
  // Contents of a cell: the number of committed stages, and this bit if the cell is closed.
  static constexpr uint64_t kClosed = uint64_t{1} << 63;
  enum class Outcome : uint8_t { kPending, kCommitted, kLost };

  uint64_t* CellOf(int ep_rank) const;
  static Outcome OutcomeOf(uint64_t cell, uint64_t number);
  Outcome ReadCell(int ep_rank, uint64_t number) const;
  Outcome CloseCell(int ep_rank, uint64_t number);
  void CheckNotExcluded() const;
  void Mask(int ep_rank, const char* what);

  SymmetricMemory& memory_;
  const std::vector<int> peers_;  // world ranks
  const int rank_;                // rank in the EP group
  const std::chrono::milliseconds timeout_;
  const size_t cell_;  // offset of the cell in each arena
  uint64_t committed_ = 0;
  std::vector<uint8_t> mask_;
  bool all_active_ = true;
};

}  // namespace switchyard
