#include "eplb/water_filling.h"

#include <numeric>
#include <random>

#include "eplb/replica_choice.h"
#include "eplb/test_loads.h"

namespace switchyard {
namespace {

// Tries all divisions of `load` tokens over the slots of each expert.
int64_t LeastMaximumByTrial(int bins, std::span<const int32_t> bin_of,
                            std::span<const int32_t> expert_of, std::vector<int32_t> left,
                            std::vector<int64_t> filled, size_t place) {
  if (place == bin_of.size()) {
    const bool all = std::ranges::all_of(left, [](int32_t tokens) { return tokens == 0; });
    return all ? *std::ranges::max_element(filled) : std::numeric_limits<int64_t>::max();
  }
  int64_t least = std::numeric_limits<int64_t>::max();
  int32_t& tokens = left[expert_of[place]];
  for (const int32_t all = tokens; tokens >= 0; --tokens) {
    filled[bin_of[place]] += all - tokens;
    least = std::min(least, LeastMaximumByTrial(bins, bin_of, expert_of, left, filled, place + 1));
    filled[bin_of[place]] -= all - tokens;
  }
  return least;
}

struct RandomLayer {
  int bins, experts;
  std::vector<int32_t> bin_of, expert_of, load;
};

RandomLayer MakeLayer(int bins, int experts, int per_bin, int most, uint32_t seed) {
  std::mt19937 random(seed);
  RandomLayer layer{bins, experts, {}, {}, {}};
  for (int p = 0; p < bins * per_bin; ++p) {
    layer.bin_of.push_back(p / per_bin);
    layer.expert_of.push_back(p < experts ? p : static_cast<int32_t>(random() % experts));
  }
  for (int e = 0; e < experts; ++e) layer.load.push_back(static_cast<int32_t>(random() % most));
  return layer;
}

std::vector<int64_t> BinLoads(const RandomLayer& layer, std::span<const int32_t> shares) {
  std::vector<int64_t> loads(layer.bins, 0);
  std::vector<int32_t> sums(layer.experts, 0);
  for (size_t p = 0; p < shares.size(); ++p) {
    EXPECT_GE(shares[p], 0);
    loads[layer.bin_of[p]] += shares[p];
    sums[layer.expert_of[p]] += shares[p];
  }
  EXPECT_EQ(sums, layer.load);
  return loads;
}

TEST(ExactBalanceTest, IsTheLeastMaximumThereIs) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    const RandomLayer layer = MakeLayer(3, 4, 2, 7, seed);
    std::vector<int32_t> shares(layer.bin_of.size());
    const int64_t least =
        ExactBalance(layer.bins, layer.bin_of, layer.expert_of, layer.load, shares);
    EXPECT_EQ(least, LeastMaximumByTrial(3, layer.bin_of, layer.expert_of, layer.load,
                                         std::vector<int64_t>(3, 0), 0))
        << seed;
    EXPECT_EQ(std::ranges::max(BinLoads(layer, shares)), least);
  }
}

TEST(WaterFillingTest, DividesEveryTokenAndComesNearTheOptimum) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    const RandomLayer layer = MakeLayer(16, 64, 6, 200, seed);
    const std::vector<double> load(layer.load.begin(), layer.load.end());
    std::vector<int32_t> shares(layer.bin_of.size());
    WaterFilling filling;
    filling.Reset(layer.bins, layer.experts, layer.bin_of, layer.expert_of);
    filling.Fill(load, 16);
    filling.Shares(shares);
    const int64_t max_load = std::ranges::max(BinLoads(layer, shares));
    // An expert with n shares counts as n − 1 divisions.
    EXPECT_LE(std::ranges::count_if(shares, [](int32_t share) { return share > 0; }),
              layer.experts + layer.bins - 1);
    const int64_t least =
        ExactBalance(layer.bins, layer.bin_of, layer.expert_of, layer.load, shares);
    EXPECT_GE(max_load, least);
    EXPECT_LE(max_load, 1.01 * least + 1) << seed;
  }
}

