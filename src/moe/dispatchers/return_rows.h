// The second half of the all-to-alls that push: outputs land at [token, slot] of the source's
// buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "moe/backends.h"
#include "moe/combine.h"
#include "moe/dispatchers/exchange_slots.h"
#include "moe/placement.h"
#include "moe/types.h"

namespace switchyard {

// Place of slot j of token t among the outputs [tokens, k].
inline int32_t OutputPlace(int64_t t, int j, int k) { return static_cast<int32_t>(t * k + j); }

// Outputs of this rank's experts for its own tokens. They are not moved.
struct OwnOutputs {
  const float* rows = nullptr;   // the runner's
  std::vector<int32_t> row_for;  // [tokens, k] by output place, −1: none of this rank
};

// y[t] = Σ_j weight[t, j] · output [t, j] over the slots that have an expert on a rank that takes
// part. `outputs` [tokens, k, H]: what peers have written, and, without `own`, this rank too.
void SumReturnedRows(const TopK& topk, const ExpertMap& experts, const ExchangeSlots& slots,
                     DType dtype, int64_t hidden, const std::byte* outputs, ThreadPool& pool,
                     float* y, const OwnOutputs* own = nullptr);

// A part of a slot's payload, of both modes of deepep.
class ReturnedRows {
 public:
  // Where an output of this rank's experts goes.
  struct Target {
    int32_t rank = -1;  // EP rank; −1: nowhere, it lies in a gap
    int32_t place = 0;  // OutputPlace there
  };
  // One batch.
  struct Batch {
    std::vector<Target> targets;  // of the runner's outputs, [num_rows]
    OwnOutputs own;
  };

  // Takes its buffer, for at most `capacity` tokens of one rank, from the plan.
  ReturnedRows(const ExchangeShape& shape, int64_t capacity, BufferPlan* plan);

  // Writes outputs to their targets, in the order of the runner's rows; a flag has to follow.
  // `tokens`: the own ones.
  void Send(ExchangeSlots& slots, const SlotUse& use, const ExpertRows& experts, int64_t tokens,
            Batch* batch, ThreadPool& pool) const;
  // After that flag.
  void Sum(const ExchangeSlots& slots, const SlotUse& use, const TopK& topk,
           const ExpertMap& experts, const Batch& batch, ThreadPool& pool, float* y) const {
    SumReturnedRows(topk, experts, slots, dtype_, hidden_, slots.Local(use, outputs_), pool, y,
                    &batch.own);
  }

 private:
  int64_t hidden_;
  int k_;
  DType dtype_;
  int64_t row_bytes_;
  size_t outputs_;  // [capacity, k, H]
};

}  // namespace switchyard
