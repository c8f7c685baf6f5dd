#include "plan/decode_bound.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace switchyard::plan {
namespace {

TEST(DecodeBoundTest, IsTheSlowerSideOfTheStep) {
  // 10 bytes/s of attending ranks and 2 of the others; a dense layer and two layers with experts.
  SplitReads reads{.dense = 20,
                   .shared = 8,
                   .attending_expert = 3,
                   .other_expert = 4,
                   .attending_rate = 10,
                   .other_rate = 2,
                   .layers = {{}, {.attending = 2, .others = 1}, {.attending = 6, .others = 0}}};
  const SplitBound bound = BoundOf(reads);
  EXPECT_DOUBLE_EQ(bound.attending_bytes, 20 + 8 + 8 * 3);
  EXPECT_DOUBLE_EQ(bound.other_bytes, 4);
  EXPECT_DOUBLE_EQ(bound.seconds, 5.2);  // 52 / 10 > 4 / 2
  EXPECT_DOUBLE_EQ(bound.in_order, 2 + 2 + 2.2);
  // Whole layers: the attending ranks read 3 experts of the first layer with experts.
  const SplitBound layers = BoundOf(ByLayers(reads, 1));
  EXPECT_DOUBLE_EQ(layers.attending_bytes, 20 + 8 + 3 * 3);
  EXPECT_DOUBLE_EQ(layers.other_bytes, 6 * 4);
  EXPECT_DOUBLE_EQ(layers.seconds, 12);
  EXPECT_DOUBLE_EQ(layers.in_order, 2 + 1.3 + 12);
  EXPECT_DOUBLE_EQ(BoundOf(ByLayers(reads, 2)).other_bytes, 0);
  reads.layers.clear();
  EXPECT_DOUBLE_EQ(BoundOf(reads).in_order, 2.8);
  EXPECT_DOUBLE_EQ(BoundOf(reads).seconds, 2.8);
}

TEST(DecodeBoundTest, LayersInOrderTakeAtLeastAsLong) {
  std::mt19937 random(3);
  const auto below = [&](int n) { return static_cast<double>(random() % n); };
  for (int round = 0; round < 200; ++round) {
    SplitReads reads{.dense = below(1000),
                     .shared = below(100),
                     .attending_expert = 1 + below(9),
                     .other_expert = 1 + below(9),
                     .attending_rate = 1 + below(100),
                     .other_rate = 1 + below(20)};
    for (int layer = 0; layer < round % 7; ++layer)
      reads.layers.push_back({.attending = below(5), .others = below(5)});
    const SplitBound bound = BoundOf(reads);
    EXPECT_GE(bound.in_order, bound.seconds * (1 - 1e-12));
    const SplitBound none = BoundOf(ByLayers(reads, 0)), all = BoundOf(ByLayers(reads, 7));
    EXPECT_DOUBLE_EQ(none.attending_bytes, reads.dense + reads.shared);
    EXPECT_EQ(all.other_bytes, 0);
    EXPECT_NEAR(all.in_order, all.seconds, 1e-9 * all.seconds);
  }
}

TEST(DecodeBoundTest, ExpertsOfAPassCountOnceForTheRankThatHoldsThem) {
  std::mt19937 random(5);
  for (int round = 0; round < 50; ++round) {
    const int64_t layers = 1 + random() % 4, experts = 2 + random() % 12;
    const int64_t top_k = 1 + random() % std::min<int64_t>(experts, 4), dense = random() % layers;
    // Random placements with copies: `attending` slots, then one slot of each expert.
    const int64_t attending = random() % (experts + 1), physical = attending + experts;
    std::vector<int32_t> slots;
    for (int64_t i = 0; i < layers * physical; ++i) {
      const int64_t slot = i % physical, layer = i / physical;
      const int64_t expert =
          slot < attending ? static_cast<int64_t>(random() % experts) : slot - attending;
      slots.push_back(layer == dense ? -1 : static_cast<int32_t>(expert));
    }
    const std::vector<bool> held = HeldByAttending(slots, layers, attending, experts);
    ChosenExperts chosen(layers, experts);
    std::vector<double> want_here(layers), want_there(layers);
    double rows_here = 0, rows = 0;
    const int passes = 1 + static_cast<int>(random() % 3);
    for (int pass = 0; pass < passes; ++pass) {
      std::vector<int32_t> routed;
      const int64_t tokens = random() % 6;
      for (int64_t i = 0; i < tokens * layers * top_k; ++i)
        routed.push_back(i / top_k % layers == dense
                             ? -1
                             : static_cast<int32_t>(random() % (experts + 1)));  // one beyond
      chosen.Add(routed, top_k, held);
      std::vector<std::set<int32_t>> here(layers), there(layers);
      for (int64_t i = 0; i < std::ssize(routed); ++i) {
        if (routed[i] < 0 || routed[i] >= experts) continue;
        const int64_t layer = i / top_k % layers;
        const auto* row = slots.data() + layer * physical;
        const bool is_here = std::find(row, row + attending, routed[i]) != row + attending;
        (is_here ? here : there)[layer].insert(routed[i]);
        rows += 1;
        rows_here += is_here ? 1 : 0;
      }
      for (int64_t layer = 0; layer < layers; ++layer) {
        want_here[layer] += static_cast<double>(here[layer].size()) / passes;
        want_there[layer] += static_cast<double>(there[layer].size()) / passes;
      }
    }
    EXPECT_EQ(chosen.passes(), passes);
    const std::vector<ExpertReads> mean = chosen.Mean();
    for (int64_t layer = 0; layer < layers; ++layer) {
      EXPECT_NEAR(mean[layer].attending, want_here[layer], 1e-12);
      EXPECT_NEAR(mean[layer].others, want_there[layer], 1e-12);
    }
    EXPECT_DOUBLE_EQ(chosen.AttendingRows(), rows > 0 ? rows_here / rows : 0);
  }
  EXPECT_EQ(ChosenExperts(2, 4).Mean()[1].sum(), 0);
}

}  // namespace
}  // namespace switchyard::plan
