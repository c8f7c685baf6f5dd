// GEMMs with packed weights have the bits of GEMMs with the same weights expanded.
#include "kernels/cuda/quantized/w4a16_gemm.h"

#include <algorithm>

#include "core/error.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/gemm/gemm_testing.h"
#include "kernels/cuda/quantized/w4a16_testing.h"

namespace switchyard::cuda {
namespace {

constexpr uint32_t kUntouched = 0xc2f5c2f5;

// Consecutive row ranges of groups with gaps between them; rows in gaps are NaN.
struct Rows {
  Rows(std::vector<int32_t> row_counts, int64_t k, unsigned seed) : counts(std::move(row_counts)) {
    kernels::Random random(seed);
    for (const int32_t count : counts) {
      begins.push_back(static_cast<int32_t>(total));
      total += count + 4 * random.Below(3);
    }
    total = CeilDiv(total + 4, 4) * 4;
    std::vector<uint8_t> real(total, 0);
    for (size_t g = 0; g < counts.size(); ++g)
      std::fill_n(real.begin() + begins[g], counts[g], uint8_t{1});
    for (int64_t r = 0; r < total; ++r)
      for (const float x : random.Normal(k))
        values.push_back(real[r] ? ToBF16(r % 50 == 7 ? 0.0f : x).bits : ToBF16(NAN).bits);
  }
  int groups() const { return static_cast<int>(counts.size()); }

  std::vector<int32_t> counts, begins;
  int64_t total = 0;
  std::vector<uint16_t> values;  // [total, k] bfloat16
};

// Pads rows and columns of matrices with zeros.
std::vector<uint16_t> Padded(const std::vector<uint16_t>& from, int64_t matrices, int64_t rows,
                             int64_t columns, int64_t to_rows, int64_t to_columns) {
  std::vector<uint16_t> to(matrices * to_rows * to_columns);
  for (int64_t i = 0; i < matrices * rows; ++i)
    std::copy_n(from.begin() + i * columns, columns,
                to.begin() + (i / rows * to_rows + i % rows) * to_columns);
  return to;
}

class W4A16Gemm : public ::testing::TestWithParam<W4A16Case> {
 protected:
  void SetUp() override {
    if (DeviceCount() == 0 || !IsHopper()) GTEST_SKIP() << "no Hopper GPU";
  }

  // Output words [rows, n] as float32 or bfloat16; kUntouched where nothing was written.
  static std::vector<uint32_t> Run(const PackedMatrices& m, const Rows& rows, bool float_output,
                                   const DeviceMemory* bias, int64_t chunk_rows = 0) {
    const DeviceMemory records = Upload(m.records), globals = Upload(m.globals),
                       begins = Upload(rows.begins), counts = Upload(rows.counts),
                       a = Upload(rows.values);
    const int64_t words = rows.total * m.n / (float_output ? 1 : 2);
    const DeviceMemory d = Upload(std::vector<uint32_t>(words, kUntouched));
    const int64_t step = chunk_rows ? chunk_rows : rows.total;
    for (int64_t first = 0; first < rows.total; first += step)
      GroupedGemmW4A16({.a = a.as<uint16_t>() + first * m.k,
                        .format = m.format,
                        .records = records.data(),
                        .globals = globals.as<float>(),
                        .d = d.data() + first * m.n * (float_output ? 4 : 2),
                        .rows = std::min(step, rows.total - first),
                        .n = m.n,
                        .k = m.k,
                        .groups = rows.groups(),
                        .group_begins = begins.as<int32_t>(),
                        .group_rows = counts.as<int32_t>(),
                        .first_row = first,
                        .bias = bias ? bias->as<float>() : nullptr,
                        .float_output = float_output},
                       nullptr);
    Check(cudaDeviceSynchronize(), "GEMM with packed weights");
    return Download<uint32_t>(d, words);
  }

  // GroupedGemmBf16 with the expanded weights, padded to multiples of 64.
  static std::vector<uint32_t> RunExpanded(const PackedMatrices& m, const Rows& rows,
                                           bool float_output, const std::vector<float>* bias) {
    const int64_t n = CeilDiv(m.n, 64) * 64, k = CeilDiv(m.k, 64) * 64;
    const DeviceMemory b = Upload(Padded(m.expanded, rows.groups(), m.n, m.k, n, k)),
                       a = Upload(Padded(rows.values, 1, rows.total, m.k, rows.total, k)),
                       begins = Upload(rows.begins), counts = Upload(rows.counts);
    std::vector<float> wide(rows.groups() * n);
    for (int64_t i = 0; bias && i < rows.groups() * m.n; ++i)
      wide[i / m.n * n + i % m.n] = (*bias)[i];
    const DeviceMemory device_bias = Upload(wide);
    const int64_t words = rows.total * n / (float_output ? 1 : 2);
    const DeviceMemory d = Upload(std::vector<uint32_t>(words, kUntouched));
    GroupedGemmBf16({.a = a.data(),
                     .b = b.data(),
                     .d = d.data(),
                     .rows = rows.total,
                     .n = n,
                     .k = k,
                     .groups = rows.groups(),
                     .group_begins = begins.as<int32_t>(),
                     .group_rows = counts.as<int32_t>(),
                     .bias = bias ? device_bias.as<float>() : nullptr,
                     .float_output = float_output},
                    nullptr);
    Check(cudaDeviceSynchronize(), "GEMM with expanded weights");
    const std::vector<uint32_t> all = Download<uint32_t>(d, words);
    const int64_t from = words / rows.total, to = m.n / (float_output ? 1 : 2);
    std::vector<uint32_t> some;
    for (int64_t r = 0; r < rows.total; ++r)
      some.insert(some.end(), all.begin() + r * from, all.begin() + r * from + to);
    return some;
  }

