// Combine of the all-to-alls in which the sender writes to the receiver's buffer. Outputs are
// written to [token, slot] of the source rank's buffer, or partial sums to [rank, token].
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "moe/backends.h"
#include "moe/dispatchers/combine.h"
#include "moe/dispatchers/dispatch_rows.h"
#include "moe/dispatchers/exchange_slots.h"
#include "moe/placement/placement.h"
#include "moe/runners/expert_parts.h"
#include "moe/scratch.h"
#include "moe/types.h"

namespace switchyard {

// Index of the output for slot j of token t in the outputs [tokens, k].
inline int32_t OutputPlace(int64_t t, int j, int k) { return static_cast<int32_t>(t * k + j); }

// Outputs of this rank's experts for its own tokens. They are read where the runner wrote them.
struct OwnOutputs {
  const float* rows = nullptr;   // runner outputs
  std::vector<int32_t> row_for;  // [tokens, k] row of each output; −1: not an expert of this rank
};

// For every token t of `tokens`: y[t] = Σ_j weight[t, j] · output [t, j] over the slots whose
// expert is on an active rank. `outputs`: [tokens, k, H], written by the experts' ranks.
void SumReturnedRows(const TopK& topk, TokenList tokens, const ExpertMap& experts,
                     const ExchangeSlots& slots, DType dtype, int64_t hidden,
                     const std::byte* outputs, ThreadPool& pool, float* y);

// Part of the payload of an exchange slot: expert outputs that return to the tokens' ranks, in both
// modes of deepep. With kSlot, the runner writes its outputs to the source rank. With kRank, it
// writes them to memory of the batch, where they are summed before they are sent.
class CombinedRows {
 public:
  // The received row to which a runner output belongs, and the slot of the row's token.
  struct Target {
    int32_t row = -1;  // −1: the output belongs to no row (padding)
    int32_t slot = 0;
  };
  // State of one batch.
  struct Batch {
    std::vector<Target> targets;     // [num_rows] target of each runner output
    std::vector<std::byte*> places;  // [num_rows] address to which each runner output is written
    bool placed = false, prepared = false;  // whether Places and Prepare were called
    // kSlot: [P] address of the outputs in the arena of each source.
    std::vector<std::byte*> arenas;
    int64_t first_token = 0;  // index of the current round's first token in the outputs
    // The routing of all rounds so far, if the combine covers several rounds.
    TopK topk;
    std::vector<int32_t> order;  // as DispatchRows::Batch::order
    TokensByPart by_part;        // own tokens by part; used if there are several parts
    // The following members are used with kRank.
    Scratch<std::byte> outputs;      // [num_rows, H]
    std::vector<int32_t> output_of;  // [received rows, k] index in `outputs` for each slot, or −1
  };

  // Adds its buffer to `plan`. `capacity`: maximum tokens of one rank in all rounds of a combine.
  CombinedRows(const ExchangeShape& shape, int64_t capacity, BufferPlan* plan);

  // Call it after the dispatch of a round has begun. If the combine covers several rounds, copies
  // the routing, because the final sums need it and the caller may overwrite it.
  void Begin(const RoundPlace& round, const TopK& topk, const DispatchRows::Batch& sent,
             Batch* batch) const;
  // Returns the destinations of the runner's outputs. Call it after the deepep mode has filled
  // batch->targets.
  std::span<std::byte* const> Places(const ExchangeSlots& slots, const DispatchRows::Batch& sent,
                                     Batch* batch) const;
  // Call it after the runner has computed `outputs`. Rounds float32 outputs to their destinations,
  // computes partial sums if combined by rank, and registers the writes. The caller must then raise
  // a flag. If there are several calls for a batch, their `outputs` ascend.
  void Prepare(ExchangeSlots& slots, const DispatchRows& rows, const DispatchRows::Batch& sent,
               const ExpertRows& experts, Range outputs, Batch* batch, ThreadPool& pool) const;

  // Number of parts of the outputs. Part p is signalled by the flag of stage `first_stage` + p
  // (ExchangeSlots).
  int parts() const { return parts_.count(); }
  void AwaitAll(ExchangeSlots& slots, const SlotUse& use, int first_stage, const char* what) const;
  // Waits for the flags of the last round and computes the weighted sums of all rounds. If there is
  // only one round, a token is summed as soon as the parts with its outputs have arrived. `topk`:
  // routing of the last round.
  void AwaitAndSum(ExchangeSlots& slots, int first_stage, const char* what,
                   const DispatchRows::Batch& sent, const TopK& topk, const ExpertMap& experts,
                   Batch* batch, ThreadPool& pool, float* y) const;

  // Used instead of AwaitAndSum, with kSlot and one round. Call it after AwaitAll. Returns the
  // outputs [tokens, k, H].
  const std::byte* OutputsBySlot(const ExchangeSlots& slots, const DispatchRows::Batch& sent,
                                 Batch* batch) const;

  int64_t capacity() const { return capacity_; }

 private:
  void SumByRank(ExchangeSlots& slots, const DispatchRows& rows, const DispatchRows::Batch& sent,
                 Range outputs, Batch* batch, ThreadPool& pool) const;
  void RegisterWrites(ExchangeSlots& slots, const DispatchRows::Batch& sent, Range outputs,
                      const Batch& batch) const;
  void SortTokens(const DispatchRows::Batch& sent, int64_t tokens, Batch* batch) const;
  void Sum(const ExchangeSlots& slots, const DispatchRows::Batch& sent, const TopK& topk,
           const std::vector<int32_t>& order, TokenList tokens, const ExpertMap& experts,
           ThreadPool& pool, float* y) const;
  // kRank: whether the range `outputs` includes the last output of received row n. That output
  // completes the row's partial sum.
  bool IsSummedWith(const Batch& batch, int64_t n, Range outputs) const;
  // Offsets in the arena of the token's rank. kSlot: offset of the output for slot j of token t.
  // kRank: offset of the partial sum of `rank`.
  size_t OutputOffset(int64_t t, int j) const {
    return outputs_ + OutputPlace(t, j, k_) * row_bytes_;
  }
  size_t SumOffset(int rank, int64_t t) const {
    return outputs_ + (rank * capacity_ + t) * row_bytes_;
  }

  const CombineRows combine_rows_;
  const ExpertParts parts_;
  int64_t hidden_, capacity_;
  int k_;
  DType dtype_;
  int64_t row_bytes_;
  // Offset of the buffer. kSlot: [capacity, k, H]; kRank: [P ranks of experts, capacity, H].
  size_t outputs_;
};

}  // namespace switchyard
