// RunTo writes the rounded outputs of Run, and so do RunGateUp and RunDown together.
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>

#include "gtest/gtest.h"
#include "moe/backends.h"
#include "moe/test_layer.h"

namespace switchyard {
namespace {

// Rows of several experts: some have no rows, some have few, and some have more than a tile. There
// are padding rows before some experts and after the last one.
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

// Implements only the required functions of a runner.
class PlainRunner : public Runner {
 public:
  explicit PlainRunner(std::unique_ptr<Runner> inner) : inner_(std::move(inner)) {}
  RunnerLayout layout() const override { return inner_->layout(); }
  bool Supports(WeightFormat format) const override { return inner_->Supports(format); }
  void Run(const ExpertBlock& block, const GroupedRows& rows, int64_t hidden, ThreadPool& pool,
           float* y) override {
    inner_->Run(block, rows, hidden, pool, y);
  }

 private:
  std::unique_ptr<Runner> inner_;
};

// Expects that RunGateUp, followed by RunDown for consecutive ranges of experts, gives the outputs
// of Run.
void ExpectTwoStepsGiveTheSame(Runner& runner, const GroupedRows& rows, const ExpertBlock& block,
                               int64_t hidden) {
  ThreadPool pool(2);
  std::vector<float> want(rows.num_rows * hidden, NAN);
  runner.Run(block, rows, hidden, pool, want.data());
  const int64_t experts = std::ssize(block.experts);
  for (const std::vector<int64_t>& begins :
       {std::vector<int64_t>{0, experts}, {0, 1, 4, 4, 5, experts}}) {
    Scratch<float> middle;
    // The first pass writes float32 rows to `y`. The second one writes rounded rows to `places`.
    std::vector<float> y(want.size(), NAN), placed(want.size(), NAN);
    std::vector<std::byte*> places(rows.num_rows, nullptr);
    for (int64_t r = 0; r < rows.num_rows; ++r)
      if (r % 5 != 0 && !std::isnan(want[r * hidden]))  // not a padding row
        places[r] = reinterpret_cast<std::byte*>(placed.data() + r * hidden);
    const RunnerOutputs to_y{.y = y.data()}, to_places{.places = places};
    for (const RunnerOutputs& to : {to_y, to_places}) {
      runner.RunGateUp(block, rows, pool, &middle);
      for (size_t i = 0; i + 1 < begins.size(); ++i)
        runner.RunDown(block, rows, {begins[i], begins[i + 1]}, hidden, pool, &middle, to);
    }
    EXPECT_TRUE(kernels::SameBits(y, want));
    for (int64_t r = 0; r < rows.num_rows; ++r) {
      const float* row = want.data() + r * hidden;
      if (places[r]) {
        EXPECT_TRUE(kernels::SameBits(placed.data() + r * hidden, row, hidden)) << "row " << r;
      } else {
        EXPECT_TRUE(std::isnan(placed[r * hidden])) << "row " << r;
      }
    }
  }
}

TEST(RunnersTest, TwoStepsGiveTheBitsOfOne) {
  const int64_t hidden = 128, sources = 40;
  const MoeBackends backends = BuiltinMoeBackends();
  for (const ActivationFormat activation : {ActivationFormat::kNone, ActivationFormat::kFp8Group}) {
    const TestLayer layer({.format = activation == ActivationFormat::kNone
                                         ? WeightFormat::kF32
                                         : WeightFormat::kFp8Block,
                           .activation = activation,
                           .hidden = hidden,
                           .intermediate = 128,
                           .num_experts = 6,
                           .clamped_with_biases = true});
    const std::vector<float> x = layer.Hidden(sources);
    const ExpertBlock block{.experts = layer.whole.experts, .activation = layer.config.activation};
    for (const std::vector<int32_t>& counts :
         {std::vector<int32_t>{0, 3, 1900, 0, 250, 1}, {0, 0, 0, 0, 0, 2}, {0, 0, 0, 0, 0, 0}}) {
      for (const auto& [name, backend] : backends.runners.all()) {
        SCOPED_TRACE(name);
        const auto runner = backend.make();
        const GroupedRows rows = RowsOf(runner->layout(), counts, sources, x, hidden);
        ExpectTwoStepsGiveTheSame(*runner, rows, block, hidden);
        PlainRunner plain(backend.make());
        ExpectTwoStepsGiveTheSame(plain, rows, block, hidden);
      }
    }
  }
}

}  // namespace
}  // namespace switchyard
