// Combine of the push-based all-to-alls: outputs are written to [token, slot] of the source's
// buffer, or partial sums to [rank, token].
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

// Index of slot j of token t in the outputs [tokens, k].
inline int32_t OutputPlace(int64_t t, int j, int k) { return static_cast<int32_t>(t * k + j); }

// Outputs of this rank's experts for its own tokens, read where the runner wrote them.
struct OwnOutputs {
  const float* rows = nullptr;   // runner outputs
  std::vector<int32_t> row_for;  // [tokens, k] row of each output, −1: none of this rank
};

// y[t] = Σ_j weight[t, j] · output [t, j] over the slots whose expert is on an active rank, for
// every token t of `tokens`. `outputs` [tokens, k, H]: written by the experts' ranks.
void SumReturnedRows(const TopK& topk, TokenList tokens, const ExpertMap& experts,
                     const ExchangeSlots& slots, DType dtype, int64_t hidden,
                     const std::byte* outputs, ThreadPool& pool, float* y);

// Part of the payload of an exchange slot: expert outputs on their way back, in both modes of
// deepep. The runner writes its outputs to their final locations: at the source rank (kSlot), or in
// memory of the batch, where they are summed first (kRank).
class CombinedRows {
 public:
  // The received row to which a runner output belongs, and the slot of the row's token.
  struct Target {
    int32_t row = -1;  // −1: none, a gap row
    int32_t slot = 0;
  };
  // One batch.
  struct Batch {
    std::vector<Target> targets;          // destinations of the runner outputs, [num_rows]
    std::vector<std::byte*> places;       // their destinations, [num_rows]
    bool left = false, prepared = false;  // whether Places, and Prepare, was called
    std::vector<std::byte*> arenas;       // kSlot: [P] outputs of each source
    int64_t first_token = 0;              // index of the current round in the outputs
    // The routing of all rounds so far, if the combine covers several.
    TopK topk;
    std::vector<int32_t> order;  // as DispatchRows::Batch::order
    TokensByPart by_part;        // own tokens, if there are several parts
    // kRank
    Scratch<std::byte> outputs;      // [num_rows, H]
    std::vector<int32_t> output_of;  // [received rows, k] by slot, or −1
  };

  // Adds its buffer to `plan`, for at most `capacity` tokens of one rank in all rounds.
  CombinedRows(const ExchangeShape& shape, int64_t capacity, BufferPlan* plan);

  // Call it after the dispatch of a round has begun. If the combine covers other rounds too, copies
  // the routing, because the final sums need it and the caller may overwrite it.
  void Begin(const RoundPlace& round, const TopK& topk, const DispatchRows::Batch& sent,
             Batch* batch) const;
  // Returns the destinations of the runner's outputs. Call it after the mode has filled
  // batch->targets.
  std::span<std::byte* const> Places(const ExchangeSlots& slots, const DispatchRows::Batch& sent,
                                     Batch* batch) const;
  // Call it after the runner has computed `outputs`. Rounds float32 outputs to their destinations,
  // computes partial sums if combined by rank, and registers the writes; a flag must follow. Each
  // call of a batch has later outputs than the one before it.
  void Prepare(ExchangeSlots& slots, const DispatchRows& rows, const DispatchRows::Batch& sent,
               const ExpertRows& experts, Share outputs, Batch* batch, ThreadPool& pool) const;

  // Part p of the outputs has the flag of stage `first_stage` + p (ExchangeSlots).
  int parts() const { return parts_.count(); }
  void AwaitAll(ExchangeSlots& slots, const SlotUse& use, int first_stage, const char* what) const;
  // Waits for the flags of the last round and computes the weighted sums of all rounds. With one
  // round, a token is summed as soon as the parts with its outputs have arrived. `topk`: of the
  // last round.
  void AwaitAndSum(ExchangeSlots& slots, int first_stage, const char* what,
                   const DispatchRows::Batch& sent, const TopK& topk, const ExpertMap& experts,
                   Batch* batch, ThreadPool& pool, float* y) const;

  // Replaces AwaitAndSum, for kSlot and one round. Call it after AwaitAll. Returns the outputs
  // [tokens, k, H].
  const std::byte* OutputsBySlot(const ExchangeSlots& slots, const DispatchRows::Batch& sent,
                                 Batch* batch) const;

  int64_t capacity() const { return capacity_; }

 private:
  void SumByRank(ExchangeSlots& slots, const DispatchRows& rows, const DispatchRows::Batch& sent,
                 Share outputs, Batch* batch, ThreadPool& pool) const;
  void RegisterWrites(ExchangeSlots& slots, const DispatchRows::Batch& sent, Share outputs,
                      const Batch& batch) const;
  void SortTokens(const DispatchRows::Batch& sent, int64_t tokens, Batch* batch) const;
  void Sum(const ExchangeSlots& slots, const DispatchRows::Batch& sent, const TopK& topk,
           const std::vector<int32_t>& order, TokenList tokens, const ExpertMap& experts,
           ThreadPool& pool, float* y) const;
  // kRank: whether `outputs` include the last output of received row n, which completes its partial
  // sum.
  bool IsSummedWith(const Batch& batch, int64_t n, Share outputs) const;
  // Offsets at the token's rank. kSlot: of slot j of token t; kRank: of the partial sum of `rank`.
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
  size_t outputs_;  // kSlot [capacity, k, H], kRank [P ranks of experts, capacity, H]
};

}  // namespace switchyard
