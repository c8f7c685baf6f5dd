// The last addition of the MoE path, one for all dispatchers: what makes results independent of
// ranks, modes and placements.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/parallel.h"
#include "moe/router.h"
#include "moe/rows.h"

namespace switchyard {

// y[t] = Σ_j weight[t, j] · row_of(t, j), from zero, j ascending, in float32. row_of returns a row
// [hidden] of `dtype`, or null for a slot that adds nothing (no expert, or another rank's). It is
// called from the pool's threads.
template <typename RowOf>
void SumTopK(const TopK& topk, DType dtype, int64_t hidden, const RowOf& row_of, ThreadPool& pool,
             float* y) {
  pool.RunRanges(topk.tokens, kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      float* sum = y + t * hidden;
      std::fill_n(sum, hidden, 0.0f);
      for (int j = 0; j < topk.k; ++j) {
        const std::byte* row = row_of(t, j);
        if (row) AddWeightedRow(dtype, row, topk.weights[t * topk.k + j], hidden, sum);
      }
    }
  });
}

}  // namespace switchyard
