#include "moe/runners/grouped_mlp.h"

#include <algorithm>
#include <array>
#include <numeric>

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

namespace {

// The rows of one expert.
struct ExpertProducts {
  std::array<int32_t, 2> offsets;
  kernels::GroupedMlpParams params;  // refers to `offsets`

  ExpertProducts(const ExpertBlock& block, const GroupedRows& rows, size_t e, float* middle)
      : offsets{0, rows.counts[e]} {
    const int64_t first = static_cast<int64_t>(e) * rows.capacity;
    params = {.x = rows.row_ids ? rows.x : rows.x + first * rows.ldx,
              .ldx = rows.ldx,
              .row_ids = rows.row_ids ? rows.row_ids + first : nullptr,
              .experts = block.experts.subspan(e, 1),
              .offsets = offsets,
              .activation = block.activation,
              .alpha = block.alpha,
              .limit = block.limit,
              .scratch = middle};
  }
  ExpertProducts(const ExpertProducts&) = delete;
  ExpertProducts& operator=(const ExpertProducts&) = delete;
};

int64_t RowsBefore(const GroupedRows& rows, int64_t expert) {
  return std::accumulate(rows.counts.begin(), rows.counts.begin() + expert, int64_t{0});
}

}  // namespace

void MaskedMlpRunner::RunExpert(const ExpertBlock& block, const GroupedRows& rows, size_t e,
                                int64_t hidden, ThreadPool& pool, float* y) {
  ExpertProducts products(block, rows, e, middle_.Get(rows.capacity * block.experts[e].gate.n));
  products.params.out = y;
  products.params.ldo = hidden;
  kernels::GroupedMlp(products.params, pool);
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

void MaskedMlpRunner::RunGateUp(const ExpertBlock& block, const GroupedRows& rows, ThreadPool& pool,
                                Scratch<float>* middle) {
  if (rows.num_rows == 0) return;
  const auto experts = static_cast<int64_t>(block.experts.size());
  const int64_t width = block.experts[0].gate.n;
  float* to = middle->Get(RowsBefore(rows, experts) * width);
  for (int64_t e = 0; e < experts; ++e) {
    if (rows.counts[e] == 0) continue;
    kernels::GroupedGateUp(ExpertProducts(block, rows, e, to).params, pool);
    to += rows.counts[e] * width;
  }
}

void MaskedMlpRunner::RunDown(const ExpertBlock& block, const GroupedRows& rows, Range experts,
                              int64_t hidden, ThreadPool& pool, Scratch<float>* middle,
                              const RunnerOutputs& to) {
  if (rows.num_rows == 0 || experts.size() == 0) return;
  const int64_t width = block.experts[0].gate.n;
  float* from = middle->data() + RowsBefore(rows, experts.begin) * width;
  float* expert_outputs = to.y ? nullptr : expert_outputs_.Get(rows.capacity * hidden);
  for (int64_t e = experts.begin; e < experts.end; ++e) {
    if (rows.counts[e] == 0) continue;
    const int64_t first = e * rows.capacity;
    float* y = to.y ? to.y + first * hidden : expert_outputs;
    ExpertProducts products(block, rows, e, from);
    products.params.out = y;
    products.params.ldo = hidden;
    kernels::GroupedDown(products.params, pool);
    if (!to.y) StoreRows(to.dtype, y, hidden, to.places.subspan(first, rows.counts[e]), pool);
    from += rows.counts[e] * width;
  }
}

}  // namespace switchyard
