#include "kernels/cpu/heuristics.h"

#include <gtest/gtest.h>

#include "kernels/cpu/leaves.h"

namespace switchyard::kernels::cpu {
namespace {

TEST(HeuristicsTest, PanelsAreWholePartsOfATask) {
  // A task that ended inside a panel would leave part of its registers idle.
  EXPECT_EQ(kExpertTaskColumns % kMostPanelCols, 0);
  EXPECT_EQ(kExpertTaskColumns % kPanelRows, 0);
}

TEST(HeuristicsTest, PanelsOfUsualDepthsFitTheCaches) {
  constexpr int64_t kL2 = 1 << 20, kDeep = 4096;
  // A panel in use and the next one on its way, with room for rows of x.
  EXPECT_LE(2 * kMostPanelCols * kDeep, kL2 / 2);
  EXPECT_LE(kPanelRows * kDeep * static_cast<int64_t>(sizeof(float)), kL2 / 2);
}

TEST(HeuristicsTest, RowsThatArePackedForPayForIt) {
  constexpr int64_t kRowsThatPackingCosts = 5;
  EXPECT_GE(kInt8PanelFewestRows, 4 * kRowsThatPackingCosts);
}

TEST(HeuristicsTest, PartsOfKeysAreWholeBlocks) {
  // Else which keys are in a block together would depend on where a task begins.
  EXPECT_EQ(kKeyPart % kKeyBlock, 0);
}

}  // namespace
}  // namespace switchyard::kernels::cpu
