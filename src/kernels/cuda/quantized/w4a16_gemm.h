// Grouped GEMM of bfloat16 rows with 4-bit weights (W4A16) with Hopper's wgmma.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "core/parallel.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/quantized/w4a16_layout.h"
#include "quant/weight_view.h"

namespace switchyard::cuda {

// D[r, :] = A[r, :] · B[g(r)]ᵀ (+ bias[g(r)]), where row r is in group g(r). Like GroupedGemmBf16
// (gemm.h) with group_begins and group_rows, but the weights stay packed. The result has
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

// Packs 4-bit checkpoint weights into the layout of w4a16_layout.h. Host code.

// The common packed format of all `views` in which a GEMM has the same bits as with weights
// expanded to bfloat16. If there is none (nullopt), the weights must be expanded. Requirements:
// - All views have one of the formats kMxfp4, kNvfp4 and kInt4Group.
// - Column blocks that share a scale begin and end at multiples of 16 columns of each view (kMxfp4:
//   of 32).
// - kMxfp4: scales are at most 2.
// - kNvfp4: scales are below 4, and the global scale is at least 2^-100. With several `parts` per
//   matrix, the rows of each part fill whole tiles.
// - kInt4Group: zero points are at most 127.
// Reads all of kMxfp4's scales and of kInt4Group's zero points. Reads kNvfp4's scales if the global
// scale does not bound them.
std::optional<W4A16Format> W4A16FormatOf(std::span<const WeightView* const> views, int parts = 1);

// Bytes of one packed n × k matrix.
int64_t W4A16Bytes(W4A16Format format, int64_t n, int64_t k);

// Packs a matrix whose rows are the vertically stacked `parts`, all with the same n and k.
// `records` has W4A16Bytes(format, parts · n, k) bytes, all of which are written. `globals` has one
// float per 64 rows and may be null unless the format is kNvfp4.
void PackW4A16(W4A16Format format, std::span<const WeightView* const> parts, std::byte* records,
               float* globals, ThreadPool& pool);

}  // namespace switchyard::cuda