TEST(WaterFillingTest, PassesLoadOnOverAChainOfSharedExperts) {
  // Ranks i and i + 1 share expert i. The load of all experts with one replica is on rank 0.
  const std::vector<int32_t> bin_of{0, 0, 1, 1, 2, 2, 3}, expert_of{3, 0, 0, 1, 1, 2, 2};
  const std::vector<double> load{100, 100, 100, 100};
  WaterFilling filling;
  filling.Reset(4, 4, bin_of, expert_of);
  EXPECT_NEAR(filling.Fill(load, 50), 100, 0.1);
  EXPECT_EQ(filling.mean(), 100);
  std::vector<int32_t> shares(7);
  filling.Shares(shares);
  EXPECT_EQ(shares, (std::vector<int32_t>{100, 0, 100, 0, 100, 0, 100}));
}

TEST(WaterFillingTest, TwoReplicasOnOneBinAreOne) {
  // Expert 0 is on bin 0 twice and on bins 1 and 2; expert 1 fills bin 1.
  const std::vector<int32_t> bin_of{0, 0, 1, 1, 2}, expert_of{0, 0, 0, 1, 0};
  WaterFilling filling;
  filling.Reset(3, 2, bin_of, expert_of);
  const std::vector<double> load{120, 40};
  EXPECT_NEAR(filling.Fill(load, 8), 160.0 / 3, 1e-6);
  std::vector<int32_t> shares(5);
  filling.Shares(shares);
  EXPECT_EQ(shares[0] + shares[1] + shares[2] + shares[4], 120);
  EXPECT_LE(shares[0] + shares[1], 54);
}

TEST(WaterFillingTest, BinsWithCostsTakeEqualTimes) {
  const std::vector<int32_t> bin_of{0, 1}, expert_of{0, 0};
  const std::vector<double> load{100}, costs{1, 9};
  WaterFilling filling;
  filling.Reset(2, 1, bin_of, expert_of, 0, costs);
  EXPECT_NEAR(filling.Fill(load, 8), 90, 1e-9);
  EXPECT_NEAR(filling.mean(), 90, 1e-9);
  std::vector<int32_t> shares(2);
  filling.Shares(shares);
  EXPECT_EQ(shares, (std::vector<int32_t>{90, 10}));
}

// No rows of an expert are on a bin that takes longer than another bin with the expert: otherwise
// the slowest bin could be relieved.
TEST(WaterFillingTest, NoRowsCouldMoveToAFasterBin) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const RandomLayer layer = MakeLayer(6, 20, 6, 400, seed);
    std::mt19937 random(seed);
    std::vector<double> costs(layer.bins);
    for (double& cost : costs) cost = 1 + static_cast<double>(random() % 12);
    const std::vector<double> load(layer.load.begin(), layer.load.end());
    std::vector<int32_t> shares(layer.bin_of.size());
    WaterFilling filling;
    filling.Reset(layer.bins, layer.experts, layer.bin_of, layer.expert_of, 0, costs);
    filling.Fill(load, 400);
    filling.Shares(shares);
    const std::vector<int64_t> rows = BinLoads(layer, shares);
    const auto time = [&](int32_t bin) { return static_cast<double>(rows[bin]) * costs[bin]; };
    for (size_t p = 0; p < shares.size(); ++p)
      for (size_t q = 0; q < shares.size(); ++q)
        if (shares[p] > 1 && layer.expert_of[p] == layer.expert_of[q]) {
          EXPECT_LE(time(layer.bin_of[p]), time(layer.bin_of[q]) * 1.02 + 40) << seed;
        }
  }
}

TEST(WaterFillingTest, AnEmptyBatchIsEmptyEverywhere) {
  const std::vector<int32_t> bin_of{0, 1, -1}, expert_of{0, 0, 0};
  WaterFilling filling;
  filling.Reset(2, 1, bin_of, expert_of);
  const std::vector<double> load{0};
  EXPECT_EQ(filling.Fill(load, 4), 0);
  std::vector<int32_t> shares{9, 9, 9};
  filling.Shares(shares);
  EXPECT_EQ(shares, (std::vector<int32_t>{0, 0, 0}));
}

}  // namespace
}  // namespace switchyard
