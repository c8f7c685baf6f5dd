// Interface between arena_exchange.cc and its kernels. Internal to moe/cuda.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "moe/cuda/dispatchers/exchange_launch.h"

namespace switchyard::cuda {

// Offsets in a slot, from DeepEpArena.
struct ArenaPlaces {
  int64_t counts, rows, tags, outputs, flags, flag_stride, capacity, row_bytes;
  int rows_flag, outputs_flag;
};

// Arguments of the kernels of a batch.
struct ArenaBatch {
  // Tokens, destinations and state. Its peer buffers (`slot`, `layout`) are not used.
  ExchangeBatch tokens;
  ArenaPlaces at;
  std::byte* arena[kMaxExchangeRanks];  // this slot in the arena of each rank, on this GPU
  std::byte* own_rows;                  // [max_tokens, own_stride] rows of the own experts
  int64_t own_stride, combined_bytes;
  int32_t* own_ids;         // [max_tokens, top_k] their local experts, or −1
  const uint32_t* aborted;  // HostLink::aborted
  const void* outputs;      // outputs of the own experts
  const int32_t* position;  // [max_tokens, top_k] index of the output of each own slot
};

// ids [tokens, k] = −1 where first + token is at least *rows: tokens that only pad a batch.
struct DropPaddingParams {
  int32_t* ids = nullptr;
  int64_t tokens = 0, first = 0;
  int k = 0;
  const int32_t* rows = nullptr;  // on the device
};
cudaError_t DropPaddingIds(const DropPaddingParams& p, cudaStream_t stream);

cudaError_t LoadArenaKernels();  // as LoadDispatchKernels
// `blocks`: maximum grid size.
cudaError_t StartArenaDispatch(const ArenaBatch& batch, int blocks, cudaStream_t stream);
cudaError_t StartArenaCombine(const ArenaBatch& batch, float* y, int blocks, cudaStream_t stream);

}  // namespace switchyard::cuda
