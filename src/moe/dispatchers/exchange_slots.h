// Symmetric buffers of the all-to-all, and the flags that signal their contents.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "comm/device/communicator.h"
#include "moe/dispatchers/elastic_ranks.h"
#include "moe/dispatchers/exchange_memory.h"

namespace switchyard {

// Lays out buffers consecutively. Yields the size of a slot, the offsets in it, and the description
// of its memory.
class BufferPlan {
 public:
  struct Buffer {
    std::string_view name;
    size_t bytes = 0;  // multiple of the cache line
  };

  // Adds a cache-line-aligned buffer and returns its offset. `name`, a literal, is for
  // descriptions.
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

// A batch's use of a slot, part of the dispatcher's state of the batch.
struct SlotUse {
  int slot = -1;       // −1: none
  uint32_t round = 0;  // value of the slot's flags in this use
};

// Equal buffers in every rank's arena, two by default. A batch occupies one from BeginDispatch to
// EndCombine, for several rounds if one combine covers them. All ranks of the EP group take and
// release slots in the same order, so they agree on the slot without communication. Take returns
// the lowest free slot, which keeps a single batch in warm cache.
//
// Each slot has one flag per (stage, source rank), in the destination's arena. A use of the slot is
// a round: its flags are raised to the round's number and never cleared.
//
// A slot needs neither a barrier nor clearing, because every rank raises the flag of the last stage
// (outputs, or their last part) to every rank in every round, with or without rows:
//   - In BeginDispatch, A writes counts and metadata to B, and rows for B to A's own arena. B reads
//     all of these before it raises the outputs flag. A leaves the round (EndCombine, or the
//     next dispatch of the same combine) only after it has seen that flag from every rank. So when
//     A writes round r + 1, no rank reads round r.
//   - From EndDispatch on, B's experts write outputs for A, over A's outputs of round r. In round
//     r + 1 B has then seen A's flag for the rows of r + 1, which A raises after it has left
//     round r. Rounds of one combine have separate outputs, which A reads after the last one.
//   - All counts are written in every round and determine which rows are valid, so data of round r
//     in the buffers is never used in round r + 1.
//
// Used by the rank's thread only.
class ExchangeSlots {
 public:
  static constexpr int kSlots = 2;  // two overlapping batches

  struct Options {
    int slots = kSlots;  // maximum batches in flight
    // RaiseAll goes in rounds: in each one a rank signals one peer and waits for another. This
    // avoids congestion on networks that many concurrent senders would saturate. Not used with
    // `elastic`.
    bool pairwise = false;
    // If set, ranks may be lost, and waits skip them. Outlives the slots.
    ElasticRanks* elastic = nullptr;
  };
  // `group`: the world ranks of the members, this one included. Allocates Bytes(…) symmetrically.
  // `name` is for messages.
  ExchangeSlots(SymmetricMemory& memory, std::vector<int> group, std::string name, int num_stages,
                size_t payload_bytes, const Options& options);
  // For the EP group.
  ExchangeSlots(RankComm& comm, std::string name, int num_stages, size_t payload_bytes,
                ElasticRanks* elastic = nullptr);
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

  // For ranks of other hosts (SymmetricMemory). Wrote registers data written to `peer`, to be sent
  // before the flag is raised. Fetch makes data readable that `peer` wrote to its own arena. No-ops
  // for ranks of this host.
  void Wrote(const SlotUse& use, int peer, size_t offset, size_t bytes);
  void Fetch(const SlotUse& use, int peer, size_t offset, size_t bytes, const char* what);
  bool Mapped(int peer) const { return memory_.Mapped(peers_[peer]); }
  bool AllMapped() const { return all_mapped_; }

  // Whether EP rank `peer` is active; changes only in WaitAll.
  bool Active(int peer) const { return elastic_ == nullptr || elastic_->active(peer); }
  bool AllActive() const { return elastic_ == nullptr || elastic_->all_active(); }

  // Signals every rank of the group, this one included, that `stage` of the round is written.
  void RaiseAll(const SlotUse& use, int stage);
  // Waits for that signal from every rank; `what` is for the timeout message.
  void WaitAll(const SlotUse& use, int stage, const char* what);

  // Whether WaitAll would return, or throw after an abort, without waiting.
  bool AllReached(const SlotUse& use, int stage) const;

 private:
  size_t PayloadOffset(const SlotUse& use, size_t offset) const {
    return base_ + use.slot * slot_bytes_ + offset;
  }
  size_t FlagOffset(int slot, int stage, int source) const;
  void WaitForActive(const SlotUse& use, int stage, const char* what);
  void RaisePairwise(const SlotUse& use, int stage);

  SymmetricMemory& memory_;
  const std::string name_;
  const std::vector<int> peers_;  // world ranks
  const int rank_;
  const size_t payload_bytes_, slot_bytes_;
  const size_t base_;             // of slot 0
  std::vector<bool> taken_;       // [slots]
  std::vector<uint32_t> rounds_;  // [slots]
  const bool all_mapped_, pairwise_;
  ElasticRanks* const elastic_;
  std::vector<uint64_t> commits_;  // [stages, slots] last commit numbers of elastic_
};

}  // namespace switchyard
