#include "moe/runners/masked_mlp.h"

#include <array>

namespace switchyard {

void MaskedMlpRunner::Run(const ExpertBlock& block, const GroupedRows& rows, int64_t hidden,
                          ThreadPool& pool, float* y) {
  for (size_t e = 0; e < block.experts.size(); ++e) {
    const int32_t count = rows.counts[e];
    if (count == 0) continue;
    const int64_t first = static_cast<int64_t>(e) * rows.capacity;
    const std::array<int32_t, 2> offsets = {0, count};
    kernels::GroupedMlp({.x = rows.row_ids ? rows.x : rows.x + first * rows.ldx,
                         .ldx = rows.ldx,
                         .row_ids = rows.row_ids ? rows.row_ids + first : nullptr,
                         .experts = block.experts.subspan(e, 1),
                         .offsets = offsets,
                         .activation = block.activation,
                         .alpha = block.alpha,
                         .limit = block.limit,
                         .scratch = middle_.Get(rows.capacity * block.experts[e].gate.n),
                         .out = y + first * hidden,
                         .ldo = hidden},
                        pool);
  }
}

}  // namespace switchyard
