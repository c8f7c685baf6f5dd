#include <gtest/gtest.h>

#include <random>

#include "eplb/water_filling.h"

namespace switchyard {
namespace {

std::vector<double> SumsBy(std::span<const int32_t> key, std::span<const double> shares, int keys) {
  std::vector<double> sums(keys);
  for (size_t i = 0; i < shares.size(); ++i) sums[key[i]] += shares[i];
  return sums;
}

TEST(DivisionForestTest, LeavesLoadsAndBinsAndFewerSharesThanNodes) {
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    const int bins = 1 + static_cast<int>(random() % 9), groups = static_cast<int>(random() % 40);
    std::vector<int32_t> bin_of, group_of;
    std::vector<double> shares;
    for (int g = 0; g < groups; ++g)
      for (int b = 0; b < bins; ++b) {
        if (random() % 3 == 0) continue;
        bin_of.push_back(b);
        group_of.push_back(g);
        shares.push_back(random() % 4 == 0 ? 0 : 1 + static_cast<double>(random() % 50));
      }
    const auto of_groups = SumsBy(group_of, shares, groups), of_bins = SumsBy(bin_of, shares, bins);
    DivisionForest forest;
    forest.Reset(bins, groups, bin_of, group_of);
    forest.Prune(shares);
    EXPECT_EQ(SumsBy(group_of, shares, groups), of_groups);  // exact, because loads are integers
    EXPECT_EQ(SumsBy(bin_of, shares, bins), of_bins);
    int used = 0, loaded = 0;
    for (const double share : shares) {
      EXPECT_GE(share, 0);
      used += share > 0;
    }
    for (const double load : of_groups) loaded += load > 0;
    EXPECT_LE(used, loaded + bins - 1) << bins << " bins, " << groups << " groups";
  }
}

TEST(DivisionForestTest, TwoBinsShareOneExpertAtMost) {
  // Experts 0 to 3 on both bins, each divided evenly.
  const std::vector<int32_t> bin_of{0, 1, 0, 1, 0, 1, 0, 1}, group_of{0, 0, 1, 1, 2, 2, 3, 3};
  std::vector<double> shares{5, 5, 3, 3, 4, 4, 1, 1};
  DivisionForest forest;
  forest.Reset(2, 4, bin_of, group_of);
  forest.Prune(shares);
  int divided = 0;
  for (int e = 0; e < 4; ++e) divided += shares[2 * e] > 0 && shares[2 * e + 1] > 0;
  EXPECT_LE(divided, 1);
  EXPECT_EQ(SumsBy(bin_of, shares, 2), (std::vector<double>{13, 13}));
}

TEST(DivisionForestTest, NothingIsNothing) {
  DivisionForest forest;
  forest.Reset(3, 0, {}, {});
  forest.Prune({});
}

}  // namespace
}  // namespace switchyard
