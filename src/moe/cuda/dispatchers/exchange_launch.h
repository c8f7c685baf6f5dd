// Interface between exchange.cc, which lays out memory and validates, and the exchange's kernels,
// which are compiled for the device. Internal to moe/cuda.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "comm/device/cuda/wait.h"
#include "moe/cuda/dispatchers/output_range.h"
#include "moe/cuda/dispatchers/token_addend.h"
#include "moe/gpu_limits.h"

namespace switchyard::cuda {

constexpr int kRankShift = 20;  // an entry of `experts` is rank << kRankShift | local id
constexpr int kChunkRows = 2;   // rows per combine flag
// Bytes. Rows are aligned to cache lines, because unaligned peer stores cost 25 %.
constexpr int kRowAlignment = 128;

enum class RowKind : uint8_t { kF32, kBF16, kFp8 };

// The buffers of one slot in peer memory, as offsets from its start, the same on every rank. Flags
// hold the round number (batch of the slot) for which they were last raised:
//   sent          [ranks] uint32: rows and counts of rank s have arrived
//   acks          [ranks] uint32: rank s has read this rank's counts
//   arrived       [ranks, chunks] uint32: rank s has returned this chunk of rows
//   counts        [ranks] int32: rows of rank s
//   tokens        [ranks, max_tokens] int32: token index of each row on its source rank
//   ids, weights  [ranks, max_tokens, top_k]
//   rows          [ranks, max_tokens] rows of row_stride bytes
//   returned      [max_tokens, top_k, or ranks if combined by rank] rows of combined_bytes
//
// Buffers are never cleared; the next round overwrites them. Dispatch: rank A may send rows,
// metadata and counts of round n + 1 to rank B once B has read those of round n. A dispatches round
// n + 1 only after its sums of round n, and these sums have waited for two things. The first are
// B's outputs for all rows from A; B reads rows and metadata before it returns outputs. The second
// is B's ack, which B sends after it has read the counts. The ack is needed if A sent no row to B.
// If combine has several parts, B sends acks and `arrived` with the last part. Combine: rank B may
// return outputs of round n + 1 to A once A has summed those of round n. B first waits for the rows
// of round n + 1 from all ranks, and A dispatches these rows after its sums of round n.
struct ExchangeLayout {
  int64_t sent, acks, arrived, counts, tokens, ids, weights, rows, returned;
  int64_t chunks;  // number of chunks per source rank
  int64_t row_stride, scale_offset, combined_bytes;
  int64_t bytes;
};

// Device-side variables of one slot.
struct ExchangeState {
  uint32_t round;       // round of the last dispatch that was sent
  uint32_t waited;      // round of the last dispatch that was received
  uint32_t active;      // rank mask of the last dispatch that was sent
  uint32_t finished;    // number of finished blocks of the running kernel; 0 between kernels
  uint32_t next_chunk;  // work counter of combine, over all parts
  uint32_t timed_out;   // a kernel of this round timed out: stop waiting for peers
  int32_t sent[kMaxExchangeRanks];      // number of rows sent to each rank
  int32_t received[kMaxExchangeRanks];  // number of rows from each rank: DispatchedRows::counts
};

// Arguments of the kernels of a batch.
struct ExchangeBatch {
  std::byte* slot[kMaxExchangeRanks];  // buffers of this slot on each rank of the group
  ExchangeLayout layout;
  ExchangeState* state;
  // Destinations. For each chunk of 32 tokens and each rank, `words` has the bit mask of the tokens
  // sent to the rank, and `before` the number of rows sent to it by earlier chunks.
  uint32_t* words;         // [ceil(tokens / 32), ranks]
  int32_t* before;         // [ceil(tokens / 32), ranks]
  const int32_t* experts;  // [num_experts]
  const uint8_t* active;   // [ranks] or null
  WaitLimit limit;
  int world_ranks[kMaxExchangeRanks];
  int ranks, rank, hidden, top_k, max_tokens, num_experts;
  RowKind dispatched, combined;
  bool sum_by_rank, low_latency;
  bool early;  // whether kernels may start before preceding kernels have ended

  const void* x;  // [tokens, hidden]
  bool x_is_bf16;
  const int32_t* ids;    // [tokens, top_k]
  const float* weights;  // [tokens, top_k]
  TokenAddend addend;
  int tokens;
};

// These functions force the driver to load every kernel. Lazy loading may synchronize with the
// device. If a kernel of another rank waits there for the kernel to be loaded, this is a deadlock.
cudaError_t LoadDispatchKernels();
cudaError_t LoadReturnKernels();
cudaError_t LoadSumKernels();

// `blocks`: grid size of the kernels that copy rows.
cudaError_t StartDispatch(const ExchangeBatch& batch, int blocks, cudaStream_t stream);
cudaError_t StartDispatchWait(const ExchangeBatch& batch, cudaStream_t stream);
// One call of StartCombine. All calls for one batch have the same `blocks`, and `index` is 0 in the
// first call and increases by one per call.
struct ReturnPart {
  OutputRange range;
  int index = 0;
};
cudaError_t StartCombine(const ExchangeBatch& batch, const void* outputs, const int32_t* position,
                         const ReturnPart& part, int blocks, cudaStream_t stream);
cudaError_t StartCombineSum(const ExchangeBatch& batch, float* y, int blocks, cudaStream_t stream);

}  // namespace switchyard::cuda
