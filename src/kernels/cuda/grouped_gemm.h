// Grouped matrix multiplication on Hopper's matrix units.
#pragma once

#include <cstdint>

#include "kernels/cuda/stream_chain.h"

namespace switchyard::cuda {

// Rows of A come in blocks of this many, each of which belongs to one group.
constexpr int kGroupBlockRows = 128;
constexpr int kMaxGemmGroups = 1024;  // where counts are on the device

// D[r, :] = A[r, :] · B[g(r)]ᵀ (+ bias[g(r)]), where row r is in group g(r). All matrices are
// row-major. There are two ways to say which rows are a group's; both read it on the device, so
// that a launch depends on the sizes below alone and can be recorded in a graph:
//
// - block_groups, for groups of many rows (prefill): groups lie one after the other, each padded to
// a
//   multiple of kGroupBlockRows rows, so that a block has one group. Rows of padding are computed.
// - group_begins and group_rows, for groups of few rows (decode): any rows that do not overlap, as
//   in a padded or masked layout [groups, capacity, k]; no others are computed or written. The work
//   is that of the rows there are, in steps of 16 or 32, and a weight is read once for 192 rows.
//   Faster up to about 100 rows a group for e4m3 and 200 for bfloat16.
//
// Sums run along K in one order that depends on K alone: a row's result has the same bits in either
// way and whatever else is in the call.
//
// Source of the scheme: DeepGEMM's description (persistent blocks, one warp that feeds the copy
// engine, promotion of FP8 sums to float32 every 128 elements); own code.
struct GroupedGemmParams {
  const void* a = nullptr;  // [rows, k], e4m3 or bfloat16
  // e4m3 only: float32 scales of A [k / 128, rows] (rows contiguous), one for 128 elements of a
  // row.
  const float* a_scales = nullptr;
  const void* b = nullptr;  // [groups, n, k]
  // e4m3 only: float32 scales of B [groups, ceil(n / 128), k / 128].
  const float* b_scales = nullptr;
  void* d = nullptr;  // [rows, n] bfloat16, or float32 where float_output
  // [rows / kGroupBlockRows] on the device: the group of each block, −1 to skip it.
  const int32_t* block_groups = nullptr;
  int64_t rows = 0;  // of A and D; a multiple of kGroupBlockRows, with group_rows of 4
  int64_t n = 0;     // a multiple of 64
  int64_t k = 0;     // a multiple of 128
  int groups = 0;
  // [groups] each, on the device: group g has rows [group_begins[g], group_begins[g] +
  // group_rows[g]); e4m3: begins are multiples of 4. Both or none; block_groups is not read then.
  const int32_t* group_begins = nullptr;
  const int32_t* group_rows = nullptr;
  // Whether those were written before the kernel ahead began, not by it: weights are then fetched
  // before that has ended, where kernels begin early.
  bool groups_known = false;
  const float* bias = nullptr;  // [groups, n] or null
  bool float_output = false;
};

// Enqueue. Error kInvalid names a size that does not fit.
void GroupedGemmFp8(const GroupedGemmParams& p, const StreamChain& chain);
void GroupedGemmBf16(const GroupedGemmParams& p, const StreamChain& chain);

}  // namespace switchyard::cuda
