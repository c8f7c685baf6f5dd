#include <gtest/gtest.h>

#include <limits>

#include "server/front/served_model.h"

namespace switchyard {
namespace {

// Four attention groups that run two requests each.
int32_t MaxOpen(int32_t max_queued, int64_t queued_per_running) {
  ServerArgs args;
  args.engine.max_queued_requests = max_queued;
  args.engine.mesh.dp = 4;
  return FrontLimits(args, {.max_running_requests = 2}, queued_per_running).max_open;
}

TEST(FrontSetupTest, LimitsTheOpenRequests) {
  EXPECT_EQ(MaxOpen(-1, 16), 8 + 16 * 8);
  EXPECT_EQ(MaxOpen(-1, 0), 0);
  for (const int64_t queued_per_running : {0, 16}) {
    EXPECT_EQ(MaxOpen(0, queued_per_running), 0);
    EXPECT_EQ(MaxOpen(5, queued_per_running), 13);
    constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
    EXPECT_EQ(MaxOpen(kMost, queued_per_running), kMost);
  }
}

TEST(FrontSetupTest, FlagsChooseTheWhiteSpaceOfJson) {
  ServerArgs args;
  args.engine.model_path = SWITCHYARD_TEST_DATA "/fixtures/qwen3_moe";
  const ServedModel model = LoadServedModel(args, LoadModelConfig(args.engine.model_path));
  EXPECT_EQ(MakeGrammars(args, model)->space(), JsonSpace::kAny);
  args.json_whitespace = "";
  EXPECT_EQ(MakeGrammars(args, model)->space(), JsonSpace::kNone);
  args.json_disable_any_whitespace = true;
  EXPECT_EQ(MakeGrammars(args, model)->space(), JsonSpace::kPython);
  args.grammar_backend = "none";
  EXPECT_EQ(MakeGrammars(args, model), nullptr);
}

}  // namespace
}  // namespace switchyard
