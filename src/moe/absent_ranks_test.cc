// Layers in epochs without some ranks: outputs are the same, bit for bit, as on one rank.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>

#include "moe/placement/active_placement.h"
#include "moe/test_layer.h"

namespace switchyard {
namespace {

using kernels::SameBits;

// Outputs of all groups in the order of the active ranks. Each rank is an attention group.
std::vector<float> RunWithout(const TestLayer& layer, const MoeOptions& options, int world,
                              const std::vector<int>& active, const std::vector<TestPass>& passes) {
  std::vector<int> absent;
  for (int rank = 0; rank < world; ++rank) {
    if (std::ranges::find(active, rank) == active.end()) absent.push_back(rank);
  }
  const int ranks = static_cast<int>(active.size());
  const MeshShape mesh{.tp = ranks, .ep = ranks, .dp = ranks};
  const auto arena =
      SharedArena::Create(world, RankComm::BytesPerRank(mesh) +
                                     MoeSymmetricBytes(options, ShapeFor(layer, passes), mesh));
  arena->EnableEpochs();
  arena->BeginEpoch("", absent);
  std::vector<std::vector<float>> outputs(active.size());
  std::vector<std::jthread> threads;
  for (size_t i = 0; i < active.size(); ++i) {
    threads.emplace_back([&, i] {
      const auto comm = RankComm::Create(arena, mesh, active[i], {std::chrono::seconds(60)});
      ThreadPool pool(1);
      outputs[i] = RunPassesOnRank(layer, options, passes, *comm, pool);
    });
  }
  threads.clear();
  for (const int rank : absent) EXPECT_FALSE(arena->Joined(rank));
  // From [group][pass] to [pass][group].
  std::vector<float> all;
  std::vector<size_t> next(active.size());
  for (const TestPass& pass : passes) {
    for (size_t group = 0; group < active.size(); ++group) {
      const auto begin = outputs[group].begin() + static_cast<std::ptrdiff_t>(next[group]);
      const auto count = static_cast<size_t>(pass.tokens[group] * layer.spec.hidden);
      all.insert(all.end(), begin, begin + static_cast<std::ptrdiff_t>(count));
      next[group] += count;
    }
  }
  return all;
}

TEST(AbsentRanksTest, OutputsDoNotDependOnWhichRanksServe) {
  std::mt19937 random(17);
  const TestLayer layer(
      {.format = WeightFormat::kBF16, .hidden = 96, .intermediate = 64, .shared = true});
  const int experts = static_cast<int>(layer.spec.num_experts);
  for (const A2aChoice& choice : AllA2aChoices()) {
    if (choice.a2a == "none") continue;
    for (const int redundant : {0, 4}) {
      const int world = 2 + static_cast<int>(random() % 4);
      std::vector<int> active;
      for (int rank = 0; rank < world; ++rank) {
        if (random() % 3 != 0) active.push_back(rank);
      }
      if (active.empty()) active.push_back(world - 1);
      const int ranks = static_cast<int>(active.size());
      const std::vector<ExpertPlacement> whole{ExpertPlacement::Trivial(experts, redundant)};
      TestLayer moved = layer;
      moved.config.placement = PlacementsOfActive(whole, world, active)[0];
      MoeOptions options{.a2a_backend = choice.a2a,
                         .deepep_mode = choice.mode,
                         .waterfill = choice.a2a == "deepep" && redundant > 0,
                         .row_dtype = DType::kBF16};
      MoeOptions plain{.a2a_backend = options.waterfill ? "deepep" : "none",
                       .waterfill = options.waterfill,
                       .row_dtype = DType::kBF16};
      options.num_redundant_experts = moved.config.placement.num_physical() - experts;
      for (const bool decode : {false, true}) {
        SCOPED_TRACE(fmt::format("{} {}, {} of {} ranks, {} redundant experts, decode {}",
                                 choice.a2a, choice.mode, ranks, world, redundant, decode));
        const std::vector<int64_t> totals{24, 1, 7};
        EXPECT_TRUE(
            SameBits(RunWithout(moved, options, world, active, SpreadPasses(totals, ranks, decode)),
                     RunPasses(layer, plain, {}, SpreadPasses(totals, 1, false))));
      }
    }
  }
}

}  // namespace
}  // namespace switchyard
