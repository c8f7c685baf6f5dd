// Dispatch of token rows, shared by both modes of deepep.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/parallel.h"
#include "moe/backends.h"
#include "moe/dispatchers/exchange_slots.h"

namespace switchyard {

// Part of the payload of an exchange slot: dispatched rows and their routing. Every rank's arena
// has one segment per source rank. A rank's own segment holds its tokens' rows, rounded once,
// preferably by their producer (InputRows). Ranks of the same host read them in place, so that only
// routing and a flag are sent to them. The rows that a rank of another host needs are copied
// contiguously to this rank's segment in that rank's arena. A sender computes the position of a row
// at its destination without communication, so rows and counts are sent together, in one phase.
// Rows are in ascending order of tokens and positions depend on the routing only, so no order
// depends on timing.
//
// If ranks combine partial sums (CombineRows::kRank), weights are stored and sent like rows.
class DispatchRows {
 public:
  // State of one batch. It is kept after the batch has ended, for a second dispatch with the same
  // routing.
  struct Batch {
    SlotUse use;
    bool placed = false;      // whether the caller writes the own rows before Begin
    bool keeps_slot = false;  // whether the next dispatch uses the slot that the batch holds
    bool again = false;       // whether the dispatch reuses the routing of the previous one
    // [n, k] owners: EP rank of each slot's expert; −1 if there is no expert or the rank is
    // inactive. local_ids: id of the expert on that rank.
    std::vector<int32_t> owners, local_ids;
    // [n, P] index of the token's row among the rows sent to each rank; −1 if it is not sent there
    std::vector<int32_t> order;
    std::vector<int32_t> counts;  // [P] number of rows sent to each rank
    // Received rows: rows [begin[s], begin[s + 1]) are from source rank s.
    std::vector<int32_t> begin;            // [P + 1]
    std::vector<int32_t> sources, tokens;  // [rows] source rank, and token index there
    std::vector<const std::byte*> row_places;
  };

  // Adds its buffers to `plan`. `capacity`: maximum tokens of one rank in a dispatch.
  DispatchRows(const ExchangeShape& shape, int64_t capacity, BufferPlan* plan);

  // Takes a slot, unless the batch already holds one. Returns the buffer for the own rows [tokens,
  // H], which are to be written before Begin.
  std::byte* InputRows(ExchangeSlots& slots, Batch* batch) const;
  // Rounds x [topk.tokens, H] into the buffer of InputRows, unless InputRows was called. Computes
  // the dispatch layout: the rank of each slot's expert, and the active ranks to which each token
  // is sent.
  void Begin(ExchangeSlots& slots, const ExpertMap& experts, const float* x, const TopK& topk,
             ThreadPool& pool, Batch* batch) const;
  // Begins a dispatch of other rows x, with the layout of the batch's previous dispatch.
  void BeginAgain(ExchangeSlots& slots, const float* x, const TopK& topk, ThreadPool& pool,
                  Batch* batch) const;
  // Sends rows to ranks whose memory is not mapped. Sends row counts to all ranks, unless the
  // dispatch reuses the routing. The caller must then raise a flag.
  void Send(ExchangeSlots& slots, const Batch& batch, ThreadPool& pool) const;
  // Call it after the flag that follows Send, unless the dispatch reuses the routing. Fills `begin`
  // and `sources`. The mode then fills `tokens` from its metadata.
  void Receive(const ExchangeSlots& slots, Batch* batch) const;
  // Returns the addresses of the rows in the arenas, for this use of the slot. `tokens` must be
  // filled.
  Dispatched Locate(const ExchangeSlots& slots, Batch* batch) const;

  // kRank: the weights [k] of received row n from `source`.
  const float* Weights(const ExchangeSlots& slots, const Batch& batch, int source, int64_t n) const;

  // Index of the first row from `source` in the receiver's segments.
  int64_t SegmentBegin(int source) const { return source * capacity_; }
  int64_t capacity() const { return capacity_; }

 private:
  static void ComputeLayout(const TopK& topk, const ExpertMap& experts, const ExchangeSlots& slots,
                            Batch* batch);
  void Place(ExchangeSlots& slots, const float* x, const TopK& topk, ThreadPool& pool,
             Batch* batch) const;
  void SendTo(ExchangeSlots& slots, const Batch& batch, int dest, ThreadPool& pool) const;
  // Offset of the row of token t of `source`, in the source's own arena.
  size_t RowOffset(int source, int64_t t) const {
    return rows_ + (SegmentBegin(source) + t) * row_bytes_;
  }
  size_t WeightsOffset(int source, int64_t t) const {
    return weights_ + (SegmentBegin(source) + t) * weights_bytes_;
  }

  int64_t hidden_, capacity_;
  RowFormat format_;
  int64_t row_bytes_;
  int64_t weights_bytes_;  // per token, 0 if none are sent
  size_t counts_;          // [P sources] i32
  size_t rows_;            // [P sources, capacity, H]
  size_t weights_ = 0;     // [P sources, capacity, k] f32
};

}  // namespace switchyard
