// Placements on ranks with their own slots and costs, against all placements and against PlanYard.
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "core/format.h"
#include "core/testing.h"
#include "eplb/planner.h"
#include "eplb/rank_times.h"
#include "eplb/replica_choice.h"
#include "eplb/simulate.h"
#include "eplb/test_loads.h"
#include "eplb/unequal_layer.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;

constexpr RankCost kGpu{.row = 1, .expert = 30}, kCpu{.row = 12, .expert = 500};

PlanRequest Request(const LoadHistory& loads, const RankTopology& topology, int physical,
                    const Placement* previous = nullptr) {
  return {.history = &loads, .topology = topology, .physical = physical, .previous = previous};
}

// Counts of single passes: each token chooses `k` experts with weights 1 / (rank + 1)^skew. The
// popularity of the experts is a random permutation.
LoadHistory ZipfLoads(int steps, int layers, int experts, int tokens, double skew, uint32_t seed) {
  std::mt19937 random(seed);
  LoadHistory loads{steps, layers, experts, {}};
  std::vector<std::vector<int32_t>> popular(layers, std::vector<int32_t>(experts));
  for (auto& order : popular) {
    std::iota(order.begin(), order.end(), 0);
    std::ranges::shuffle(order, random);
  }
  std::vector<double> weights;
  for (int e = 0; e < experts; ++e) weights.push_back(std::pow(e + 1.0, -skew));
  std::discrete_distribution<int> choose(weights.begin(), weights.end());
  for (int step = 0; step < steps; ++step)
    for (int layer = 0; layer < layers; ++layer) {
      std::vector<int32_t> counts(experts, 0);
      for (int i = 0; i < tokens; ++i) ++counts[popular[layer][choose(random)]];
      loads.counts.insert(loads.counts.end(), counts.begin(), counts.end());
    }
  return loads;
}

// The least time of the slowest rank over all assignments of each expert to one rank.
double LeastByTrial(const ExpertCosts& costs, std::vector<int> room, std::vector<double> times,
                    int32_t expert) {
  if (expert == costs.experts()) return std::ranges::max(times);
  double least = std::numeric_limits<double>::infinity();
  for (int bin = 0; bin < costs.bins(); ++bin) {
    if (room[bin] == 0) continue;
    --room[bin];
    times[bin] += costs.Whole(bin, expert);
    least = std::min(least, LeastByTrial(costs, room, times, expert + 1));
    times[bin] -= costs.Whole(bin, expert);
    ++room[bin];
  }
  return least;
}

TEST(UnequalRanksTest, SmallPlansAreAboutAsGoodAsTheBestPlacement) {
  std::mt19937 random(3);
  double worst = 1, sum = 0;
  constexpr int kCases = 120;
  for (int i = 0; i < kCases; ++i) {
    const int ranks = 2 + static_cast<int>(random() % 2),
              experts = 4 + static_cast<int>(random() % 5);
    RankTopology topology{.ranks = ranks, .slots = std::vector<int32_t>(ranks, 1)};
    for (int left = experts - ranks; left > 0; --left) ++topology.slots[random() % ranks];
    for (int rank = 0; rank < ranks; ++rank)
      topology.costs.push_back({.row = 1.0 + static_cast<double>(random() % 20),
                                .expert = static_cast<double>(random() % 300)});
    const LoadHistory loads = RandomLoads(1, 1, experts, 1.5, static_cast<uint32_t>(random()));
    const Placement plan = PlanUnequal(loads, topology, experts, nullptr);
    ValidatePlacement(plan, topology);
    const std::vector<RankSlots> bins = LivingSlots(topology, experts);
    std::vector<double> load(loads.counts.begin(), loads.counts.end()), touched;
    for (const double rows : load) touched.push_back(PassesWithRows(rows, 1));
    const ExpertCosts costs(bins, topology, load, touched);
    const double best = LeastByTrial(costs, {topology.slots.begin(), topology.slots.end()},
                                     std::vector<double>(ranks, 0.0), 0);
    const double time = SlowestTime(costs, BinExperts(bins, experts, plan.Layer(0)));
    EXPECT_GE(time, best * (1 - 1e-9));
    worst = std::max(worst, time / best);
    sum += time / best;
  }
  EXPECT_LT(worst, 1.15);
  EXPECT_LT(sum / kCases, 1.01);
}

