// Symmetric buffers of the all-to-all, and the flags that say what is in them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/device/communicator.h"
#include "moe/types.h"

namespace switchyard {

// Lays buffers one after the other: what both the size and the offsets of a slot come from.
class BufferPlan {
 public:
  // Offset of a buffer on cache lines of its own.
  size_t Add(size_t bytes) {
    const size_t offset = end_;
    end_ += (bytes + kLine - 1) / kLine * kLine;
    return offset;
  }
  size_t bytes() const { return end_; }

  static constexpr size_t kLine = 64;

 private:
  size_t end_ = 0;
};

// kSlots equal buffers in every rank's arena. A batch takes one from BeginDispatch to EndCombine.
// All ranks of the EP group take and release in the same order, so that without a word they mean
// the same slot; the lowest free one is taken, which keeps a single batch in warm memory.
//
// Each slot has one flag for each (stage, source rank), in the destination's arena. A use of the
// slot is a round: its flags are raised to the round's number and never cleared.
//
// Why a slot needs neither a barrier nor clearing, given that every rank raises the flag of the
// last stage (outputs) to every rank in every round, rows or no rows:
//   - What A writes to B in BeginDispatch (counts, rows, tags) B reads before it raises that flag,
//     and A leaves the round (EndCombine) only when it has seen that flag from every rank. So when
//     A writes round r + 1 into B, nobody there still reads round r.
//   - What B writes to A in BeginCombine overwrites A's outputs of round r. In round r + 1 B does
//     so after A's flag for the rows of r + 1, which A raises after it has left round r.
//   - Counts are written whole in every round and say which rows are valid, so what round r left in
//     the buffers is never taken for a part of round r + 1.
//
// Used by the rank's thread only.
class ExchangeSlots {
 public:
  static constexpr int kSlots = 2;  // one batch, and one that overlaps it

  // Allocates Bytes(…) symmetrically. `name` is for messages.
  ExchangeSlots(RankComm& comm, std::string name, int num_stages, size_t payload_bytes);
  static size_t Bytes(int ep, int num_stages, size_t payload_bytes);

  int rank() const { return rank_; }                             // in the EP group
  int ranks() const { return static_cast<int>(peers_.size()); }  // P

  // Gives the handle a slot and the slot's next round. Error kResource when all are in flight.
  void Take(DispatchHandle* handle);
  void Release(DispatchHandle* handle);

  // `offset` in the payload of the handle's slot, in the arena of EP rank `peer`.
  std::byte* At(const DispatchHandle& handle, int peer, size_t offset) const;
  std::byte* Local(const DispatchHandle& handle, size_t offset) const {
    return At(handle, rank_, offset);
  }

  // Tells every rank of the group, this one included, that `stage` of the round is written.
  void RaiseAll(const DispatchHandle& handle, int stage);
  // Waits for every rank's; `what` is for the message of a timeout.
  void WaitAll(const DispatchHandle& handle, int stage, const char* what);

 private:
  size_t FlagOffset(int slot, int stage, int source) const;

  SymmetricMemory& memory_;
  const std::string name_;
  const std::vector<int> peers_;  // world ranks
  const int rank_;
  const size_t payload_bytes_, slot_bytes_;
  const size_t base_;  // of slot 0
  bool taken_[kSlots] = {};
  uint32_t rounds_[kSlots] = {};
};

}  // namespace switchyard
