// Token rows on their way to the ranks of their experts: what both modes of deepep share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/parallel.h"
#include "moe/backends.h"
#include "moe/dispatchers/exchange_slots.h"

namespace switchyard {

// A part of a slot's payload. Every rank's arena has a segment for each source. Its own one holds
// its tokens' rows, rounded once, at best by whoever made them (InputRows); ranks of the same host
// read them there, so that nothing but routing and a flag is sent to them. For a rank of another
// host the rows that it needs are copied to this rank's segment of its arena, one after the other;
// a sender knows where a row goes without asking, so rows leave together with how many there are,
// in one wave. Places follow from the routing alone (tokens ascending), so no order depends on
// timing.
//
// Where ranks add up what their experts give (CombineRows::kRank), weights lie and go as rows do.
class SentRows {
 public:
  // One batch. Kept after it has ended, for a second dispatch by the same routing.
  struct Batch {
    SlotUse use;
    bool placed = false;  // own rows are in the arena, or will be before Begin
    bool again = false;   // routing is known on both sides
    // [n, k] EP rank of each slot's expert, −1 where none takes part, and its local id there.
    std::vector<int32_t> owners, local_ids;
    std::vector<int32_t> order;   // [n, P] the token's row among those to that rank, or −1
    std::vector<int32_t> counts;  // [P] rows to each rank
    // Of the rows received: those of source s are [begin[s], begin[s + 1]).
    std::vector<int32_t> begin;            // [P + 1]
    std::vector<int32_t> sources, tokens;  // [rows] whose each is, and its number there
    std::vector<const std::byte*> row_places;
  };

  // Takes its buffers, for at most `capacity` tokens of one rank, from the plan.
  SentRows(const ExchangeShape& shape, int64_t capacity, BufferPlan* plan);

  // Takes a slot; returns where the own rows [tokens, H] are to be before Begin.
  std::byte* InputRows(ExchangeSlots& slots, Batch* batch) const;
  // Unless InputRows was called takes a slot and rounds x [topk.tokens, H] to its place. Computes
  // the layout: where each slot's expert is, and which ranks each token goes to, those that hold
  // one of its experts and take part.
  void Begin(ExchangeSlots& slots, const ExpertMap& experts, const float* x, const TopK& topk,
             ThreadPool& pool, Batch* batch) const;
  // The same for other rows by the layout that the batch had.
  void BeginAgain(ExchangeSlots& slots, const float* x, const TopK& topk, ThreadPool& pool,
                  Batch* batch) const;
  // Sends rows to where they are not mapped, and unless they are known their counts; a flag has to
  // follow.
  void Send(ExchangeSlots& slots, const Batch& batch, ThreadPool& pool) const;
  // After that flag, where routing is not known yet: fills begin and sources. Tokens come with what
  // the mode sends.
  void Receive(const ExchangeSlots& slots, Batch* batch) const;
  // With tokens known: finds the rows, in the arenas of this use of the slots.
  Dispatched Locate(const ExchangeSlots& slots, Batch* batch) const;

  // [k] of received row n, which is of `source` (kRank).
  const float* Weights(const ExchangeSlots& slots, const Batch& batch, int source, int64_t n) const;

  // Index of the first row from `source` in the receiver's segments.
  int64_t SegmentBegin(int source) const { return source * capacity_; }
  int64_t capacity() const { return capacity_; }

 private:
  static void ChooseRanks(const TopK& topk, const ExpertMap& experts, const ExchangeSlots& slots,
                          Batch* batch);
  void Place(ExchangeSlots& slots, const float* x, const TopK& topk, ThreadPool& pool,
             Batch* batch) const;
  void SendTo(ExchangeSlots& slots, const Batch& batch, int dest, ThreadPool& pool) const;
  // Of token t of `source`, in its own arena.
  size_t RowOffset(int source, int64_t t) const {
    return rows_ + (SegmentBegin(source) + t) * row_bytes_;
  }
  size_t WeightsOffset(int source, int64_t t) const {
    return weights_ + (SegmentBegin(source) + t) * weights_bytes_;
  }

  int64_t hidden_, capacity_;
  RowFormat format_;
  int64_t row_bytes_;
  int64_t weights_bytes_;  // of a token, 0 where none are sent
  size_t counts_;          // [P sources] i32
  size_t rows_;            // [P sources, capacity, H]
  size_t weights_ = 0;     // [P sources, capacity, k] f32
};

}  // namespace switchyard
