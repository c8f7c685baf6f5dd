#include "moe/runners/masked_mlp.h"

#include <array>

#include "core/check.h"

namespace switchyard {

void MaskedMlpRunner::RunExpert(const ExpertBlock& block, const GroupedRows& rows, size_t e,
                                int64_t hidden, ThreadPool& pool, float* y) {
  const int64_t first = static_cast<int64_t>(e) * rows.capacity;
  const std::array<int32_t, 2> offsets = {0, rows.counts[e]};
  kernels::GroupedMlp({.x = rows.row_ids ? rows.x : rows.x + first * rows.ldx,
                       .ldx = rows.ldx,
                       .row_ids = rows.row_ids ? rows.row_ids + first : nullptr,
                       .experts = block.experts.subspan(e, 1),
                       .offsets = offsets,
                       .activation = block.activation,
                       .alpha = block.alpha,
                       .limit = block.limit,
                       .scratch = middle_.Get(rows.capacity * block.experts[e].gate.n),
                       .out = y,
                       .ldo = hidden},
                      pool);
}

void MaskedMlpRunner::Run(const ExpertBlock& block, const GroupedRows& rows, int64_t hidden,
                          ThreadPool& pool, float* y) {
  for (size_t e = 0; e < block.experts.size(); ++e)
    if (rows.counts[e] > 0)
      RunExpert(block, rows, e, hidden, pool, y + static_cast<int64_t>(e) * rows.capacity * hidden);
}

void MaskedMlpRunner::RunTo(const ExpertBlock& block, const GroupedRows& rows, int64_t hidden,
                            ThreadPool& pool, DType dtype, std::span<std::byte* const> places) {
  CHECK_EQ(static_cast<int64_t>(places.size()), rows.num_rows);
  float* y = expert_outputs_.Get(rows.capacity * hidden);
  for (size_t e = 0; e < block.experts.size(); ++e) {
    if (rows.counts[e] == 0) continue;
    RunExpert(block, rows, e, hidden, pool, y);
    StoreRows(dtype, y, hidden, places.subspan(e * rows.capacity, rows.counts[e]), pool);
  }
}

}  // namespace switchyard
