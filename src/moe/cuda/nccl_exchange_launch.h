// Between nccl_exchange.cc, which lays out memory and sends, and its kernels, which are compiled
// for the device. Internal to moe/cuda.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "moe/cuda/exchange_launch.h"

namespace switchyard::cuda {

// Of one batch, by rank of the group. What returns are: outputs of (row, slot) pairs, or a row's
// sum where sums are by rank.
struct NcclCounts {
  int32_t received[kMostRanks];  // rows from each rank: DispatchedRows::counts
  int32_t owed[kMostRanks];      // returns to each rank
  int32_t sent[kMostRanks];      // rows to each rank
  int32_t expected[kMostRanks];  // returns from each rank
};

// What was said of the rows of each rank, put where DispatchedRows has it.
struct AcceptParams {
  const std::byte* tags[kMostRanks];  // by source: from ExchangeLayout::counts on, to its rows
  ExchangeLayout layout;              // of those, of one source with `longest` tokens
  int ranks, max_tokens, longest, top_k;
  bool sum_by_rank;
  int32_t* ids;    // [ranks, max_tokens, top_k]
  float* weights;  // likewise, where sums are by rank
  // Which of the returns to its rank a row's first one is: [ranks, max_tokens].
  int32_t* first_return;
  NcclCounts* counts;  // received, owed
};
cudaError_t StartAccept(const AcceptParams& params, cudaStream_t stream);

// Where each return will lie at the rank of the token: those of a rank together, in the order of
// tokens and slots, as that rank has them.
struct PlaceReturnsParams {
  // Returns of rank r begin at r · segment; −1: behind those of rank r − 1.
  int64_t segment;
  int32_t* place;      // [tokens, top_k, or ranks where sums are by rank], −1: none
  NcclCounts* counts;  // sent, expected
};
cudaError_t StartPlaceReturns(const ExchangeBatch& batch, const PlaceReturnsParams& params,
                              cudaStream_t stream);

// Returns [begin, begin + most) to each rank, put together in that rank's box.
struct PackReturnsParams {
  std::byte* box[kMostRanks];
  const void* outputs;      // [*, hidden]
  const int32_t* position;  // [ranks · max_tokens, top_k]
  const int32_t* first_return;
  const float* weights;      // [ranks · max_tokens, top_k] where sums are by rank
  const NcclCounts* counts;  // received
  RowKind combined;
  bool sum_by_rank;
  int ranks, max_tokens, longest, top_k, hidden;
  int64_t begin, most;
};
cudaError_t StartPackReturns(const PackReturnsParams& params, int blocks, cudaStream_t stream);

}  // namespace switchyard::cuda
