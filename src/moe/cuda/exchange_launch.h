// Between exchange.cc, which lays out memory and checks, and the exchange's kernels, which are
// compiled for the device. Internal to moe/cuda.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "comm/device/cuda/wait.h"
#include "moe/cuda/token_addend.h"

namespace switchyard::cuda {

constexpr int kMostRanks = 16;      // of an EP group
constexpr int kMostTopK = 16;       // slots of a token
constexpr int kRankShift = 20;      // experts[e] = rank << kRankShift | local id
constexpr int kChunkRows = 2;       // rows that are returned under one flag
constexpr int kRowAlignment = 128;  // rows begin at lines: off them, stores to a peer cost 25 %

enum class RowKind : uint8_t { kF32, kBF16, kFp8 };

// One slot's buffers in peer memory, as offsets from their begin, the same on every rank. Flags
// hold the number of the round (batch of the slot) that they were last raised for:
//   sent          [ranks] uint32: rows and counts of rank s are here
//   acks          [ranks] uint32: rank s has read this rank's counts
//   arrived       [ranks, chunks] uint32: what rank s returns for this many rows of its is here
//   counts        [ranks] int32: rows of rank s
//   tokens        [ranks, max_tokens] int32: which token of its rank a row is
//   ids, weights  [ranks, max_tokens, top_k]
//   rows          [ranks, max_tokens] rows of row_stride bytes
//   returned      [max_tokens, top_k, or ranks where sums are by rank] rows of combined_bytes
//
// Nothing is cleared, and everything is overwritten in the next round. Rank a may send rank b the
// rows, tags and counts of round n + 1 when b has read those of n: a begins to send after its sums
// of n, which waited for all that b returned for a's rows (b has read rows and tags before) and for
// b's ack (b has read the counts, which matters where b had no row of a). And b may return outputs
// of round n + 1 to a when a has added up those of n: b has waited for rows of n + 1 from all
// ranks, which a sends after its sums of n.
struct ExchangeLayout {
  int64_t sent, acks, arrived, counts, tokens, ids, weights, rows, returned;
  int64_t chunks;  // of one source's rows
  int64_t row_stride, scale_offset, combined_bytes;
  int64_t bytes;
};

// One slot's own variables on the device.
struct ExchangeState {
  uint32_t round;                // of the last dispatch that has left
  uint32_t waited;               // of the last dispatch that was waited for
  uint32_t active;               // the mask of ranks it went by
  uint32_t finished;             // blocks of the kernel that runs; 0 between kernels
  uint32_t next_chunk;           // that a block of the combine takes
  uint32_t gave_up;              // a kernel of this round: peers are not waited for any more
  int32_t sent[kMostRanks];      // rows to each rank
  int32_t received[kMostRanks];  // rows from each rank: DispatchedRows::counts
};

// All that the kernels of a batch are given.
struct ExchangeBatch {
  std::byte* slot[kMostRanks];  // the slot's buffers of each rank of the group
  ExchangeLayout layout;
  ExchangeState* state;
  // Which tokens go where, for each 32 tokens and rank: bits, and rows before them.
  uint32_t* words;         // [ceil(tokens / 32), ranks]
  int32_t* before;         // likewise
  const int32_t* experts;  // [num_experts]
  const uint8_t* active;   // [ranks] or null
  WaitLimit limit;
  int world_ranks[kMostRanks];
  int ranks, rank, hidden, top_k, max_tokens, num_experts;
  RowKind dispatched, combined;
  bool sum_by_rank, low_latency;
  bool early;  // kernels may begin before those ahead of them have ended

  const void* x;  // [tokens, hidden]
  bool x_is_bf16;
  const int32_t* ids;    // [tokens, top_k]
  const float* weights;  // [tokens, top_k]
  TokenAddend addend;
  int tokens;
};

// Makes the driver load every kernel: loading may wait for the device, where a kernel of another
// rank may be waiting for this one.
cudaError_t LoadDispatchKernels();
cudaError_t LoadReturnKernels();
cudaError_t LoadSumKernels();

// Blocks are those of the kernels that move rows.
cudaError_t StartDispatch(const ExchangeBatch& batch, int blocks, cudaStream_t stream);
cudaError_t StartDispatchWait(const ExchangeBatch& batch, cudaStream_t stream);
cudaError_t StartCombine(const ExchangeBatch& batch, const void* outputs, const int32_t* position,
                         int blocks, cudaStream_t stream);
cudaError_t StartCombineSum(const ExchangeBatch& batch, float* y, int blocks, cudaStream_t stream);

}  // namespace switchyard::cuda
