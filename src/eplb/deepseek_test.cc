#include <fstream>
#include <nlohmann/json.hpp>

#include "core/testing.h"
#include "eplb/planner.h"
#include "eplb/replica_choice.h"
#include "eplb/test_loads.h"

namespace switchyard {
namespace {

using nlohmann::json;

std::vector<int32_t> Flat(const json& nested) {
  if (nested.is_number()) return {nested.get<int32_t>()};
  std::vector<int32_t> flat;
  for (const json& part : nested)
    for (const int32_t value : Flat(part)) flat.push_back(value);
  return flat;
}

TEST(DeepSeekTest, GivesExactlyTheReferencesPlans) {
  std::ifstream file(std::string(SWITCHYARD_TEST_DATA) + "/eplb/deepseek_cases.json");
  const json cases = json::parse(file);
  ASSERT_EQ(cases.size(), 30u);
  for (size_t i = 0; i < cases.size(); ++i) {
    const json& c = cases[i];
    SCOPED_TRACE(i);
    const RankTopology topology{
        .ranks = c["num_ranks"], .nodes = c["num_nodes"], .groups = c["num_groups"]};
    const int layers = static_cast<int>(c["weight"].size());
    const LoadHistory loads{1, layers, static_cast<int>(c["weight"][0].size()), Flat(c["weight"])};
    const DeepSeekPlan plan =
        PlanDeepSeek(loads, topology, c["num_physical"], topology.groups % topology.nodes == 0);
    EXPECT_EQ(plan.placement.physical_to_logical, Flat(c["physical_to_logical"]));
    const ExpertLocation location(plan.placement, plan.replica);
    const auto all = location.logical_to_all_physical();
    EXPECT_EQ(std::vector<int32_t>(all.begin(), all.end()), Flat(c["logical_to_physical"]));
    const auto counts = location.valid_counts();
    EXPECT_EQ(std::vector<int32_t>(counts.begin(), counts.end()), Flat(c["logical_count"]));
  }
}

TEST(DeepSeekTest, SumsTheStepsOfARecording) {
  const LoadHistory steps = RandomLoads(5, 2, 16, 1, 1);
  LoadHistory sum{1, 2, 16, std::vector<int32_t>(32, 0)};
  for (size_t i = 0; i < steps.counts.size(); ++i) sum.counts[i % 32] += steps.counts[i];
  const RankTopology topology{.ranks = 4};
  EXPECT_EQ(PlanDeepSeek(steps, topology, 20, false).placement,
            PlanDeepSeek(sum, topology, 20, false).placement);
}

TEST(DeepSeekTest, RefusesSizesThatDoNotDivide) {
  const LoadHistory loads = RandomLoads(1, 1, 12, 1, 1);
  EXPECT_EQ(ErrorOf([&] { PlanDeepSeek(loads, {.ranks = 5}, 16, false); }),
            "deepseek: 16 slots are not divisible by 5 ranks; change the number of redundant "
            "experts, or use --eplb-algorithm yard");
  EXPECT_EQ(ErrorOf([&] { PlanDeepSeek(loads, {.ranks = 4, .nodes = 2, .groups = 3}, 16, true); }),
            "deepseek_hierarchical: 12 experts in 3 groups are not divisible by 2 nodes");
}

}  // namespace
}  // namespace switchyard
