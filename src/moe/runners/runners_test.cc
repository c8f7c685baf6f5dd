// RunTo writes the rounded outputs of Run.
#include <cstring>

#include "gtest/gtest.h"
#include "moe/backends.h"
#include "moe/test_layer.h"

namespace switchyard {
namespace {

// Experts with no rows, few, and more than a tile; gaps before some and after.
GroupedRows RowsOf(RunnerLayout layout, const std::vector<int32_t>& counts, int64_t sources,
                   const std::vector<float>& x, int64_t hidden) {
  GroupedRows rows;
  rows.x = x.data();
  rows.ldx = hidden;
  auto& s = rows.storage;
  s.counts = counts;
  s.offsets = {0};
  for (const int32_t count : counts) s.offsets.push_back(s.offsets.back() + count);
  rows.capacity = std::ranges::max(counts);
  rows.num_rows = layout == RunnerLayout::kContiguous
                      ? s.offsets.back()
                      : rows.capacity * static_cast<int64_t>(counts.size());
  for (int64_t r = 0; r < rows.num_rows; ++r)
    s.row_ids.push_back(static_cast<int32_t>(r * 7 % sources));
  rows.row_ids = s.row_ids.data();
  if (layout == RunnerLayout::kContiguous) {
    rows.offsets = s.offsets;
  } else {
    rows.counts = s.counts;
  }
  return rows;
}

TEST(RunnersTest, LeaveInPlacesWhatTheyReturn) {
  const TestLayer layer({.hidden = 96, .intermediate = 64, .num_experts = 6});
  const int64_t hidden = layer.spec.hidden, sources = 40;
  const std::vector<float> x = layer.Hidden(sources);
  const std::vector<int32_t> counts = {0, 3, 1900, 0, 250, 1};
  const ExpertBlock block{.experts = layer.whole.experts};
  ThreadPool pool(2);
  const MoeBackends backends = BuiltinMoeBackends();
  for (const auto& [name, backend] : backends.runners.all()) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const auto runner = backend.make();
      const GroupedRows rows = RowsOf(runner->layout(), counts, sources, x, hidden);
      std::vector<float> y(rows.num_rows * hidden);
      runner->Run(block, rows, hidden, pool, y.data());

      const int64_t bytes = hidden * static_cast<int64_t>(SizeOf(dtype));
      std::vector<std::byte> left(rows.num_rows * bytes), want(bytes);
      std::vector<std::byte*> places(rows.num_rows, nullptr);
      for (size_t e = 0; e < counts.size(); ++e) {
        const int64_t first = runner->layout() == RunnerLayout::kContiguous
                                  ? rows.offsets[e]
                                  : static_cast<int64_t>(e) * rows.capacity;
        for (int64_t r = first; r < first + counts[e]; ++r)
          if (r % 5 != 0) places[r] = left.data() + (rows.num_rows - 1 - r) * bytes;
      }
      runner->RunTo(block, rows, hidden, pool, dtype, places);
      for (int64_t r = 0; r < rows.num_rows; ++r) {
        const std::byte* got = left.data() + (rows.num_rows - 1 - r) * bytes;
        std::ranges::fill(want, std::byte{0});
        if (places[r]) StoreRow(dtype, y.data() + r * hidden, hidden, want.data());
        ASSERT_EQ(std::memcmp(got, want.data(), bytes), 0) << name << " row " << r;
      }
    }
  }
}

}  // namespace
}  // namespace switchyard
