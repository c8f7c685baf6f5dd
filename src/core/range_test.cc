#include "core/range.h"

#include <gtest/gtest.h>

namespace switchyard {
namespace {

TEST(RangeTest, PartsCoverAllItemsInOrder) {
  for (int64_t total = 0; total < 40; ++total) {
    for (const int64_t unit : {1, 2, 3, 16}) {
      for (int64_t parts = 1; parts < 10; ++parts) {
        const int64_t units = (total + unit - 1) / unit;
        const int64_t used = units < parts ? 1 : unit;
        int64_t end = 0, longest = 0, before = total;
        for (int64_t part = 0; part < parts; ++part) {
          const Range range = EvenPart(total, parts, part, unit);
          EXPECT_EQ(range.begin, end);
          EXPECT_EQ(range.begin % used == 0 || range.begin == total, true);
          EXPECT_LE(range.size(), before) << "longer ranges come first";
          end = range.end, before = range.size(), longest = std::max(longest, before);
        }
        EXPECT_EQ(end, total);
        EXPECT_LE(longest - before, 2 * used - 1);  // one unit, and what the last unit lacks
      }
    }
  }
}

TEST(RangeTest, UnitsAreNotSplitIfThereAreEnough) {
  EXPECT_EQ(EvenPart(2880, 8, 0, 16).size(), 23 * 16);
  EXPECT_EQ(EvenPart(2880, 8, 7, 16).size(), 22 * 16);
  EXPECT_EQ(EvenPart(20, 4, 1, 16).size(), 5);
}

}  // namespace
}  // namespace switchyard
