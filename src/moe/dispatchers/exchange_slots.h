// Symmetric buffers of the all-to-all, and the flags that signal their contents.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "comm/device/communicator.h"
#include "moe/dispatchers/exchange_memory.h"
#include "moe/dispatchers/masked_ranks.h"

namespace switchyard {

// Lays out buffers consecutively. Computes the size of a slot, the offsets in it, and the
// description of its memory.
class BufferPlan {
 public:
  struct Buffer {
    std::string_view name;
    size_t bytes = 0;  // a multiple of the cache line size
  };

  // Adds a cache-line-aligned buffer and returns its offset. `name`: a string literal, for
  // descriptions of the memory.
  size_t Add(std::string_view name, size_t bytes) {
    const size_t offset = end_, whole = (bytes + kLine - 1) / kLine * kLine;
    end_ += whole;
    buffers_.push_back({name, whole});
    return offset;
  }
  size_t bytes() const { return end_; }
  size_t OffsetOf(std::string_view name) const;  // of a buffer that was added
  const std::vector<Buffer>& buffers() const { return buffers_; }

  static constexpr size_t kLine = 64;

 private:
  size_t end_ = 0;
  std::vector<Buffer> buffers_;
};

// The slot that a batch uses. Part of the dispatcher's state of the batch.
struct SlotUse {
  int slot = -1;       // −1: none
  uint32_t round = 0;  // value of the slot's flags in this use
};

// Equal buffers in every rank's arena, two by default. A batch occupies one of them from
// BeginDispatch to EndCombine. If one combine covers several rounds, the batch occupies the same
// one in all of these rounds. All ranks of the EP group take and release slots in the same order,
// so they use the same slot without communication. Take returns the lowest free slot, which keeps
// the slot of a single batch in cache.
//
// Each slot has one flag per (stage, source rank), in the destination's arena. Each use of a slot
// is a round. Flags are raised to the number of the round and never cleared.
//
// In the following, A and B are any two ranks. In every round, with or without rows, every rank
// raises the flag of the last stage (outputs, or their last part) to every rank. Therefore a slot
// needs neither a barrier nor clearing:
//   - Dispatch: in BeginDispatch, A writes counts and metadata to B, and rows for B to A's own
//     arena. B reads all of these before it raises the outputs flag. A leaves the round (by
//     EndCombine, or by the next dispatch of the same combine) only after it has seen that flag
//     from every rank. So when A writes round r + 1, no rank reads round r.
//   - Combine: from EndDispatch of round r + 1 on, B's experts write outputs for A over A's outputs
//     of round r. B has then seen A's rows flag of round r + 1, and A raises that flag only after
//     it has left round r. Rounds of one combine have separate outputs, which A reads after the
//     last round.
//   - Stale data: all counts are written in every round and determine which rows are valid. So data
//     of round r in the buffers is never used in round r + 1.
//
// Used by the rank's thread only.
class ExchangeSlots {
 public:
  static constexpr int kSlots = 2;  // two overlapping batches

  struct Options {
    int slots = kSlots;  // maximum batches in flight
    // If set, RaiseAll has several steps. In each step a rank signals one peer and waits for
    // another one. This avoids congestion on networks that many concurrent senders would saturate.
    // Not used with `elastic`.
    bool pairwise = false;
    // If set, ranks may be lost, and waits skip lost ranks. Must outlive the slots.
    MaskedRanks* elastic = nullptr;
    // Number of members, the first ones, whose GPUs raise their flags. Waits for them poll.
    int device_ranks = 0;
  };
  // `group`: the world ranks of the members, including this one. Allocates Bytes(…) of symmetric
  // memory. `name` is for messages.
  ExchangeSlots(SymmetricMemory& memory, std::vector<int> group, std::string name, int num_stages,
                size_t payload_bytes, const Options& options);
  // Constructs the slots for the EP group.
  ExchangeSlots(RankComm& comm, std::string name, int num_stages, size_t payload_bytes,
                MaskedRanks* elastic = nullptr);
  static size_t Bytes(int ep, int num_stages, size_t payload_bytes, int slots = kSlots);
  // Describes the memory that Bytes counts, for kSlots slots: the buffers of `payload`, then the
  // flags.
  static ExchangeMemory Memory(const std::string& name, int ep, int num_stages,
                               const BufferPlan& payload);

  int rank() const { return rank_; }                             // in the group
  int ranks() const { return static_cast<int>(peers_.size()); }  // P

  // Assigns the batch a slot and the slot's next round. Error kResource if all slots are in use.
  void Take(SlotUse* use);
  void Release(SlotUse* use);
  // Moves a batch to the next round of the slot that it holds. The batch must have received the
  // outputs flag of the current round from every rank.
  void Advance(SlotUse* use);

  // Address of `offset` in the payload of the batch's slot, in the arena of EP rank `peer`.
  std::byte* At(const SlotUse& use, int peer, size_t offset) const;
  std::byte* Local(const SlotUse& use, size_t offset) const { return At(use, rank_, offset); }

  // Needed for ranks of other hosts (SymmetricMemory); both functions do nothing for ranks of this
  // host. Wrote registers data that was written to `peer`; it is sent before the next flag is
  // raised. Fetch makes data readable that `peer` wrote to its own arena.
  void Wrote(const SlotUse& use, int peer, size_t offset, size_t bytes);
  void Fetch(const SlotUse& use, int peer, size_t offset, size_t bytes, const char* what);
  bool Mapped(int peer) const { return memory_.Mapped(peers_[peer]); }
  bool AllMapped() const { return all_mapped_; }

  // Whether EP rank `peer` is active; changes only in WaitAll.
  bool Active(int peer) const { return elastic_ == nullptr || elastic_->active(peer); }
  bool AllActive() const { return elastic_ == nullptr || elastic_->all_active(); }

  // Signals every rank of the group, including this one, that `stage` of the round is written.
  void RaiseAll(const SlotUse& use, int stage);
  // Waits until every rank has signalled `stage`. `what` names the stage in the timeout message.
  void WaitAll(const SlotUse& use, int stage, const char* what);

  // Whether WaitAll would return without waiting. Also true if it would throw after an abort.
  bool AllReached(const SlotUse& use, int stage) const;

 private:
  size_t PayloadOffset(const SlotUse& use, size_t offset) const {
    return base_ + use.slot * slot_bytes_ + offset;
  }
  size_t FlagOffset(int slot, int stage, int source) const;
  void WaitFor(const SlotUse& use, int stage, int source, const char* what);
  void WaitForActive(const SlotUse& use, int stage, const char* what);
  void RaisePairwise(const SlotUse& use, int stage);

  SymmetricMemory& memory_;
  const std::string name_;
  const std::vector<int> peers_;  // world ranks
  const int rank_;
  const size_t payload_bytes_, slot_bytes_;
  const size_t base_;             // offset of slot 0
  std::vector<bool> taken_;       // [slots]
  std::vector<uint32_t> rounds_;  // [slots]
  const bool all_mapped_, pairwise_;
  MaskedRanks* const elastic_;
  const int device_ranks_;
  // [stages, slots] number of the last commit in `elastic_`.
  std::vector<uint64_t> commits_;
};

}  // namespace switchyard
