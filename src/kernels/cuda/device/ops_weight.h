// Weights as kernel arguments: a WeightView without its owner. Internal to kernels/cuda.
#pragma once

#include <cstdint>

#include "quant/weight_view.h"

namespace switchyard::cuda {

// Element (i, j) is at stored row row0 + i · row_step and stored column col0 + j, at address `base
// + i · row_stride + j`. Block scales are indexed by the stored row and column.
struct WeightArg {
  const void* base = nullptr;     // element (0, 0) of the view
  const float* scales = nullptr;  // kFp8Block: of the stored matrix
  int32_t row0 = 0, col0 = 0;
};

struct WeightShape {
  WeightFormat format = WeightFormat::kF32;  // kF32, kBF16, kF16 or kFp8Block
  int64_t row_stride = 0;                    // elements
  int32_t row_step = 1;
  int32_t scale_stride = 0;  // scales per row of blocks
  int64_t n = 0, k = 0;
};

inline int64_t ElementBytes(WeightFormat format) {
  return format == WeightFormat::kF32 ? 4 : format == WeightFormat::kFp8Block ? 1 : 2;
}

// Whether `run` columns, starting at a multiple of `run`, are one aligned load with one scale.
inline bool CanVectorLoad(const WeightArg& w, const WeightShape& shape, int64_t run) {
  return reinterpret_cast<uintptr_t>(w.base) % (run * ElementBytes(shape.format)) == 0 &&
         shape.row_stride % run == 0 && shape.k % run == 0 &&
         (shape.format != WeightFormat::kFp8Block || w.col0 % run == 0);
}

inline WeightArg WeightArgOf(const WeightView& w) {
  const int64_t offset = (w.row0 * w.stored_k + w.col0) * ElementBytes(w.format);
  return {.base = static_cast<const char*>(w.data) + offset,
          .scales = static_cast<const float*>(w.scales),
          .row0 = static_cast<int32_t>(w.row0),
          .col0 = static_cast<int32_t>(w.col0)};
}

inline WeightShape ShapeOf(const WeightView& w) {
  return {.format = w.format,
          .row_stride = w.row_step * w.stored_k,
          .row_step = static_cast<int32_t>(w.row_step),
          .scale_stride = static_cast<int32_t>(CeilDiv(w.stored_k, kFp8BlockSize)),
          .n = w.n,
          .k = w.k};
}

}  // namespace switchyard::cuda
