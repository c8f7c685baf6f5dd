#include <algorithm>

#include "core/error.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/gemm/gemm_testing.h"

namespace switchyard::cuda {
namespace {

constexpr float kUntouched = -77.0f;

// Contiguous groups of `counts` rows, each padded to blocks of 128.
struct Layout {
  explicit Layout(std::vector<int32_t> row_counts) : counts(std::move(row_counts)) {
    for (int g = 0; g < static_cast<int>(counts.size()); ++g) {
      begins.push_back(static_cast<int32_t>(blocks.size()) * kGroupBlockRows);
      blocks.insert(blocks.end(), (counts[g] + kGroupBlockRows - 1) / kGroupBlockRows, g);
      if (g % 3 == 1) blocks.push_back(-1);
    }
    blocks.push_back(-1);
  }
  int64_t rows() const { return static_cast<int64_t>(blocks.size()) * kGroupBlockRows; }
  int groups() const { return static_cast<int>(counts.size()); }

  std::vector<int32_t> counts, begins, blocks;
};

enum class RowLayout { kBlocks, kCounts };
std::vector<float> RunGroups(const GemmProblemData& c, const Layout& layout, RowLayout row_layout,
                             bool float_output = true, bool bias = false) {
  const DeviceMemory blocks = Upload(layout.blocks), begins = Upload(layout.begins),
                     counts = Upload(layout.counts);
  const size_t size = c.rows * c.n;
  const BF16 untouched = ToBF16(kUntouched);
  DeviceMemory d = float_output ? Upload(std::vector<float>(size, kUntouched))
                                : Upload(std::vector<uint16_t>(size, untouched.bits));
  GroupedGemmParams p = {.a = c.a.data(),
                         .a_scales = c.a_scales.as<float>(),
                         .b = c.b.data(),
                         .b_scales = c.b_scales.as<float>(),
                         .d = d.data(),
                         .rows = c.rows,
                         .n = c.n,
                         .k = c.k,
                         .groups = c.groups,
                         .bias = bias ? c.bias.as<float>() : nullptr,
                         .float_output = float_output};
  if (row_layout == RowLayout::kBlocks) {
    p.block_groups = blocks.as<int32_t>();
  } else {
    p.group_begins = begins.as<int32_t>();
    p.group_rows = counts.as<int32_t>();
  }
  c.fp8 ? GroupedGemmFp8(p, nullptr) : GroupedGemmBf16(p, nullptr);
  Check(cudaDeviceSynchronize(), "grouped GEMM");
  if (float_output) return Download<float>(d, size);
  std::vector<float> values;
  for (const uint16_t bits : Download<uint16_t>(d, size)) values.push_back(ToFloat(BF16{bits}));
  return values;
}

class GroupedGemm : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (DeviceCount() == 0 || !IsHopper()) GTEST_SKIP() << "no Hopper GPU";
  }
  bool fp8() const { return GetParam(); }

  void ExpectSums(const GemmProblemData& c, const Layout& layout, const std::vector<float>& got,
                  double rounding, bool bias = false) {
    double worst = 0.0;
    for (int g = 0; g < layout.groups(); ++g)
      for (int r = 0; r < layout.counts[g]; ++r)
        for (int64_t column = r % 3; column < c.n; column += 7) {
          const int64_t row = layout.begins[g] + r;
          const double want = c.Sum(g, row, column) + (bias ? c.Bias(g, column) : 0.0f);
          const double error = std::abs(got[row * c.n + column] - want);
          worst = std::max(worst, (error - rounding * std::abs(want)) / c.Size(g, row, column));
        }
    EXPECT_LT(worst, Tolerance(fp8()));
  }
};

TEST_P(GroupedGemm, BlocksGiveSumsOfRandomGroups) {
  std::mt19937 random(1);
  for (const int64_t n : {64, 192, 512, 832})
    for (const int64_t k : {128, 640}) {
      const Layout layout({static_cast<int32_t>(random() % 300), 0, 128, 1, 0,
                           static_cast<int32_t>(random() % 200)});
      const GemmProblemData c(fp8(), layout.groups(), layout.rows(), n, k,
                              static_cast<unsigned>(n + k));
      ExpectSums(c, layout, RunGroups(c, layout, RowLayout::kBlocks), 0.0);
      ExpectSums(c, layout, RunGroups(c, layout, RowLayout::kBlocks, false), 1.0 / 256);
    }
}

TEST_P(GroupedGemm, BlocksOfNoGroupAreNotWritten) {
  const Layout layout({130, 5, 0, 40});
  const GemmProblemData c(fp8(), layout.groups(), layout.rows(), 256, 256, 3);
  for (const bool float_output : {false, true}) {
    const std::vector<float> got = RunGroups(c, layout, RowLayout::kBlocks, float_output);
    for (size_t block = 0; block < layout.blocks.size(); ++block)
      for (int64_t i = 0; layout.blocks[block] < 0 && i < kGroupBlockRows * c.n; ++i)
        ASSERT_EQ(got[block * kGroupBlockRows * c.n + i], kUntouched);
  }
}

