// Grouped GEMM of bfloat16 rows with 4-bit weights (W4A16) with Hopper's wgmma.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/stream_chain.h"
#include "kernels/cuda/w4a16_layout.h"

namespace switchyard::cuda {

// D[r, :] = A[r, :] · B[g(r)]ᵀ (+ bias[g(r)]), where row r is in group g(r). Like GroupedGemmBf16
// (grouped_gemm.h) with group_begins and group_rows, but the weights stay packed. The result has
// the bits of the GEMM with expanded weights: unpacking gives the same bits, and the reduction
// order is the same.
//
// Weights are read and unpacked once per 192 rows of a group: efficient for groups of few rows,
// correct for any.
struct W4A16GemmParams {
  const void* a = nullptr;  // [rows, k] bfloat16
  W4A16Format format;
  const void* records = nullptr;   // [groups] matrices [n, k] as PackW4A16 lays them out
  const float* globals = nullptr;  // kNvfp4: [groups, ceil(n / 64)]
  void* d = nullptr;               // [rows, n] bfloat16, or float32 where float_output
  int64_t rows = 0;                // rows of A and D
  int64_t n = 0;                   // a multiple of 8
  int64_t k = 0;                   // a multiple of 8
  int groups = 0;                  // at most kMaxGemmGroups
  // [groups] each, on the device: group g has rows [group_begins[g], group_begins[g] +
  // group_rows[g]) of a global row order, in which A's first row is number `first_row`. Rows
  // outside of A belong to other calls.
  const int32_t* group_begins = nullptr;
  const int32_t* group_rows = nullptr;
  bool groups_ready = false;  // see GroupedGemmParams
  int64_t first_row = 0;
  const float* bias = nullptr;  // [groups, n] or null
  bool float_output = false;
};
// Enqueues the kernel and returns. Error kInvalid reports an unsupported size.
void GroupedGemmW4A16(const W4A16GemmParams& p, const PdlStream& chain);

// Expands the weights to [groups, n, k] bfloat16 with the same device code. For tests.
struct W4A16ExpandParams {
  W4A16Format format;
  const void* records = nullptr;
  const float* globals = nullptr;
  void* to = nullptr;  // [groups, n, k] bfloat16
  int64_t n = 0, k = 0;
  int groups = 0;
};
void ExpandW4A16(const W4A16ExpandParams& p, cudaStream_t stream);

}  // namespace switchyard::cuda
