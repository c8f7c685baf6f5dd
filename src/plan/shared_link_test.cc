#include "plan/shared_link.h"

#include <gtest/gtest.h>

namespace switchyard::plan {
namespace {

TEST(SharedLink, ATransferAloneHasTheWholeRate) {
  SharedLink link(100);
  EXPECT_EQ(link.NextEnd(), std::numeric_limits<double>::infinity());
  link.Start(2, 50, 7);
  EXPECT_DOUBLE_EQ(link.NextEnd(), 2.5);
  EXPECT_EQ(link.End(2.5), 7);
  link.Start(10, 0, 8);
  EXPECT_DOUBLE_EQ(link.NextEnd(), 10);
}

// The second transfer starts when the first has sent half of its bytes.
TEST(SharedLink, TransfersInProgressShareTheRate) {
  SharedLink link(100);
  link.Start(0, 100, 1);
  link.Start(0.5, 100, 2);
  EXPECT_DOUBLE_EQ(link.NextEnd(), 1.5);
  EXPECT_EQ(link.End(1.5), 1);
  EXPECT_DOUBLE_EQ(link.NextEnd(), 2);  // all bytes have passed at the whole rate
  EXPECT_EQ(link.End(2), 2);
}

TEST(SharedLink, AShortTransferOvertakesALongOne) {
  SharedLink link(1);
  link.Start(0, 10, 1);
  link.Start(1, 2, 2);
  EXPECT_DOUBLE_EQ(link.NextEnd(), 5);
  EXPECT_EQ(link.End(5), 2);
  EXPECT_DOUBLE_EQ(link.NextEnd(), 12);
  EXPECT_EQ(link.End(12), 1);
}

}  // namespace
}  // namespace switchyard::plan
