// Token rows on their way to the ranks of their experts: what both modes of deepep share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/parallel.h"
#include "moe/backends.h"
#include "moe/dispatchers/exchange_slots.h"

namespace switchyard {

// A part of a slot's payload. Every rank has a segment for each source, so that a sender knows
// where a row goes without asking: rows leave together with how many there are, in one wave. A row
// is written once for each rank that needs it, rounded once for all of them; own rows are not
// moved. Places follow from the routing alone (tokens ascending), so no order depends on timing.
class SentRows {
 public:
  // One batch. Kept after it has ended, for a second dispatch by the same routing.
  struct Batch {
    SlotUse use;
    const float* x = nullptr;  // [n, H]
    bool again = false;        // routing is known on both sides
    // [n, k] EP rank of each slot's expert, −1 where none takes part, and its local id there.
    std::vector<int32_t> owners, local_ids;
    std::vector<int32_t> order;   // [n, P] the token's row among those to that rank, or −1
    std::vector<int32_t> counts;  // [P] rows to each rank
    // Of the rows received: those of source s are [begin[s], begin[s + 1]), and where they lie
    // (Dispatched::row_at).
    std::vector<int32_t> begin;  // [P + 1]
    std::vector<int32_t> row_at;
  };

  // Takes its buffers, for at most `capacity` tokens of one rank, from the plan.
  SentRows(const ExchangeShape& shape, int64_t capacity, BufferPlan* plan);

  // Takes a slot, and computes the layout: where each slot's expert is, and which ranks each token
  // goes to, those that hold one of its experts and take part. x [topk.tokens, H].
  void Begin(ExchangeSlots& slots, const ExpertMap& experts, const float* x, const TopK& topk,
             Batch* batch) const;
  // Takes a slot for other rows by the layout that the batch had.
  void BeginAgain(ExchangeSlots& slots, const float* x, Batch* batch) const;
  // Writes the rows, and unless they are known their counts; a flag has to follow.
  void Send(ExchangeSlots& slots, const Batch& batch, ThreadPool& pool) const;
  // After that flag, where routing is not known yet: fills begin and row_at.
  void Receive(const ExchangeSlots& slots, Batch* batch) const;

  // Index of the first row from `source` in the receiver's segments.
  int64_t SegmentBegin(int source) const { return source * capacity_; }
  int64_t capacity() const { return capacity_; }
  // The fields of Dispatched that say where rows are.
  Dispatched Describe(const ExchangeSlots& slots, const Batch& batch) const;

 private:
  static void ChooseRanks(const TopK& topk, const ExpertMap& experts, const ExchangeSlots& slots,
                          Batch* batch);

  int64_t hidden_, capacity_;
  RowFormat format_;
  int64_t row_bytes_;
  size_t counts_;  // [P sources] i32
  size_t rows_;    // [P sources, capacity, H]
};

}  // namespace switchyard
