// The second half of the all-to-alls that push: outputs land at [token, slot] of the source's
// buffer, or at [rank, token] what a rank's outputs add up to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "moe/backends.h"
#include "moe/combine.h"
#include "moe/dispatchers/exchange_slots.h"
#include "moe/dispatchers/sent_rows.h"
#include "moe/placement.h"
#include "moe/scratch.h"
#include "moe/types.h"

namespace switchyard {

// Place of slot j of token t among the outputs [tokens, k].
inline int32_t OutputPlace(int64_t t, int j, int k) { return static_cast<int32_t>(t * k + j); }

// Outputs of this rank's experts for its own tokens, where they are not moved.
struct OwnOutputs {
  const float* rows = nullptr;   // the runner's
  std::vector<int32_t> row_for;  // [tokens, k] by output place, −1: none of this rank
};

// y[t] = Σ_j weight[t, j] · output [t, j] over the slots that have an expert on a rank that takes
// part. `outputs` [tokens, k, H]: what ranks have written.
void SumReturnedRows(const TopK& topk, const ExpertMap& experts, const ExchangeSlots& slots,
                     DType dtype, int64_t hidden, const std::byte* outputs, ThreadPool& pool,
                     float* y);

// A part of a slot's payload, of both modes of deepep. The runner leaves its outputs where they are
// to be: at their source (kSlot), or, to be added up here first, in memory of the batch (kRank).
class ReturnedRows {
 public:
  // Which of the received rows, and which slot of its token, an output is for.
  struct Target {
    int32_t row = -1;  // −1: none, it lies in a gap
    int32_t slot = 0;
  };
  // One batch.
  struct Batch {
    std::vector<Target> targets;          // of the runner's outputs, [num_rows]
    std::vector<std::byte*> places;       // where they are left, [num_rows]
    bool left = false, prepared = false;  // Places, Prepare were called
    std::vector<std::byte*> arenas;       // kSlot: [P] outputs of each source
    // kRank
    Scratch<std::byte> outputs;      // [num_rows, H]
    std::vector<int32_t> output_of;  // [received rows, k] by slot, or −1
  };

  // Takes its buffer, for at most `capacity` tokens of one rank, from the plan.
  ReturnedRows(const ExchangeShape& shape, int64_t capacity, BufferPlan* plan);

  // After the mode has filled batch->targets: where the runner is to leave its outputs.
  std::span<std::byte* const> Places(const ExchangeSlots& slots, const SentRows::Batch& sent,
                                     Batch* batch) const;
  // After the runner: brings what it left as float32 to its place, adds up what is to be added up,
  // and says what was written; a flag has to follow.
  void Prepare(ExchangeSlots& slots, const SentRows& rows, const SentRows::Batch& sent,
               const ExpertRows& experts, Batch* batch, ThreadPool& pool) const;
  // After that flag.
  void Sum(const ExchangeSlots& slots, const SentRows::Batch& sent, const TopK& topk,
           const ExpertMap& experts, Batch* batch, ThreadPool& pool, float* y) const;

 private:
  void AddUp(ExchangeSlots& slots, const SentRows& rows, const SentRows::Batch& sent, Batch* batch,
             ThreadPool& pool) const;
  void SayWhatWasWritten(ExchangeSlots& slots, const SentRows::Batch& sent,
                         const Batch& batch) const;
  // kSlot: of slot j of token t; kRank: of what `rank` adds up for it. At the token's rank.
  size_t OutputOffset(int64_t t, int j) const {
    return outputs_ + OutputPlace(t, j, k_) * row_bytes_;
  }
  size_t SumOffset(int rank, int64_t t) const {
    return outputs_ + (rank * capacity_ + t) * row_bytes_;
  }

  const CombineRows combine_rows_;
  int64_t hidden_, capacity_;
  int k_;
  DType dtype_;
  int64_t row_bytes_;
  size_t outputs_;  // kSlot [capacity, k, H], kRank [P ranks of experts, capacity, H]
};

}  // namespace switchyard
