#include "plan/step_clock.h"

#include <gmock/gmock.h>

#include <utility>
#include <vector>

#include "core/format.h"
#include "plan/test_question.h"

namespace switchyard::plan {
namespace {

// Groups with equal and with unequal rows, with and without prompts.
std::vector<std::vector<GroupRows>> Steps(int groups) {
  const auto rows = [](int64_t prompt, int64_t decode) {
    return GroupRows{.prompt = prompt,
                     .decode = decode,
                     .prompt_keys = prompt / 2,
                     .decode_keys = 1000 * decode};
  };
  std::vector<std::vector<GroupRows>> all;
  for (const auto& [first, others] :
       {std::pair{rows(0, 64), rows(0, 64)}, std::pair{rows(0, 6), rows(0, 3)},
        std::pair{rows(0, 6), rows(0, 0)}, std::pair{rows(1000, 4), rows(0, 4)},
        std::pair{rows(1000, 4), rows(1000, 4)}, std::pair{rows(200, 8), rows(100, 8)}}) {
    all.emplace_back(groups, others);
    all.back()[0] = first;
  }
  return all;
}

TEST(StepClock, TheFidelitiesAgreeOnEveryStep) {
  for (const auto& [layout, nodes] : {std::pair{"tp8-ep8-dp8-dense1-deepep", 1},
                                      {"tp8-ep8-dp8-dense1-deepep-sbo", 1},
                                      {"tp8-ep8-dp8-dense1-deepep-tbo", 1},
                                      {"tp8-ep8-dp8-dense1-deepep-tbo-sbo", 1},
                                      {"tp8-ep8-dp2-deepep", 1},
                                      {"tp8-ep8-dp8", 1},
                                      {"tp8-ep8-deepep", 1},
                                      {"tp16-ep16-dp16-dense1-deepep", 2},
                                      {"tp16-ep16-dp16-dense1-deepep-tbo", 2}}) {
    Question q = GpuQuestion("deepseek_v3", "h200", 8, nodes);
    q.config.tbo_min_tokens = 2;
    const Evaluation e = Evaluate(q, ParseLayout(layout));
    ASSERT_TRUE(e.accepted) << e.refused;
    const LayoutCosts costs(q, e.layout, e.plan);
    ShapeClock shapes(costs);
    OperationClock operations(costs);
    for (const std::vector<GroupRows>& groups : Steps(e.layout.mesh.dp))
      EXPECT_NEAR(shapes.Seconds(groups) / operations.Seconds(groups), 1, 0.05)
          << layout << ": " << groups[0].prompt << " + " << groups[0].decode << " rows";
  }
}

// The group with the most rows only decodes, but another one has a prompt.
TEST(StepClock, AStepWithOnePromptIsNoDecodeStep) {
  for (const char* layout : {"tp8-ep8-dp8-dense1-deepep", "tp8-ep8-dp8-dense1-deepep-tbo"}) {
    Question q = GpuQuestion("deepseek_v3", "h200", 8);
    q.config.tbo_min_tokens = 2;
    const Evaluation e = Evaluate(q, ParseLayout(layout));
    const LayoutCosts costs(q, e.layout, e.plan);
    std::vector<GroupRows> groups(8, {.decode = 100, .decode_keys = 100 * 600});
    groups[3] = {.prompt = 20, .decode = 80, .prompt_keys = 10, .decode_keys = 80 * 600};
    ShapeClock shapes(costs);
    OperationClock operations(costs);
    const double seconds = shapes.Seconds(groups), exact = operations.Seconds(groups);
    EXPECT_NEAR(seconds / exact, 1, 0.05) << layout << ": " << seconds << " and " << exact;
  }
}

// Calls of latent attention with few keys all take their least time, so longer steps may be equal
// too.
TEST(StepClock, EqualStepsHaveTheSameTime) {
  for (const auto& [model, longer] :
       {std::pair("qwen3_30b_a3b", 0), std::pair("deepseek_v3", 8000)}) {
    Question q = GpuQuestion(model, "h200", 8);
    const Evaluation e = Evaluate(q, ParseLayout("tp8-ep8-dp8-dense1-deepep"));
    const LayoutCosts costs(q, e.layout, e.plan);
    ShapeClock clock(costs);
    for (const int64_t keys : {20, 33, 100, 1000, 1024, 1025, 5000, 8000, 20000}) {
      SCOPED_TRACE(fmt::format("{} {}", model, keys));
      const auto of = [&](int64_t each) {
        return std::vector<GroupRows>(8, GroupRows{.decode = 7, .decode_keys = 7 * each});
      };
      const int64_t steps = clock.EqualSteps(of(keys));
      ASSERT_GE(steps, 1);
      EXPECT_EQ(clock.Seconds(of(keys)), clock.Seconds(of(keys + steps - 1)));
      if (keys >= longer)
        EXPECT_LT(clock.Seconds(of(keys)), clock.Seconds(of(keys + steps)));
      else
        EXPECT_LE(clock.Seconds(of(keys)), clock.Seconds(of(keys + steps)));
    }
  }
}

}  // namespace
}  // namespace switchyard::plan
