// Interface of dispatch and combine between GPUs, over peer memory or NCCL: the deepep backend on
// CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "core/check.h"
#include "core/dtype.h"
#include "moe/cuda/dispatchers/output_range.h"
#include "moe/cuda/dispatchers/token_addend.h"
#include "moe/rows.h"

namespace switchyard::cuda {

// Configuration of an exchange; the same on all ranks of the EP group except for `rank`.
struct ExchangeConfig {
  int ranks = 1, rank = 0;           // size of the EP group, and this rank
  const int* world_ranks = nullptr;  // [ranks] world ranks (PeerMemory's numbering)
  int64_t hidden = 0;                // a multiple of 8; for FP8 a multiple of 16
  int top_k = 0;                     // at most 16
  int64_t max_tokens = 0;            // maximum tokens of one rank in one exchange
  RowFormat dispatched;              // kF32, kBF16, or FP8 with a float32 scale per 128 elements
  DType combined = DType::kF32;      // type of combined rows: kF32 or kBF16
  // If set, combine returns one row per (token, rank), weighted and summed by the experts' rank.
  // Otherwise it returns one row per (token, slot). Sums by rank need fewer bytes, but they depend
  // on the placement (--moe-combine-rows rank).
  bool sum_by_rank = false;
  // Tuned for few tokens (fixed small grid, one kernel per phase) instead of bandwidth.
  bool low_latency = false;
  int in_flight = 2;  // maximum batches between BeginDispatch and EndCombine
  // NCCL only: batches of up to this many tokens per rank do not wait on the host. Batches that are
  // captured in CUDA graphs must not be larger.
  int64_t recorded_tokens = 0;
  // Grid size of the kernels that copy rows; 0: tuned for a GPU without other work. If ranks share
  // a GPU, few blocks must suffice, since the kernels of these ranks wait for one another and must
  // fit on the GPU together.
  int blocks = 0;
};

// Received rows on the rank of their experts. Source rank s has rows [s · max_tokens, s ·
// max_tokens + counts[s]), in token order. Device memory, valid until BeginCombine of the batch.
struct DispatchedRows {
  const std::byte* rows = nullptr;  // [ranks · max_tokens], each row_stride bytes: elements,
                                    // and for FP8 the scales at scale_offset
  int64_t row_stride = 0, scale_offset = 0;
  const int32_t* ids = nullptr;     // [ranks · max_tokens, top_k] local expert or −1
  const float* weights = nullptr;   // [ranks · max_tokens, top_k] if combined by rank; else null
  const int32_t* counts = nullptr;  // [ranks]; 0 for ranks masked out or timed out
};

// BeginDispatch, EndDispatch, BeginCombine and EndCombine enqueue kernels and return. Only
// NcclExchange may wait on the host, in EndDispatch. Every rank of the group makes the same calls
// in the same order. Several batches may be in flight, each with its own slot in [0, in_flight). A
// batch's four calls go to one stream, or to streams ordered by events (Tokens::overlaps).
//
// Results are deterministic. The placement of rows depends on routing only (no atomics decide an
// order). EndCombine sums over slots in slot order in float32 and adds the addend last, with the
// same roundings as moe/dispatchers/combine.h. Without `sum_by_rank`, results are bit-identical for
// every number of ranks and both tunings, over peer memory as over NCCL.
class RowExchange {
 public:
  virtual ~RowExchange() = default;

  // Whether the exchange of a batch may overlap computation, so that its calls use several streams.
  virtual bool overlaps() const { return false; }

  // x [tokens, hidden] of `dtype` kF32 or kBF16, ids [tokens, top_k] physical experts or −1,
  // weights [tokens, top_k]. Device memory, valid until EndCombine has run.
  struct Tokens {
    const void* x = nullptr;
    DType dtype = DType::kF32;
    const int32_t* ids = nullptr;
    const float* weights = nullptr;
    int64_t tokens = 0;
    // Maximum tokens of any rank of the group in this batch, the same on all ranks. Determines the
    // size of fixed-size messages. 0: unknown; max_tokens is used.
    int64_t longest = 0;
    // The addend's memory must be written by kernels that precede BeginCombine, or EndCombine if
    // `overlaps` is set.
    TokenAddend addend = {};
    // Whether computation on this GPU overlaps the exchange. If so, Begin* may use another stream
    // than End*, and the caller orders the streams by events: Begin* after all earlier work, and
    // the next End* after the end of the sends.
    bool overlaps = false;
  };
  virtual void BeginDispatch(int slot, const Tokens& tokens, cudaStream_t stream) = 0;
  virtual DispatchedRows EndDispatch(int slot, cudaStream_t stream) = 0;
  // outputs: [*, hidden] of type config.combined. position [ranks · max_tokens, top_k]: for each
  // (dispatched row, slot), the index of its output; −1 if the slot's id is −1.
  virtual void BeginCombine(int slot, const void* outputs, const int32_t* position,
                            cudaStream_t stream) = 0;
  // Whether BeginCombinePart is supported.
  virtual bool combines_in_parts() const { return false; }
  // Several calls of BeginCombinePart replace BeginCombine. Their ranges of positions are disjoint
  // and ascending, and cover all outputs. When a call runs on the stream, the outputs of its range
  // must be final; those of later ranges need not be. The calls of a batch go to one stream.
  virtual void BeginCombinePart(int /*slot*/, const void* /*outputs*/, const int32_t* /*position*/,
                                const OutputRange& /*range*/, cudaStream_t /*stream*/) {
    CHECK(false);
  }
  // y [tokens, hidden], must not overlap outputs or position.
  virtual void EndCombine(int slot, float* y, cudaStream_t stream) = 0;
};

}  // namespace switchyard::cuda
