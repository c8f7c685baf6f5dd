// Products of stored panels with int8 rows: tiles of many rows, and edges of scales.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <vector>

#include "core/test_effort.h"
#include "kernels/packed_testing.h"
#include "kernels/reference.h"
#include "kernels/testing.h"
#include "quant/panels.h"

namespace switchyard::kernels {
namespace {

class StoredPanelsTest : public IsaTest {};

// Many rows use wide tiles of several panels, in batches, and parts of columns. Rows are gathered.
TEST_P(StoredPanelsTest, ManyGatheredRowsHaveTheBitsOfRowsAlone) {
  if (!HasFourBitProducts(GetParam())) GTEST_SKIP() << "rounded rows are multiplied in float32";
  Random random(4);
  ThreadPool one(1), three(3);
  // 11 parts of columns, and 7 panels, the last of which has 4 rows.
  constexpr int64_t kHidden = 1300, kWidth = 100, kTokens = 70;
  for (const PackedKind& kind : kPackedKinds) {
    if (!HasPanels(kind.format)) continue;
    const std::vector<ExpertWeights> experts = {
        {.gate = MakePackedWeight(random, kind, kWidth, kHidden),
         .up = MakePackedWeight(random, kind, kWidth, kHidden),
         .down = MakePackedWeight(random, kind, kHidden, kWidth)}};
    const std::vector<float> x = random.Normal(kTokens * kHidden);
    for (const int32_t rows : {9, 11, 13, 19, FewerIfSanitized(197, 8)}) {
      std::vector<int32_t> ids(rows);
      for (int32_t& id : ids) id = static_cast<int32_t>(random.Below(kTokens));
      const std::vector<int32_t> offsets = {0, rows}, single = {0, 1};
      std::vector<float> scratch(rows * kWidth), all(rows * kHidden), alone(kHidden);
      GroupedMlpParams p = {.x = x.data(),
                            .ldx = kHidden,
                            .row_ids = ids.data(),
                            .experts = experts,
                            .offsets = offsets,
                            .scratch = scratch.data(),
                            .out = all.data(),
                            .ldo = kHidden};
      GroupedMlp(p, three);
      p.offsets = single;
      p.out = alone.data();
      for (int32_t i = 0; i < rows; i += rows < 20 ? 1 : 7) {
        p.row_ids = &ids[i];
        GroupedMlp(p, one);
        ASSERT_TRUE(SameBits(alone.data(), &all[i * kHidden], kHidden))
            << PackedCase(kind, rows, kWidth, kHidden, 0) << " row " << i;
      }
    }
  }
}

// The smallest and the largest exponents of MXFP4 in panels. The first part has an ordinary
// exponent in the first rows, and the exponent of the second part in the others.
TEST_P(StoredPanelsTest, BlockExponentsOfPanelsKeepTheirValues) {
  ThreadPool pool(1);
  constexpr int64_t kDepth = 2 * kPanelColumns;
  const uint8_t exponents[] = {0, 1, 2, 60, 127, 200, 254, 255};
  constexpr int64_t kCount = std::size(exponents), kColumns = 4 * kCount;
  const auto exponent = [&](int64_t j, int64_t part) {
    return part == 0 && j < kColumns / 2 ? uint8_t{100} : exponents[j % kCount];
  };
  std::vector<uint8_t> panels(PanelMatrixBytes(WeightFormat::kMxfp4Panels, 128, kColumns, kDepth));
  for (int64_t j = 0; j < kColumns; ++j) {
    for (int64_t part = 0; part < 2; ++part) {
      PanelRow row{};
      std::fill(std::begin(row.codes), std::end(row.codes), uint8_t{0x22});  // 1
      std::fill_n(row.scales, 4, exponent(j, part));
      PutPanelRow(WeightFormat::kMxfp4Panels, 128, kDepth, j, part, row, panels.data());
    }
  }
  for (const int64_t m : {1, 2, 4, 8, 9, 13}) {
    const std::vector<float> x(m * kDepth, 127.0f / 1024);
    std::vector<float> y(m * kColumns);
    Linear({.x = x.data(),
            .ldx = kDepth,
            .w = {.format = WeightFormat::kMxfp4Panels,
                  .data = panels.data(),
                  .group_size = 128,
                  .activation = ActivationFormat::kInt8Group,
                  .stored_k = kDepth,
                  .n = kColumns,
                  .k = kDepth},
            .y = y.data(),
            .ldy = kColumns,
            .m = m},
           pool);
    for (int64_t i = 0; i < m * kColumns; ++i) {
      const int64_t j = i % kColumns;
      if (exponent(j, 1) == 255) {
        EXPECT_TRUE(std::isnan(y[i])) << "rows " << m;
        continue;
      }
      const double sum = double{FromE8M0(exponent(j, 0))} + FromE8M0(exponent(j, 1));
      const double want = kPanelColumns * 127.0 / 1024 * sum;
      if (want > 3.4e38) continue;
      EXPECT_NEAR(y[i], want, 1e-4 * want) << int{exponent(j, 1)} << " rows " << m;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, StoredPanelsTest, EveryIsa(), IsaName);

}  // namespace
}  // namespace switchyard::kernels
