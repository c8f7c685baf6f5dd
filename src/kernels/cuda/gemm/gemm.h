// Grouped and dense GEMM with Hopper's wgmma.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/launch.h"

namespace switchyard::cuda {

// Rows of A per block; all rows of a block belong to one group.
constexpr int kGroupBlockRows = 128;
constexpr int kMaxGemmGroups = 1024;  // most groups of a call with group_begins and group_rows

// D[r, :] = A[r, :] · B[g(r)]ᵀ (+ bias[g(r)]), where row r is in group g(r). All matrices are
// row-major. There are two layouts of the groups. Both are read on the device, so a launch depends
// only on the sizes below and can be captured in a graph:
//
// - block_groups, for groups of many rows (prefill): groups are contiguous, each padded to a
//   multiple of kGroupBlockRows rows, so a block has one group. Padding rows are computed.
// - group_begins and group_rows, for groups of few rows (decode): any disjoint row ranges, as in a
//   padded or masked layout [groups, capacity, k]. Other rows are neither computed nor written.
//   Work is proportional to the valid rows, in steps of 16 or 32. A weight is read once per 192
//   rows. This layout is faster up to about 100 rows per group for e4m3 and 200 for bfloat16.
//
// Sums run along K in one order that depends on K alone. A row's result has the same bits in both
// layouts, whatever else is in the call.
//
// Source of the scheme: DeepGEMM's description (persistent blocks, one warp that issues TMA loads,
// promotion of FP8 sums to float32 every 128 elements); own code.
struct GroupedGemmParams {
  const void* a = nullptr;  // [rows, k], e4m3 or bfloat16
  // e4m3 only: float32 scales of A [k / 128, rows] (rows contiguous), one per 128 elements of a
  // row.
  const float* a_scales = nullptr;
  int64_t ld_a_scales = 0;  // stride of a_scales; 0: `rows`. For rows of a larger matrix
  const void* b = nullptr;  // [groups, n, k]
  // e4m3 only: float32 scales of B [groups, ceil(n / 128), k / 128].
  const float* b_scales = nullptr;
  void* d = nullptr;  // [rows, n] bfloat16, or float32 where float_output
  // [rows / kGroupBlockRows] on the device: the group of each block, −1 to skip it.
  const int32_t* block_groups = nullptr;
  int64_t rows = 0;  // rows of A and D; a multiple of kGroupBlockRows (with group_rows: of 4)
  int64_t n = 0;     // a multiple of 64
  int64_t k = 0;     // e4m3: a multiple of 128; bfloat16: of 64
  int groups = 0;
  // [groups] each, on the device: group g has rows [group_begins[g], group_begins[g] +
  // group_rows[g]). e4m3: begins are multiples of 4. Set both or neither; block_groups is then
  // ignored.
  const int32_t* group_begins = nullptr;
  const int32_t* group_rows = nullptr;
  // Whether these arrays were final before the previous kernel began. If so, a kernel that is
  // launched early fetches weights before the previous kernel has ended.
  bool groups_ready = false;
  const float* bias = nullptr;  // [groups, n] or null
  bool float_output = false;
};

// Enqueue the kernel and return. Error kInvalid reports an unsupported size.
void GroupedGemmFp8(const GroupedGemmParams& p, const PdlStream& chain);
void GroupedGemmBf16(const GroupedGemmParams& p, const PdlStream& chain);

// y[m, n] = x[m, k] · W[n, k]ᵀ (+ bias[n]) (+ y). All matrices are row-major; x and W are bfloat16,
// or both e4m3 with scales. The shape selects the kernel (PlanDenseGemm). A row's bits do not
// depend on m and equal those of GroupedGemmBf16 or GroupedGemmFp8: sums run along K in one order.
// Nothing is allocated and nothing waits for the host.
struct DenseGemmParams {
  const void* x = nullptr;  // [m, k], aligned to 16 bytes
  int64_t ldx = 0;          // elements; 0: k. Rows are aligned to 16 bytes
  // e4m3 only: float32 scales of x, element (row, i / 128) at x_scales[i / 128 · ld_x_scales +
  // row].
  const float* x_scales = nullptr;
  int64_t ld_x_scales = 0;  // floats, a multiple of 4; 0: m
  const void* w = nullptr;  // [n, k], aligned to 16 bytes
  // e4m3 only: float32 scales of W [ceil(n / 128), k / 128].
  const float* w_scales = nullptr;
  const float* bias = nullptr;  // [n] or null
  void* y = nullptr;            // [m, n], float32 or bfloat16
  int64_t ldy = 0;              // elements; 0: n. bfloat16: a multiple of 8, y aligned to 16 bytes
  bool float_output = true;     // y is float32, else bfloat16
  bool accumulate = false;      // float32 only: adds to y
  int64_t m = 0;
  int64_t n = 0;  // bfloat16 output: a multiple of 8
  int64_t k = 0;  // bfloat16: a multiple of 8; e4m3: of 128
};

// Whether DenseGemm supports these sizes and addresses (on any Hopper GPU).
bool DenseGemmTakes(const DenseGemmParams& p);
// Enqueues the kernel and returns. Error kInvalid on an unsupported shape or alignment. In a chain
// with early launch, W is read before the previous kernel has ended, so that kernel must not write
// W.
void DenseGemm(const DenseGemmParams& p, const PdlStream& chain);

}  // namespace switchyard::cuda