TEST(UnequalRanksTest, TheHottestExpertsAreOnTheFastRank) {
  constexpr int kExperts = 64, kFast = 16;
  const LoadHistory loads = ZipfLoads(40, 2, kExperts, 4 * 8, 1.1, 7);
  const RankTopology topology{
      .ranks = 2, .slots = {kFast, kExperts - kFast}, .costs = {kGpu, kCpu}, .sources = 1};
  const Placement plan = PlanPlacement(EplbAlgorithm::kAuto, Request(loads, topology, kExperts));
  ValidatePlacement(plan, topology);
  for (int layer = 0; layer < 2; ++layer) {
    std::vector<int64_t> passes(kExperts, 0);  // with rows
    for (int step = 0; step < loads.steps; ++step)
      for (int e = 0; e < kExperts; ++e) passes[e] += loads.At(step, layer)[e] > 0 ? 1 : 0;
    const auto place = plan.Layer(layer);
    int64_t coldest = loads.steps, hottest = 0;
    for (int p = 0; p < kFast; ++p) coldest = std::min(coldest, passes[place[p]]);
    for (int p = kFast; p < kExperts; ++p) hottest = std::max(hottest, passes[place[p]]);
    EXPECT_GE(coldest + 4, hottest) << "layer " << layer;
  }
  // Against a placement by number, the slow rank reads far fewer experts.
  const Placement trivial = Placement::Trivial(2, kExperts, kExperts);
  const auto time = [&](const Placement& placement) {
    return LayerTimes(loads, placement, EpDispatchAlgorithm::kStatic, topology)[0];
  };
  EXPECT_LT(1.5 * time(plan), time(trivial));
}

// A rank with all experts, and a fast one with copies of some.
TEST(UnequalRanksTest, CopiesOfHotExpertsAreOnTheFastRank) {
  constexpr int kExperts = 48, kFast = 12;
  const LoadHistory loads = ZipfLoads(40, 1, kExperts, 32, 1.2, 5);
  const RankTopology topology{
      .ranks = 2, .slots = {kFast, kExperts}, .costs = {kGpu, kCpu}, .sources = 1};
  const Placement plan = PlanUnequal(loads, topology, kFast + kExperts, nullptr);
  ValidatePlacement(plan, topology);
  ExpectNoneTwice(plan, topology);
  const RankTopology fewer{
      .ranks = 2, .slots = {kFast, kExperts - kFast}, .costs = {kGpu, kCpu}, .sources = 1};
  const Placement once = PlanUnequal(loads, fewer, kExperts, nullptr);
  const double with = LayerTimes(loads, plan, EpDispatchAlgorithm::kStatic, topology)[0];
  const double without = LayerTimes(loads, once, EpDispatchAlgorithm::kStatic, fewer)[0];
  EXPECT_LT(with, 1.02 * without);
}

TEST(UnequalRanksTest, EqualRanksGetThePlanOfYard) {
  for (const auto& [experts, physical, ranks] :
       {std::array{16, 16, 4}, {16, 24, 8}, {64, 80, 16}}) {
    const LoadHistory loads = RandomLoads(8, 2, experts, 1.5, physical);
    const RankTopology plain{.ranks = ranks};
    RankTopology same = plain;
    same.costs.assign(ranks, {.row = 7});
    EXPECT_TRUE(same.EqualRanks());
    EXPECT_EQ(PlanPlacement(EplbAlgorithm::kYard, Request(loads, same, physical)),
              PlanYard(loads, plain, physical, nullptr));
    // With a cost of experts, plans differ, but none takes longer.
    same.costs.assign(ranks, {.row = 1, .expert = 25});
    EXPECT_FALSE(same.EqualRanks());
    const Placement unequal = PlanUnequal(loads, same, physical, nullptr);
    const Placement yard = PlanYard(loads, plain, physical, nullptr);
    ValidatePlacement(unequal, same);
    const auto sum = [&](const Placement& placement) {
      double time = 0;
      for (int layer = 0; layer < 2; ++layer) {
        const std::vector<RankSlots> bins = LivingSlots(same, physical);
        for (int step = 0; step < loads.steps; ++step) {
          const auto counts = loads.At(step, layer);
          const std::vector<double> load(counts.begin(), counts.end());
          std::vector<double> touched;
          for (const double rows : load) touched.push_back(PassesWithRows(rows, 1));
          time += SlowestTime(ExpertCosts(bins, same, load, touched),
                              BinExperts(bins, experts, placement.Layer(layer)));
        }
      }
      return time;
    };
    EXPECT_LE(sum(unequal), sum(yard) * 1.001);
  }
}

TEST(UnequalRanksTest, AGoodPlacementStaysAndAShiftMovesFewExperts) {
  constexpr int kExperts = 64;
  const RankTopology topology{
      .ranks = 3, .slots = {12, 20, 32}, .costs = {kGpu, kCpu, kCpu}, .sources = 1};
  const LoadHistory loads = ZipfLoads(80, 1, kExperts, 32, 1.1, 11);
  const Placement first = PlanUnequal(loads.Steps(0, 40), topology, kExperts, nullptr);
  const Placement second = PlanUnequal(loads.Steps(40, 80), topology, kExperts, &first);
  ValidatePlacement(second, topology);
  EXPECT_LE(CountMoves(first, second, topology).total(), 12);
  const LoadHistory other = ZipfLoads(40, 1, kExperts, 32, 1.1, 12);
  const Placement third = PlanUnequal(other, topology, kExperts, &first);
  ValidatePlacement(third, topology);
  const auto time = [&](const Placement& placement) {
    return LayerTimes(other, placement, EpDispatchAlgorithm::kStatic, topology)[0];
  };
  EXPECT_LT(time(third), 0.8 * time(first));
}

