// Interface between nccl_exchange.cc, which lays out memory and sends, and its kernels, which are
// compiled for the device. Internal to moe/cuda.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "moe/cuda/dispatchers/exchange_launch.h"

namespace switchyard::cuda {

// Counts of one batch, indexed by rank of the group. A return is a row that combine sends back: the
// output of a (row, slot) pair, or a row's partial sum if combined by rank.
struct NcclCounts {
  int32_t received[kMaxExchangeRanks];  // number of rows from each rank: DispatchedRows::counts
  int32_t returns_to_send[kMaxExchangeRanks];  // number of returns from this rank to each rank
  int32_t sent[kMaxExchangeRanks];             // number of rows sent to each rank
  int32_t expected[kMaxExchangeRanks];         // number of returns from each rank to this rank
};

// Unpacks the received metadata of all source ranks into the layout of DispatchedRows.
struct AcceptParams {
  // Received metadata by source rank, in the order of ExchangeLayout from `counts` up to `rows`.
  const std::byte* metadata[kMaxExchangeRanks];
  ExchangeLayout layout;  // layout of `metadata`, which has one source with `longest` tokens
  int ranks, max_tokens, longest, top_k;
  bool sum_by_rank;
  int32_t* ids;    // [ranks, max_tokens, top_k]
  float* weights;  // [ranks, max_tokens, top_k], if combined by rank
  // [ranks, max_tokens] index of a row's first return among all returns to the row's source rank.
  int32_t* first_return;
  NcclCounts* counts;  // output: received, returns_to_send
};
cudaError_t StartAccept(const AcceptParams& params, cudaStream_t stream);

// Assigns each return a place on the token's rank. Places are grouped by returning rank, and within
// a rank in order of tokens and slots. The returning rank sends its returns in the same order.
struct PlaceReturnsParams {
  // Returns of rank r begin at r · segment. If segment is −1, they follow the returns of rank r − 1
  // without a gap.
  int64_t segment;
  int32_t* place;      // [tokens, top_k], or [tokens, ranks] if combined by rank; −1: none
  NcclCounts* counts;  // output: sent, expected
};
cudaError_t StartPlaceReturns(const ExchangeBatch& batch, const PlaceReturnsParams& params,
                              cudaStream_t stream);

// Packs the returns to each rank into the send buffer `send_buffer` of that rank: those with index
// [begin, begin + most).
struct PackReturnsParams {
  std::byte* send_buffer[kMaxExchangeRanks];
  const void* outputs;      // [*, hidden]
  const int32_t* position;  // [ranks · max_tokens, top_k]
  const int32_t* first_return;
  const float* weights;      // [ranks · max_tokens, top_k] if combined by rank
  const NcclCounts* counts;  // input: received
  RowKind combined;
  bool sum_by_rank;
  int ranks, max_tokens, longest, top_k, hidden;
  int64_t begin, most;
};
cudaError_t StartPackReturns(const PackReturnsParams& params, int blocks, cudaStream_t stream);

}  // namespace switchyard::cuda
