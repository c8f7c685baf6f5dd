// The second half of both deepep modes: outputs land at [token, slot] of the source's buffer.
#pragma once

#include <cstddef>

#include "moe/combine.h"

namespace switchyard {

// Place of slot j of token t among the outputs [tokens, k].
inline int32_t OutputPlace(int64_t t, int j, int k) { return static_cast<int32_t>(t * k + j); }

// y[t] = Σ_j weight[t, j] · outputs[t, j] over the slots that have an expert.
inline void SumReturnedRows(const TopK& topk, DType dtype, int64_t hidden, const std::byte* outputs,
                            ThreadPool& pool, float* y) {
  const int64_t row_bytes = hidden * SizeOf(dtype);
  const auto row_of = [&](int64_t t, int j) {
    const int32_t place = OutputPlace(t, j, topk.k);
    return topk.ids[place] < 0 ? nullptr : outputs + place * row_bytes;
  };
  SumTopK(topk, dtype, hidden, row_of, pool, y);
}

}  // namespace switchyard
