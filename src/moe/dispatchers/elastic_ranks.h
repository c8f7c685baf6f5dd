// The ranks of an EP group that still take part, as those that do have agreed.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/device/communicator.h"

namespace switchyard {

// Lets an exchange go on without ranks that have died, were stopped, or are too slow (the
// active-rank mask of Mooncake EP and of DeepEP's shrinking, with an agreement under it).
//
// An exchange is a sequence of stages, the same on every rank, each of which a rank ends by raising
// flags. Before that it *commits* the stage: in a cell of its own arena, which every rank maps, it
// swaps "n - 1 stages done" for "n done". Whoever has waited for a rank in vain *closes* the rank's
// cell by the same compare-and-swap. So of each rank and stage either the commit or the end comes
// first, and all ranks see the same one, whoever looks, and however late:
//   - the stage is committed: what the rank wrote for it is in place, and everyone uses it, even
//     where the rank died before it raised the flag;
//   - the cell was closed before: the rank is lost for this stage and all later ones, for everyone.
// All ranks wait for the same stages in the same order, so after each wait all of them have the
// same mask, and what they compute from it (where rows go) fits together. No rank has to be told
// anything.
//
// A rank only ever gives up those that are behind it, so two cannot give up each other, and the one
// that is farthest stays: the group ends as the one that stalled last, not as nobody.
//
// Limits. The cell has to be mapped: ranks of other hosts are refused. A rank that starts later
// than others by more than the timeout, or computes for longer between two stages, is taken for
// lost. A lost rank that is alive learns of it at its next commit or wait, and throws; until then
// it may still write what it had begun to write. Rows go to a segment that nobody reads any more,
// but outputs go where those of others may lie in a later round: whoever starts the ranks ends one
// that was given up before it lets it run on.
//
// Owned by the dispatcher, used by the rank's thread only.
class ElasticRanks {
 public:
  // Allocates SymmetricBytes() symmetrically. Error kInvalid where a rank is on another host.
  ElasticRanks(RankComm& comm, std::chrono::milliseconds timeout);
  static size_t SymmetricBytes();

  // [EP] 1: takes part, 0: lost. Changes in Wait only.
  std::span<const uint8_t> mask() const { return mask_; }
  bool active(int ep_rank) const { return mask_[ep_rank] != 0; }
  bool all_active() const { return all_active_; }

  // Ends this rank's next stage; all it wrote is then seen by whoever sees the commit. Returns the
  // stage's number, the same on every rank. Error kPeer where the others have given this rank up.
  uint64_t Commit();
  // Where the stages of one wait begin to be waited for.
  Deadline StartWait() const { return std::chrono::steady_clock::now() + timeout_; }
  // Waits until EP rank `ep_rank` has committed stage `number`, which it tells by raising `flag` to
  // `value`. Where it has not by `until`, or others found so, it is masked, and a line of the log
  // says in which stage (`what`).
  void Wait(int ep_rank, uint64_t number, size_t flag, uint32_t value, Deadline until,
            const char* what);

 private:
  // Of a cell: stages committed, and whether it is closed.
  static constexpr uint64_t kClosed = uint64_t{1} << 63;
  enum class Outcome : uint8_t { kPending, kCommitted, kLost };

  uint64_t* CellOf(int ep_rank) const;
  static Outcome OutcomeOf(uint64_t cell, uint64_t number);
  Outcome Look(int ep_rank, uint64_t number) const;
  Outcome Close(int ep_rank, uint64_t number);
  void CheckOwn() const;
  void Mask(int ep_rank, const char* what);

  SymmetricMemory& memory_;
  const std::vector<int> peers_;  // world ranks
  const int rank_;                // in the EP group
  const std::chrono::milliseconds timeout_;
  const size_t cell_;  // offset of a rank's cell
  uint64_t committed_ = 0;
  std::vector<uint8_t> mask_;
  bool all_active_ = true;
};

}  // namespace switchyard
