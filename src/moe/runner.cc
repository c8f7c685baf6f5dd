#include "moe/runner.h"

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

void Runner::RunTo(const ExpertBlock& block, const GroupedRows& rows, int64_t hidden,
                   ThreadPool& pool, DType dtype, std::span<std::byte* const> places) {
  CHECK_EQ(static_cast<int64_t>(places.size()), rows.num_rows);
  float* y = outputs_.Get(rows.num_rows * hidden);
  Run(block, rows, hidden, pool, y);
  StoreRows(dtype, y, hidden, places, pool);
}

}  // namespace switchyard
