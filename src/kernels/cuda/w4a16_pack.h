// Brings 4-bit weights of a checkpoint into the layout of w4a16_layout.h. Plain host code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "core/parallel.h"
#include "kernels/cuda/w4a16_layout.h"
#include "quant/weight_view.h"

namespace switchyard::cuda {

// The format that all `views` can be packed in, so that a product has the same bits as with the
// weights expanded to bfloat16; none where there is none, and they have to be expanded:
// - all are of one of the formats kMxfp4, kNvfp4 and kInt4Group;
// - blocks of columns that share a scale begin and end on multiples of 16 columns of each view
//   (kMxfp4: of 32);
// - kMxfp4: scales are at most 2; kNvfp4: scales are below 4, the global one is at least 2^-100,
//   and where there are `parts` of a matrix their rows fill tiles; kInt4Group: zero points are at
//   most 127.
// Reads all of kMxfp4's scales and of kInt4Group's zero points.
std::optional<W4A16Format> W4A16FormatOf(std::span<const WeightView* const> views, int parts = 1);

// Of one matrix of n × k.
int64_t W4A16Bytes(W4A16Format format, int64_t n, int64_t k);

// Packs a matrix whose rows are those of `parts`, one below the other, all with the same n and k.
// `records` has W4A16Bytes(format, parts · n, k), all of which are written; `globals` has a float
// for each 64 rows and may be null where the format is not kNvfp4.
void PackW4A16(W4A16Format format, std::span<const WeightView* const> parts, std::byte* records,
               float* globals, ThreadPool& pool);

}  // namespace switchyard::cuda