// Calls for runs of row blocks, and for runs of groups, give the bits of one call for all rows.
TEST_P(GroupedGemm, PartsOfTheRowsHaveTheSameBits) {
  const Layout layout({130, 5, 0, 40, 300, 1});
  const GemmProblemData c(fp8(), layout.groups(), layout.rows(), 256, 384, 8);
  const std::vector<float> want = RunGroups(c, layout, RowLayout::kBlocks);
  const DeviceMemory blocks = Upload(layout.blocks), begins = Upload(layout.begins),
                     counts = Upload(layout.counts);
  const int64_t element_bytes = fp8() ? 1 : 2;
  const auto run = [&](GroupedGemmParams p) {
    p.n = c.n;
    p.k = c.k;
    p.float_output = true;
    fp8() ? GroupedGemmFp8(p, nullptr) : GroupedGemmBf16(p, nullptr);
  };
  const size_t size = c.rows * c.n;
  DeviceMemory d = Upload(std::vector<float>(size, kUntouched));
  for (const auto& [first, last] : {std::pair<int64_t, int64_t>{0, 3}, {3, 4}, {4, 20}}) {
    const int64_t row = first * kGroupBlockRows;
    const int64_t end = std::min<int64_t>(last * kGroupBlockRows, c.rows);
    run({.a = c.a.data() + row * c.k * element_bytes,
         .a_scales = fp8() ? c.a_scales.as<float>() + row : nullptr,
         .ld_a_scales = c.rows,
         .b = c.b.data(),
         .b_scales = c.b_scales.as<float>(),
         .d = d.as<float>() + row * c.n,
         .block_groups = blocks.as<int32_t>() + first,
         .rows = end - row,
         .groups = c.groups});
  }
  Check(cudaDeviceSynchronize(), "grouped GEMM");
  EXPECT_EQ(std::memcmp(Download<float>(d, size).data(), want.data(), size * sizeof(float)), 0);

  d = Upload(std::vector<float>(size, kUntouched));
  const int64_t scales_of_group = (c.n + 127) / 128 * ((c.k + 127) / 128);
  for (const auto& [first, last] : {std::pair(0, 2), std::pair(2, 3), std::pair(3, 6)}) {
    run({.a = c.a.data(),
         .a_scales = c.a_scales.as<float>(),
         .b = c.b.data() + first * c.n * c.k * element_bytes,
         .b_scales = fp8() ? c.b_scales.as<float>() + first * scales_of_group : nullptr,
         .d = d.data(),
         .rows = c.rows,
         .groups = last - first,
         .group_begins = begins.as<int32_t>() + first,
         .group_rows = counts.as<int32_t>() + first});
  }
  Check(cudaDeviceSynchronize(), "grouped GEMM");
  const std::vector<float> few = Download<float>(d, size);
  for (int g = 0; g < layout.groups(); ++g) {
    const int64_t begin = layout.begins[g] * c.n;
    EXPECT_EQ(std::memcmp(&few[begin], &want[begin], layout.counts[g] * c.n * sizeof(float)), 0)
        << "group " << g;
  }
}

TEST_P(GroupedGemm, CountsGiveTheSameBitsAsBlocksAndWriteNoOtherRows) {
  std::mt19937 random(4);
  for (const int64_t n : {64, 384, 1088})
    for (const int64_t k : {128, 640, 2176}) {
      std::vector<int32_t> counts = {0, 1, 16, 17, 33, 64, 0, 97, 129, 161, 192, 193, 300};
      std::shuffle(counts.begin(), counts.end(), random);
      const Layout layout(counts);
      const GemmProblemData c(fp8(), layout.groups(), layout.rows(), n, k,
                              static_cast<unsigned>(random()));
      for (const bool float_output : {false, true}) {
        const std::vector<float> blocks =
            RunGroups(c, layout, RowLayout::kBlocks, float_output, n > 64);
        const std::vector<float> few =
            RunGroups(c, layout, RowLayout::kCounts, float_output, n > 64);
        for (int g = 0; g < layout.groups(); ++g) {
          const int64_t begin = layout.begins[g] * n, end = begin + layout.counts[g] * n;
          const int64_t next =
              g + 1 < layout.groups() ? layout.begins[g + 1] * n : layout.rows() * n;
          ASSERT_EQ(std::memcmp(&blocks[begin], &few[begin], (end - begin) * sizeof(float)), 0)
              << "group " << g << " of " << layout.counts[g] << " rows, n " << n << ", k " << k;
          for (int64_t i = end; i < next; ++i) ASSERT_EQ(few[i], kUntouched);
        }
      }
    }
}

TEST_P(GroupedGemm, CountsGiveSumsOfGroupsAnywhere) {
  Layout layout({20, 0, 7, 50});
  const int64_t rows = 100;
  layout.begins = {64, 0, 4, 12};
  const GemmProblemData c(fp8(), layout.groups(), rows, 320, 384, 6);
  ExpectSums(c, layout, RunGroups(c, layout, RowLayout::kCounts, true, true), 0.0, true);
  layout.counts = {0, 0, 0, 0};
  for (const float x : RunGroups(c, layout, RowLayout::kCounts)) ASSERT_EQ(x, kUntouched);
}

TEST_P(GroupedGemm, SizesThatDoNotFitAreRefused) {
  GroupedGemmParams p = {.rows = 100, .n = 64, .k = 128, .groups = 1};
  const auto run = [&] { fp8() ? GroupedGemmFp8(p, nullptr) : GroupedGemmBf16(p, nullptr); };
  EXPECT_THROW(run(), Error);
  p.rows = 128;
  p.n = 65;
  EXPECT_THROW(run(), Error);
  p.n = 64;
  p.k = 100;
  EXPECT_THROW(run(), Error);
}

INSTANTIATE_TEST_SUITE_P(Formats, GroupedGemm, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "fp8" : "bf16"; });

}  // namespace
}  // namespace switchyard::cuda
