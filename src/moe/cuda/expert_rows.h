// Rows on their way through the experts of a GPU: into the grouped GEMM's input, through the
// activation, and, where they do not travel, back to their tokens.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/stream_chain.h"
#include "moe/cuda/row_order.h"
#include "moe/cuda/token_addend.h"

namespace switchyard::cuda {

enum class ElementType : int32_t {
  kF32,
  kBF16,
  kFp8,  // e4m3 with a float32 scale for each 128 elements
};

// Output rows [first, first + rows) of an order: a call's part of them. Without an order (null
// pointers) every row is one of the only expert, in the place of its number.
struct RowChunk {
  RowOrder order;
  int64_t first = 0, rows = 0;  // multiples of kGroupBlockRows
};

// Copies each dispatched row to its places of the chunk, converted: a[position] = row.
struct SpreadRowsParams {
  RowSegments in;
  const std::byte* rows = nullptr;  // [segments · capacity], each row_stride bytes
  int64_t row_stride = 0, scale_offset = 0;
  ElementType from = ElementType::kF32;
  // What a row is rounded to first, as those that travel are; `from` is kF32 where it differs.
  ElementType via = ElementType::kF32;
  int64_t hidden = 0;  // a multiple of 4
  int k = 0;           // slots of a row
  RowChunk chunk;
  ElementType to = ElementType::kF32;
  void* a = nullptr;          // [chunk rows, hidden]
  float* a_scales = nullptr;  // kFp8: [hidden / 128, chunk rows]
};
cudaError_t SpreadRows(const SpreadRowsParams& p, const StreamChain& chain);

// middle[r] = act(gate_up[r, 0 .. I), gate_up[r, I .. 2I)), rounded to `to`.
struct ActivateParams {
  const void* gate_up = nullptr;         // [chunk rows, 2 I]
  ElementType from = ElementType::kF32;  // kF32 or kBF16
  int64_t intermediate = 0;              // I, a multiple of 4
  RowChunk chunk;
  bool clamped = false;  // kernels::Activation::kSwiGluClamped
  float alpha = 1.0f, limit = 0.0f;
  ElementType to = ElementType::kF32;
  void* middle = nullptr;   // [chunk rows, I]
  float* scales = nullptr;  // kFp8: [I / 128, chunk rows]
};
cudaError_t Activate(const ActivateParams& p, const StreamChain& chain);

// y[t] = Σ_j weight[t, j] · outputs[position[t, j]] in slot order, then the addend; product and sum
// rounded to float32, as moe/combine.h adds.
struct SumSlotsParams {
  const void* outputs = nullptr;  // [*, hidden]
  ElementType type = ElementType::kF32;
  const int32_t* position = nullptr;  // [tokens, k], −1: adds nothing
  const float* weights = nullptr;     // [tokens, k]
  int64_t tokens = 0, hidden = 0;     // hidden: a multiple of 4
  int k = 0;
  TokenAddend addend = {};
  float* y = nullptr;  // [tokens, hidden]
};
cudaError_t SumSlots(const SumSlotsParams& p, const StreamChain& chain);

// y[t] += addend[t], where that could not be a part of the sums.
struct AddToTokensParams {
  TokenAddend addend;
  int64_t tokens = 0, hidden = 0;
  float* y = nullptr;
};
cudaError_t AddToTokens(const AddToTokensParams& p, cudaStream_t stream);

// to[i] = table[from[i]], −1 for −1.
cudaError_t MapIds(const int32_t* from, const int32_t* table, int64_t count, int32_t* to,
                   cudaStream_t stream);

}  // namespace switchyard::cuda
