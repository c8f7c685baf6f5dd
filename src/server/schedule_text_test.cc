#include <gmock/gmock.h>

#include "server/serve.h"

namespace switchyard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

EngineConfig ConfigOf(const std::string& fixture) {
  EngineConfig config;
  config.model_path = std::filesystem::path(SWITCHYARD_TEST_DATA) / "fixtures" / fixture;
  return config;
}

TEST(ServeScheduleText, HasAPrefillAndADecodeStepOfTheModelsLayers) {
  EngineConfig config = ConfigOf("deepseek_v3");  // a dense layer and two MoE layers
  const std::string text = ServeScheduleText(config);
  EXPECT_THAT(text, StartsWith("prefill, 1 micro-batch through 3 layers (2 with experts): "));
  EXPECT_THAT(text, HasSubstr("\n\ndecode, 1 micro-batch through 3 layers (2 with experts): "));
  EXPECT_THAT(text, AllOf(HasSubstr("layer 0 experts"), Not(HasSubstr("layer 0 dispatch")),
                          HasSubstr("layer 2 dispatch"), HasSubstr("layer 2 shared")));
  config.moe.waterfill = true;
  EXPECT_THAT(ServeScheduleText(config), Not(HasSubstr("shared")));
  EXPECT_THAT(ServeScheduleText(ConfigOf("qwen3_moe")), Not(HasSubstr("shared")));
}

TEST(ServeScheduleText, TwoMicroBatchesTakeTurns) {
  EngineConfig config = ConfigOf("qwen3_moe");
  config.two_batch_overlap = true;
  const std::string text = ServeScheduleText(config);
  EXPECT_THAT(text, StartsWith("prefill, 2 micro-batches through 3 layers (3 with experts), "));
  EXPECT_THAT(text, HasSubstr("0d 1d\n"));
  EXPECT_THAT(text, HasSubstr("layer 2 qkv"));
}

TEST(ServeScheduleText, TheDownProjectionRunsDuringCombineIfTheExchangeReturnsParts) {
  EngineConfig config = ConfigOf("deepseek_v3");
  config.moe.single_batch_overlap = true;
  EXPECT_THAT(ServeScheduleText(config), Not(HasSubstr("down")));
  config.moe.a2a_backend = "deepep";
  EXPECT_THAT(ServeScheduleText(config),
              AllOf(HasSubstr("layer 2 combine        0c\n"),
                    HasSubstr("layer 2 down           0c\n"), Not(HasSubstr("layer 0 down"))));
  config.two_batch_overlap = true;
  EXPECT_THAT(ServeScheduleText(config), HasSubstr("layer 2 down           0c 1c\n"));
}

}  // namespace
}  // namespace switchyard
