// Symmetric buffers of the all-to-all, and the flags that say what is in them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "comm/device/communicator.h"
#include "moe/dispatchers/elastic_ranks.h"
#include "moe/exchange_memory.h"

namespace switchyard {

// Lays buffers one after the other: what the size and the offsets of a slot come from, and what
// its memory is described by.
class BufferPlan {
 public:
  struct Buffer {
    std::string_view name;
    size_t bytes = 0;  // whole cache lines
  };

  // Offset of a buffer on cache lines of its own. `name`, a literal, is for descriptions.
  size_t Add(std::string_view name, size_t bytes) {
    const size_t offset = end_, whole = (bytes + kLine - 1) / kLine * kLine;
    end_ += whole;
    buffers_.push_back({name, whole});
    return offset;
  }
  size_t bytes() const { return end_; }
  const std::vector<Buffer>& buffers() const { return buffers_; }

  static constexpr size_t kLine = 64;

 private:
  size_t end_ = 0;
  std::vector<Buffer> buffers_;
};

// A batch's use of a slot, part of the dispatcher's record of the batch.
struct SlotUse {
  int slot = -1;       // −1: none taken
  uint32_t round = 0;  // value of the slot's flags in this use of it
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
//   - What A writes to B in BeginDispatch (counts, tags), and what A writes to its own arena for B
//   to
//     read there (rows), B reads before it raises that flag, and A leaves the round (EndCombine)
//     only when it has seen that flag from every rank. So when A writes round r + 1, nobody still
//     reads round r.
//   - What B's experts leave with A from EndDispatch on overwrites A's outputs of round r. In round
//     r + 1 B has then seen A's flag for the rows of r + 1, which A raises after it has left round
//     r.
//   - Counts are written whole in every round and say which rows are valid, so what round r left in
//     the buffers is never taken for a part of round r + 1.
//
// Used by the rank's thread only.
class ExchangeSlots {
 public:
  static constexpr int kSlots = 2;  // one batch, and one that overlaps it

  // Allocates Bytes(…) symmetrically. `name` is for messages. With `elastic`, which outlives it,
  // ranks may be lost on the way: nobody then waits for them.
  ExchangeSlots(RankComm& comm, std::string name, int num_stages, size_t payload_bytes,
                ElasticRanks* elastic = nullptr);
  static size_t Bytes(int ep, int num_stages, size_t payload_bytes);
  // The same by buffer, the payload's as the plan has them.
  static ExchangeMemory Memory(const std::string& name, int ep, int num_stages,
                               const BufferPlan& payload);

  int rank() const { return rank_; }                             // in the EP group
  int ranks() const { return static_cast<int>(peers_.size()); }  // P

  // Gives the batch a slot and the slot's next round. Error kResource when all are in flight.
  void Take(SlotUse* use);
  void Release(SlotUse* use);

  // `offset` in the payload of the batch's slot, in the arena of EP rank `peer`.
  std::byte* At(const SlotUse& use, int peer, size_t offset) const;
  std::byte* Local(const SlotUse& use, size_t offset) const { return At(use, rank_, offset); }

  // For the ranks of other hosts (SymmetricMemory): says what was written to `peer`, before the
  // flag of it is raised; makes readable what `peer` wrote to its own arena. Nothing for the other
  // ranks.
  void Wrote(const SlotUse& use, int peer, size_t offset, size_t bytes);
  void Fetch(const SlotUse& use, int peer, size_t offset, size_t bytes, const char* what);
  bool Mapped(int peer) const { return memory_.Mapped(peers_[peer]); }
  bool AllMapped() const { return all_mapped_; }

  // Whether EP rank `peer` still takes part; changes in WaitAll only.
  bool Active(int peer) const { return elastic_ == nullptr || elastic_->active(peer); }
  bool AllActive() const { return elastic_ == nullptr || elastic_->all_active(); }

  // Tells every rank of the group, this one included, that `stage` of the round is written.
  void RaiseAll(const SlotUse& use, int stage);
  // Waits for every rank's; `what` is for the message of a timeout.
  void WaitAll(const SlotUse& use, int stage, const char* what);

  // Whether WaitAll would return, or throw because the ranks were aborted, without waiting.
  bool AllReached(const SlotUse& use, int stage) const;

 private:
  size_t PayloadOffset(const SlotUse& use, size_t offset) const {
    return base_ + use.slot * slot_bytes_ + offset;
  }
  size_t FlagOffset(int slot, int stage, int source) const;
  void WaitForActive(const SlotUse& use, int stage, const char* what);

  SymmetricMemory& memory_;
  const std::string name_;
  const std::vector<int> peers_;  // world ranks
  const int rank_;
  const size_t payload_bytes_, slot_bytes_;
  const size_t base_;  // of slot 0
  bool taken_[kSlots] = {};
  uint32_t rounds_[kSlots] = {};
  const bool all_mapped_;
  ElasticRanks* const elastic_;
  std::vector<uint64_t> commits_;  // [stages, kSlots] numbers of the last commits; of elastic_
};

}  // namespace switchyard
