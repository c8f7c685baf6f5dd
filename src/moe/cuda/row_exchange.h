// Token rows between GPUs, for those who do not care over what: deepep's exchange on CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"
#include "moe/cuda/token_addend.h"
#include "moe/rows.h"

namespace switchyard::cuda {

// What one exchange object carries; the same on all ranks of the EP group but for `rank`.
struct ExchangeConfig {
  int ranks = 1, rank = 0;           // of the EP group
  const int* world_ranks = nullptr;  // [ranks] in the world (PeerMemory's numbers)
  int64_t hidden = 0;                // a multiple of 8, of 16 for FP8
  int top_k = 0;                     // at most 16
  int64_t max_tokens = 0;            // of one rank in one exchange
  RowFormat dispatched;          // kF32, kBF16, or FP8 with a float32 scale for each 128 elements
  DType combined = DType::kF32;  // of rows on the way back: kF32 or kBF16
  // Combine returns one row for each (token, rank), weighted and summed there, instead of one for
  // each (token, slot): fewer bytes, but sums then depend on where experts sit
  // (--moe-combine-rows rank).
  bool sum_by_rank = false;
  // Tuned for a few tokens (fixed small grid, one kernel a phase) instead of for bandwidth.
  bool low_latency = false;
  int in_flight = 2;  // batches that may be between BeginDispatch and EndCombine
  // Over NCCL, batches of up to so many tokens of a rank do not make the host wait: those that are
  // recorded in CUDA graphs.
  int64_t recorded_tokens = 0;
  // Of the kernels that move rows; 0: what is fast on a GPU that does nothing else. Ranks that
  // share a GPU want few, since kernels of one wait for kernels of others.
  int blocks = 0;
};

// Rows at the rank of their experts: source rank s has rows [s · max_tokens, s · max_tokens +
// counts[s]), in the order of its tokens. Device memory, valid until BeginCombine of the batch.
struct DispatchedRows {
  const std::byte* rows = nullptr;  // [ranks · max_tokens], each row_stride bytes: elements, and
                                    // for FP8 the scales behind them at scale_offset
  int64_t row_stride = 0, scale_offset = 0;
  const int32_t* ids = nullptr;     // [ranks · max_tokens, top_k] local expert, −1: not here
  const float* weights = nullptr;   // likewise, where sums are by rank; else null
  const int32_t* counts = nullptr;  // [ranks]; 0 of ranks that are masked out or did not come
};

// The four calls enqueue kernels and return. Every rank of the group makes the same calls in the
// same order. Several batches may be in flight, each with a slot of its own in [0, in_flight),
// whose four calls go to one stream, or to streams that events put in their order.
//
// Results: slots of rows are a function of routing alone (no atomics decide an order), and
// EndCombine adds over slots in slot order in float32, then the addend, exactly as moe/combine.h:
// the same bits for every number of ranks, every tuning, and whatever rows travel over.
class RowExchange {
 public:
  virtual ~RowExchange() = default;

  // x [tokens, hidden] of `dtype` kF32 or kBF16, ids [tokens, top_k] physical experts or −1,
  // weights [tokens, top_k]: device memory that lives until EndCombine has run.
  struct Tokens {
    const void* x = nullptr;
    DType dtype = DType::kF32;
    const int32_t* ids = nullptr;
    const float* weights = nullptr;
    int64_t tokens = 0;
    // The most that any rank of the group has in this batch, the same on all of them: messages of a
    // fixed size are so long. 0: nobody knows, so max_tokens.
    int64_t longest = 0;
    // Written by kernels before BeginCombine.
    TokenAddend addend = {};
  };
  virtual void BeginDispatch(int slot, const Tokens& tokens, cudaStream_t stream) = 0;
  virtual DispatchedRows EndDispatch(int slot, cudaStream_t stream) = 0;
  // outputs [*, hidden] of config.combined; position [ranks · max_tokens, top_k] the output of each
  // (dispatched row, slot) whose id is not −1, and −1 of the others.
  virtual void BeginCombine(int slot, const void* outputs, const int32_t* position,
                            cudaStream_t stream) = 0;
  // y [tokens, hidden], which overlaps neither outputs nor position.
  virtual void EndCombine(int slot, float* y, cudaStream_t stream) = 0;
};

}  // namespace switchyard::cuda
