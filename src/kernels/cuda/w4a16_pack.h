// Packs 4-bit checkpoint weights into the layout of w4a16_layout.h. Host code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "core/parallel.h"
#include "kernels/cuda/w4a16_layout.h"
#include "quant/weight_view.h"

namespace switchyard::cuda {

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
