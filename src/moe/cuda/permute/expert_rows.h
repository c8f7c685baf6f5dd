// Row kernels around the grouped GEMMs of a GPU: permute to the GEMM's input, activation, and
// unpermute to tokens if rows are not exchanged. With programmatic dependent launch, activation and
// unpermute start before the preceding GEMM has ended. That GEMM waits for all kernels before it,
// and only then launches the next kernel. So the order and the weights of the slots are final when
// activation and unpermute start; they read them before they wait for the GEMM.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/launch.h"
#include "kernels/ops.h"
#include "moe/cuda/dispatchers/token_addend.h"
#include "moe/gpu_limits.h"

namespace switchyard::cuda {

// Row order by expert: the index computation of pre-permute on the device.

constexpr int kOrderTile = 4096;  // slots per block

// Received rows, in segments. Segment s has rows [s · capacity, s · capacity + counts[s]).
struct RowSegments {
  int segments = 1;
  int64_t capacity = 0;  // stride between segments, in rows
  int64_t tokens = 0;    // maximum rows of one segment in this call
  // [segments], on the device; null: each segment has `tokens` rows.
  const int32_t* counts = nullptr;
};

// Output rows in the order (expert, segment, row, slot). The rows of each expert begin at a
// multiple of kGroupBlockRows.
struct RowOrder {
  int32_t* position = nullptr;  // [segments · capacity, k] output row of each slot, −1: none
  int32_t* offsets = nullptr;   // [experts + 1] first output row of each expert, including padding
  int32_t* counts = nullptr;    // [experts] rows per expert, without padding
  int32_t* block_groups = nullptr;  // [blocks] expert of each block of output rows, or −1
};

struct RowOrderParams {
  RowSegments in;
  const int32_t* ids = nullptr;  // [segments · capacity, k] local experts or −1
  int k = 0, experts = 0;
  int64_t blocks = 0;          // length of block_groups; must suffice for any routing
  int32_t* scratch = nullptr;  // scratch memory of RowOrderScratch(…) integers
  RowOrder out;
};
// Maximum number of output rows for `slots` slots, including padding; a multiple of
// kGroupBlockRows.
int64_t MaxOrderedRows(int64_t slots, int experts);
int64_t RowOrderScratch(int64_t slots, int experts);
// Deterministic: the order depends on ids only. One kernel of one block for few slots, otherwise
// three kernels.
cudaError_t OrderRows(const RowOrderParams& p, cudaStream_t stream);

enum class ElementType : int32_t {
  kF32,
  kBF16,
  kFp8,  // e4m3 with one float32 scale per 128 elements
};
constexpr int64_t ElementBytes(ElementType type) {
  return type == ElementType::kFp8 ? 1 : type == ElementType::kBF16 ? 2 : 4;
}

// Rows [first, first + rows) of an order, processed by one call. If the order has null pointers,
// there is only one expert, and row i is at position i.
struct RowChunk {
  RowOrder order;
  int64_t first = 0, rows = 0;  // multiples of kGroupBlockRows
  int64_t most_valid = rows;    // maximum number of valid rows (no padding)
};

// Permute: copies each dispatched row to its positions in the chunk and converts it: a[position] =
// row.
struct PermuteRowsParams {
  RowSegments in;
  const std::byte* rows = nullptr;  // [segments · capacity], each row_stride bytes
  int64_t row_stride = 0, scale_offset = 0;
  ElementType from = ElementType::kF32;
  // Type to which dispatch rounds rows. Rows are rounded to this type before they are converted to
  // the GEMM's type. It differs from `from` only if `from` is kF32.
  ElementType via = ElementType::kF32;
  int64_t hidden = 0;  // a multiple of 4
  int k = 0;           // slots per row
  RowChunk chunk;
  ElementType to = ElementType::kF32;
  void* a = nullptr;          // [chunk rows, hidden]
  float* a_scales = nullptr;  // kFp8: [hidden / 128, chunk rows]
};
cudaError_t PermuteRows(const PermuteRowsParams& p, const PdlStream& chain);

// middle[r] = act(gate_up[r, 0 .. I), gate_up[r, I .. 2I)), rounded to `to`. With kRelu2 the rows
// have only the part of `up`: middle[r] = act(gate_up[r, 0 .. I)).
struct ActivateParams {
  const void* gate_up = nullptr;         // [chunk rows, 2 I], or [chunk rows, I] with kRelu2
  ElementType from = ElementType::kF32;  // kF32 or kBF16
  int64_t intermediate = 0;              // I, a multiple of 4
  RowChunk chunk;
  kernels::Activation kind = kernels::Activation::kSwiGlu;
  float alpha = 1.0f, limit = 0.0f;  // of kSwiGluClamped
  ElementType to = ElementType::kF32;
  void* middle = nullptr;   // [chunk rows, I]
  float* scales = nullptr;  // kFp8: [I / 128, chunk rows]
};
cudaError_t Activate(const ActivateParams& p, const PdlStream& chain);

// Unpermute: y[t] = Σ_j weight[t, j] · outputs[position[t, j]] in slot order, then the addend. Each
// product and each sum is rounded to float32, as in moe/dispatchers/combine.h.
struct UnpermuteRowsParams {
  const void* outputs = nullptr;  // [*, hidden]
  ElementType type = ElementType::kF32;
  const int32_t* position = nullptr;  // [tokens, k], −1: no contribution
  const float* weights = nullptr;     // [tokens, k]
  int64_t tokens = 0, hidden = 0;     // hidden: a multiple of 4
  int k = 0;
  TokenAddend addend = {};
  float* y = nullptr;  // [tokens, hidden]
};
cudaError_t UnpermuteRows(const UnpermuteRowsParams& p, const PdlStream& chain);

// y[t] += addend[t], for an addend that is not part of the sums over slots.
struct AddToTokensParams {
  TokenAddend addend;
  int64_t tokens = 0, hidden = 0;
  float* y = nullptr;
};
cudaError_t AddToTokens(const AddToTokensParams& p, cudaStream_t stream);

// y[t] += weights[t] · x[t], with each product and each sum rounded. Tokens of weight 0 do not
// change.
struct AddWeightedRowsParams {
  const float* x = nullptr;        // [tokens, hidden]
  const float* weights = nullptr;  // [tokens]
  int64_t tokens = 0, hidden = 0;  // hidden: a multiple of 4
  float* y = nullptr;              // [tokens, hidden]
};
cudaError_t AddWeightedRows(const AddWeightedRowsParams& p, cudaStream_t stream);

// to[i] = table[from[i]], or −1 where from[i] is −1.
cudaError_t MapIds(const int32_t* from, const int32_t* table, int64_t count, int32_t* to,
                   cudaStream_t stream);

}  // namespace switchyard::cuda
