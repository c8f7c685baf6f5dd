// Grouped products of bfloat16 rows with 4-bit weights on Hopper's matrix units.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/stream_chain.h"
#include "kernels/cuda/w4a16_layout.h"

namespace switchyard::cuda {

// D[r, :] = A[r, :] · B[g(r)]ᵀ (+ bias[g(r)]), where row r is in group g(r): GroupedGemmBf16
// (grouped_gemm.h) with group_begins and group_rows, of weights that stay packed. The bits are
// those of the expanded weights: what a thread unpacks has their bits, and sums have the same
// order.
//
// Weights are read and unpacked once for 192 rows of a group: meant for groups of few rows, right
// for any.
struct W4A16GemmParams {
  const void* a = nullptr;  // [rows, k] bfloat16
  W4A16Format format;
  const void* records = nullptr;   // [groups] matrices [n, k] as PackW4A16 lays them out
  const float* globals = nullptr;  // kNvfp4: [groups, ceil(n / 64)]
  void* d = nullptr;               // [rows, n] bfloat16, or float32 where float_output
  int64_t rows = 0;                // of A and D
  int64_t n = 0;                   // a multiple of 8
  int64_t k = 0;                   // a multiple of 8
  int groups = 0;                  // at most kMaxGemmGroups
  // [groups] each, on the device: group g has rows [group_begins[g], group_begins[g] +
  // group_rows[g]) of an order of rows in which A's first is number `first_row`. Rows that A does
  // not have are another call's.
  const int32_t* group_begins = nullptr;
  const int32_t* group_rows = nullptr;
  bool groups_known = false;  // as GroupedGemmParams'
  int64_t first_row = 0;
  const float* bias = nullptr;  // [groups, n] or null
  bool float_output = false;
};
// Enqueues. Error kInvalid names a size that does not fit.
void GroupedGemmW4A16(const W4A16GemmParams& p, const StreamChain& chain);

// The weights expanded, by the same device code: to [groups, n, k] bfloat16. For tests.
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
