#include "moe/runners/grouped_mlp.h"

namespace switchyard {

bool GroupedMlpRunner::Takes(WeightFormat format) const {
  switch (format) {
    case WeightFormat::kF32:
    case WeightFormat::kBF16:
    case WeightFormat::kF16:
    case WeightFormat::kFp8Block:
    case WeightFormat::kFp8Channel:
    case WeightFormat::kInt8Channel:
    case WeightFormat::kInt4Group:
    case WeightFormat::kMxfp4:
    case WeightFormat::kNvfp4:
      return true;
  }
  return false;
}

void GroupedMlpRunner::Run(const ExpertBlock& block, const GroupedRows& rows, int64_t hidden,
                           ThreadPool& pool, float* y) {
  if (rows.num_rows == 0) return;
  kernels::GroupedMlp({.x = rows.x,
                       .ldx = rows.ldx,
                       .row_ids = rows.row_ids,
                       .experts = block.experts,
                       .offsets = rows.offsets,
                       .activation = block.activation,
                       .alpha = block.alpha,
                       .limit = block.limit,
                       .scratch = middle_.Get(rows.num_rows * block.experts[0].gate.n),
                       .out = y,
                       .ldo = hidden},
                      pool);
}

}  // namespace switchyard