  static void ExpectSame(const std::vector<uint32_t>& got, const std::vector<uint32_t>& want,
                         const Rows& rows) {
    ASSERT_EQ(got.size(), want.size());
    const int64_t row_words = std::ssize(got) / rows.total;
    const auto differs = std::ranges::mismatch(got, want).in1 - got.begin();
    ASSERT_EQ(differs, std::ssize(got))
        << "row " << differs / row_words << ", word " << differs % row_words << " of " << row_words;
  }
};

TEST_P(W4A16Gemm, DeviceUnpacksTheBitsOfExpandedWeights) {
  for (const int64_t k : {8, 64, 200, 320}) {
    const PackedMatrices m(GetParam(), 3, 64, k, static_cast<unsigned>(k));
    const DeviceMemory records = Upload(m.records), globals = Upload(m.globals);
    const DeviceMemory to(m.expanded.size() * 2);
    ExpandW4A16({.format = m.format,
                 .records = records.data(),
                 .globals = globals.as<float>(),
                 .to = to.data(),
                 .n = m.n,
                 .k = k,
                 .groups = 3},
                nullptr);
    Check(cudaDeviceSynchronize(), "expansion");
    const auto got = Download<uint16_t>(to, m.expanded.size());
    const auto differs = std::ranges::mismatch(got, m.expanded).in1 - got.begin();
    ASSERT_EQ(differs, std::ssize(got)) << "row " << differs / k << ", column " << differs % k
                                        << ", " << got[differs] << " for " << m.expanded[differs];
  }
}

TEST_P(W4A16Gemm, OneTileHasTheBitsOfExpandedWeights) {
  const PackedMatrices m(GetParam(), 1, 64, 64, 1);
  const Rows rows({3}, 64, 2);
  ExpectSame(Run(m, rows, true, nullptr), RunExpanded(m, rows, true, nullptr), rows);
}

TEST_P(W4A16Gemm, RandomGroupsHaveTheBitsOfExpandedWeights) {
  std::mt19937 random(4);
  for (const int64_t part : {64, 192, 576})
    for (const int64_t k : {64, 128, 640, 2240}) {
      std::vector<int32_t> counts = {0, 1, 16, 17, 33, 64, 0, 97, 129, 161, 192, 193, 300, 0};
      std::shuffle(counts.begin(), counts.end(), random);
      const auto groups = static_cast<int>(counts.size());
      const PackedMatrices m(GetParam(), groups, part, k, static_cast<unsigned>(random()));
      const Rows rows(counts, k, static_cast<unsigned>(random()));
      const std::vector<float> bias = kernels::Random(7).Normal(groups * m.n);
      const DeviceMemory device_bias = Upload(bias);
      for (const bool float_output : {true, false}) {
        SCOPED_TRACE(::testing::Message() << "n " << m.n << ", k " << k);
        ExpectSame(Run(m, rows, float_output, &device_bias),
                   RunExpanded(m, rows, float_output, &bias), rows);
      }
    }
}

TEST_P(W4A16Gemm, RaggedSizesHaveTheBitsOfExpandedWeights) {
  for (const int64_t part : {4, 36, 68, 100})
    for (const int64_t k : {8, 72, 136, 328}) {
      if (GetParam().format == WeightFormat::kNvfp4) continue;  // its parts must fill tiles
      const PackedMatrices m(GetParam(), 3, part, k, static_cast<unsigned>(part + k));
      const Rows rows({5, 0, 70}, k, 3);
      for (const bool float_output : {true, false})
        ExpectSame(Run(m, rows, float_output, nullptr), RunExpanded(m, rows, float_output, nullptr),
                   rows);
    }
}

TEST_P(W4A16Gemm, OnlyRowsOfThisCallAreComputed) {
  const PackedMatrices m(GetParam(), 5, 64, 320, 5);
  const Rows rows({30, 0, 400, 1, 200}, 320, 6);
  const auto want = Run(m, rows, false, nullptr);
  for (const int64_t chunk : {32, 128, 256})
    ExpectSame(Run(m, rows, false, nullptr, chunk), want, rows);
}

TEST_P(W4A16Gemm, GroupsWithoutRowsWriteNothing) {
  const PackedMatrices m(GetParam(), 2, 64, 128, 5);
  const Rows rows({0, 0}, 128, 6);
  for (const uint32_t word : Run(m, rows, true, nullptr)) ASSERT_EQ(word, kUntouched);
}

INSTANTIATE_TEST_SUITE_P(Formats, W4A16Gemm, ::testing::ValuesIn(W4A16Cases()),
                         [](const auto& info) { return info.param.name; });

TEST(W4A16GemmSizes, ThoseThatDoNotFitAreRefused) {
  W4A16GemmParams p = {.rows = 4, .n = 64, .k = 0, .groups = 1};
  EXPECT_THROW(GroupedGemmW4A16(p, nullptr), Error);
  p.k = 68;
  EXPECT_THROW(GroupedGemmW4A16(p, nullptr), Error);
  p.k = 64;
  p.n = 68;
  EXPECT_THROW(GroupedGemmW4A16(p, nullptr), Error);
  p.n = 64;
  p.groups = kMaxGemmGroups + 1;
  EXPECT_THROW(GroupedGemmW4A16(p, nullptr), Error);
}

}  // namespace
}  // namespace switchyard::cuda
