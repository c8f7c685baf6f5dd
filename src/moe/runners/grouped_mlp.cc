#include "moe/runners/grouped_mlp.h"

#include <algorithm>

#include "core/check.h"

namespace switchyard {

bool GroupedMlpRunner::Supports(WeightFormat format) const {
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
    default:
      return HasPanels(format);
  }
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

std::span<const int32_t> GroupedMlpRunner::TileOffsets(const GroupedRows& rows, int64_t begin,
                                                       int64_t count) {
  tile_offsets_.clear();
  for (const int32_t offset : rows.offsets)
    tile_offsets_.push_back(static_cast<int32_t>(std::clamp<int64_t>(offset - begin, 0, count)));
  return tile_offsets_;
}

void GroupedMlpRunner::RunTo(const ExpertBlock& block, const GroupedRows& rows, int64_t hidden,
                             ThreadPool& pool, DType dtype, std::span<std::byte* const> places) {
  CHECK_EQ(static_cast<int64_t>(places.size()), rows.num_rows);
  GroupedRows tile;
  tile.ldx = rows.ldx;
  for (int64_t begin = 0; begin < rows.num_rows; begin += kTileRows) {
    const int64_t count = std::min(kTileRows, rows.num_rows - begin);
    tile.x = rows.row_ids ? rows.x : rows.x + begin * rows.ldx;
    tile.row_ids = rows.row_ids ? rows.row_ids + begin : nullptr;
    tile.num_rows = count;
    tile.offsets = TileOffsets(rows, begin, count);
    float* y = tile_.Get(count * hidden);
    Run(block, tile, hidden, pool, y);
    StoreRows(dtype, y, hidden, places.subspan(begin, count), pool);
  }
}

void GroupedMlpRunner::RunGateUp(const ExpertBlock& block, const GroupedRows& rows,
                                 ThreadPool& pool, Scratch<float>* middle) {
  if (rows.num_rows == 0) return;
  kernels::GroupedGateUp({.x = rows.x,
                          .ldx = rows.ldx,
                          .row_ids = rows.row_ids,
                          .experts = block.experts,
                          .offsets = rows.offsets,
                          .activation = block.activation,
                          .alpha = block.alpha,
                          .limit = block.limit,
                          .scratch = middle->Get(rows.num_rows * block.experts[0].gate.n)},
                         pool);
}

void GroupedMlpRunner::RunDown(const ExpertBlock& block, const GroupedRows& rows, Range experts,
                               int64_t hidden, ThreadPool& pool, Scratch<float>* middle,
                               const RunnerOutputs& to) {
  const Range part = RowsOfExperts(rows, experts);
  const int64_t tile_rows = to.y ? part.size() : kTileRows;
  for (int64_t begin = part.begin; begin < part.end; begin += tile_rows) {
    const int64_t count = std::min(tile_rows, part.end - begin);
    float* y = to.y ? to.y + begin * hidden : tile_.Get(count * hidden);
    kernels::GroupedDown({.experts = block.experts,
                          .offsets = TileOffsets(rows, begin, count),
                          .scratch = middle->data() + begin * block.experts[0].gate.n,
                          .out = y,
                          .ldo = hidden},
                         pool);
    if (!to.y) StoreRows(to.dtype, y, hidden, to.places.subspan(begin, count), pool);
  }
}

}  // namespace switchyard