// The same shift of the load: moves that take longer than they gain are not planned.
TEST(UnequalRanksTest, ExpensiveMovesAreNotPlanned) {
  constexpr int kExperts = 64;
  const LoadHistory loads = ZipfLoads(40, 1, kExperts, 32, 1.1, 11);
  const LoadHistory other = ZipfLoads(40, 1, kExperts, 32, 1.1, 12);
  const auto moves = [&](double move) {
    RankTopology topology{.ranks = 2, .slots = {20, 44}, .costs = {kGpu, kCpu}, .sources = 1};
    const Placement first = PlanUnequal(loads, topology, kExperts, nullptr);
    for (RankCost& cost : topology.costs) cost.move = move;
    const Placement second = PlanUnequal(other, topology, kExperts, &first);
    ValidatePlacement(second, topology);
    return CountMoves(first, second, topology).total();
  };
  EXPECT_GT(moves(1e-3), 0);
  EXPECT_EQ(moves(1e9), 0);
}

TEST(UnequalRanksTest, EveryExpertHasASlotOnRandomRanks) {
  std::mt19937 random(9);
  for (uint32_t seed = 0; seed < 40; ++seed) {
    const int ranks = 1 + static_cast<int>(random() % 5),
              experts = 1 + static_cast<int>(random() % 30);
    RankTopology topology{.ranks = ranks};
    int physical = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      topology.slots.push_back(1 + static_cast<int32_t>(random() % experts));
      physical += topology.slots.back();
      topology.costs.push_back({.row = 1.0 + static_cast<double>(random() % 9),
                                .expert = static_cast<double>(random() % 50)});
    }
    if (physical < experts) continue;
    SCOPED_TRACE(fmt::format("seed {}: {} experts on {} ranks", seed, experts, ranks));
    const LoadHistory loads = ZipfLoads(3, 2, experts, 12, 1, seed);
    const Placement first = PlanUnequal(loads, topology, physical, nullptr);
    ValidatePlacement(first, topology);
    ExpectNoneTwice(first, topology);
    const Placement trivial = Placement::Trivial(2, physical, experts);
    const Placement second = PlanUnequal(loads, topology, physical, &trivial);
    ValidatePlacement(second, topology);
    ExpectNoneTwice(second, topology);
    EXPECT_EQ(second, PlanUnequal(loads, topology, physical, &trivial));
    if (ranks == 1 || physical - topology.slots[0] < experts) continue;
    topology.active.assign(ranks, 1);
    topology.active[0] = 0;
    const Placement third = PlanUnequal(loads, topology, physical, &first);
    ValidatePlacement(third, topology);
  }
}

TEST(UnequalRanksTest, ErrorsNameTheCause) {
  const LoadHistory loads = RandomLoads(1, 1, 8, 1, 1);
  const auto error = [&](EplbAlgorithm algorithm, const RankTopology& topology, int physical) {
    return ErrorOf([&] { PlanPlacement(algorithm, Request(loads, topology, physical)); });
  };
  EXPECT_THAT(error(EplbAlgorithm::kDeepSeek, {.ranks = 2, .slots = {2, 6}}, 8),
              HasSubstr("want auto or yard"));
  EXPECT_EQ(error(EplbAlgorithm::kYard, {.ranks = 2, .slots = {2, 5}}, 8),
            "the ranks have 7 expert slots together; want 8, one for each physical expert");
  EXPECT_EQ(error(EplbAlgorithm::kYard, {.ranks = 2, .slots = {8}}, 8),
            "numbers of slots of 1 ranks are given, but there are 2");
  EXPECT_EQ(error(EplbAlgorithm::kYard, {.ranks = 2, .slots = {0, 8}}, 8),
            "a rank has 0 expert slots; want at least 1");
  EXPECT_EQ(error(EplbAlgorithm::kYard, {.ranks = 2, .slots = {1, 9}}, 10),
            "rank 1 has 9 slots for 8 experts: it would hold an expert twice");
  EXPECT_EQ(error(EplbAlgorithm::kYard, {.ranks = 2, .costs = {kGpu}}, 8),
            "costs of 1 ranks are given, but there are 2");
  EXPECT_THAT(error(EplbAlgorithm::kYard, {.ranks = 2, .costs = {kGpu, {.row = 0}}}, 8),
              HasSubstr("want positive numbers"));
}

}  // namespace
}  // namespace switchyard
