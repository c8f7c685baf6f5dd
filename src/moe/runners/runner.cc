#include "moe/runners/runner.h"

#include <functional>

#include "core/check.h"

namespace switchyard {

void StoreRows(DType dtype, const float* rows, int64_t hidden, std::span<std::byte* const> places,
               ThreadPool& pool) {
  const auto body = [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      if (places[r]) StoreRow(dtype, rows + r * hidden, hidden, places[r]);
  };
  pool.RunRanges(static_cast<int64_t>(places.size()), kRowGrain, std::cref(body));
}

Range RowsOfExperts(const GroupedRows& rows, Range experts) {
  if (rows.offsets.empty()) return {experts.begin * rows.capacity, experts.end * rows.capacity};
  return {rows.offsets[experts.begin], rows.offsets[experts.end]};
}

void Runner::RunTo(const ExpertBlock& block, const GroupedRows& rows, int64_t hidden,
                   ThreadPool& pool, DType dtype, std::span<std::byte* const> places) {
  CHECK_EQ(static_cast<int64_t>(places.size()), rows.num_rows);
  float* y = outputs_.Get(rows.num_rows * hidden);
  Run(block, rows, hidden, pool, y);
  StoreRows(dtype, y, hidden, places, pool);
}

void Runner::RunDown(const ExpertBlock& block, const GroupedRows& rows, Range experts,
                     int64_t hidden, ThreadPool& pool, Scratch<float>* /*middle*/,
                     const RunnerOutputs& to) {
  const Range part_rows = RowsOfExperts(rows, experts);
  if (part_rows.size() == 0) return;
  ExpertBlock part_block = block;
  part_block.experts = block.experts.subspan(experts.begin, experts.size());
  GroupedRows part;
  part.x = rows.row_ids ? rows.x : rows.x + part_rows.begin * rows.ldx;
  part.ldx = rows.ldx;
  part.row_ids = rows.row_ids ? rows.row_ids + part_rows.begin : nullptr;
  part.num_rows = part_rows.size();
  if (rows.offsets.empty()) {
    part.counts = rows.counts.subspan(experts.begin, experts.size());
    part.capacity = rows.capacity;
  } else {
    part_offsets_.clear();
    for (int64_t e = experts.begin; e <= experts.end; ++e)
      part_offsets_.push_back(static_cast<int32_t>(rows.offsets[e] - part_rows.begin));
    part.offsets = part_offsets_;
  }
  if (to.y) return Run(part_block, part, hidden, pool, to.y + part_rows.begin * hidden);
  RunTo(part_block, part, hidden, pool, to.dtype,
        to.places.subspan(part_rows.begin, part_rows.size()));
}

}  // namespace switchyard
