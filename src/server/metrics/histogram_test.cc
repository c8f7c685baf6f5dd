#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "server/metrics/page.h"

namespace switchyard::metrics {
namespace {

using ::testing::ElementsAre;

TEST(HistogramTest, ABucketIncludesItsBound) {
  Histogram histogram({2, 1, 2});
  for (const double value : {0.5, 1.0, 1.5, 2.0, 3.0}) histogram.Observe(value);
  const HistogramCounts counts = histogram.Read();
  EXPECT_THAT(counts.bounds, ElementsAre(1, 2));
  EXPECT_THAT(counts.buckets, ElementsAre(2, 2, 1));
  EXPECT_EQ(counts.sum, 8);
}

TEST(HistogramTest, OneValueMayCountSeveralTimes) {
  Histogram histogram({1});
  histogram.Observe(0.5, 4);
  EXPECT_THAT(histogram.Read().buckets, ElementsAre(4, 0));
  EXPECT_EQ(histogram.Read().sum, 2);
}

// One histogram serves metric names with different buckets.
TEST(HistogramTest, CoarserBucketsAreSumsOfFinerOnes) {
  Histogram histogram({1, 2, 3, 4});
  for (const double value : {1, 2, 3, 4, 5}) histogram.Observe(value);
  const std::vector<double> coarse = {2, 4};
  EXPECT_THAT(histogram.Read(coarse).buckets, ElementsAre(2, 2, 1));
  EXPECT_THAT(histogram.Read(std::vector<double>()).buckets, ElementsAre(5));
}

TEST(HistogramDeathTest, UnknownBoundsAreABug) {
  const Histogram histogram({1, 2});
  EXPECT_DEATH(histogram.Read(std::vector<double>{1.5}), "");
}

TEST(HistogramTest, ThreadsLoseNoValues) {
  Histogram histogram({1, 2});
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int k = 0; k < 10'000; ++k) histogram.Observe(k % 3 + 0.5);
    });
  for (std::thread& thread : threads) thread.join();
  const HistogramCounts counts = histogram.Read();
  EXPECT_EQ(counts.buckets[0] + counts.buckets[1] + counts.buckets[2], 40'000u);
}

}  // namespace
}  // namespace switchyard::metrics
