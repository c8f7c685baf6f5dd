// Grouped matrix multiplication on Hopper's matrix units.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace switchyard::cuda {

// Rows of A come in blocks of this many, each of which belongs to one group.
constexpr int kGroupBlockRows = 128;

// D[r, :] = A[r, :] · B[g(r)]ᵀ, where row r is in group g(r). Contiguous layout: groups lie one
// after the other, each padded to a multiple of kGroupBlockRows rows, so that a block has one
// group. Rows of padding give rows without meaning in D. All matrices are row-major.
//
// Sums run along K in one order that depends on K alone, so that a row's result does not depend on
// what else is in the call.
//
// Source of the scheme: DeepGEMM's description (persistent blocks, one warp that feeds the copy
// engine, promotion of FP8 sums to float32 every 128 elements); own code.
struct GroupedGemmParams {
  const void* a = nullptr;  // [rows, k], e4m3 or bfloat16
  // e4m3 only: float32 scales of A [k / 128, rows] (rows contiguous), one for 128 elements of a
  // row.
  const float* a_scales = nullptr;
  const void* b = nullptr;  // [groups, n, k]
  // e4m3 only: float32 scales of B [groups, n / 128, k / 128].
  const float* b_scales = nullptr;
  void* d = nullptr;  // [rows, n] bfloat16
  // [rows / kGroupBlockRows] on the device: the group of each block, −1 to skip it.
  const int32_t* block_groups = nullptr;
  int64_t rows = 0;  // a multiple of kGroupBlockRows
  int64_t n = 0;     // a multiple of 256
  int64_t k = 0;     // a multiple of 128
  int groups = 0;
};

// Enqueue on `stream`. Error kInvalid names a size that does not fit.
void GroupedGemmFp8(const GroupedGemmParams& p, cudaStream_t stream);
void GroupedGemmBf16(const GroupedGemmParams& p, cudaStream_t stream);

}  // namespace switchyard::cuda
