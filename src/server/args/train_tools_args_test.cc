#include <gmock/gmock.h>

#include "core/testing.h"
#include "server/args/train_args.h"

namespace switchyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(TrainToolsArgsTest, Score) {
  const auto args =
      ParseTrainScore({"--model", "m", "--data", "a", "b", "--chat-loss", "all", "--threads", "2"});
  ASSERT_TRUE(args);
  EXPECT_THAT(args->data, ElementsAre("a", "b"));
  EXPECT_EQ(args->chat_loss, "all");
  EXPECT_EQ(args->threads, 2);
  EXPECT_EQ(args->routing_replay, "on");
  const auto other = ParseTrainScore(
      {"--model", "m", "--data", "a", "--routing-replay", "off", "--token-output", "t"});
  ASSERT_TRUE(other);
  EXPECT_EQ(other->routing_replay, "off");
  EXPECT_EQ(other->token_output, "t");
  EXPECT_THAT(ErrorOf([] { ParseTrainScore({"--data", "a"}); }), HasSubstr("--model"));
  EXPECT_THAT(ErrorOf([] { ParseTrainScore({"--modle", "a"}); }), HasSubstr("nearest is --model"));
}

TEST(TrainToolsArgsTest, Picture) {
  const auto args = ParseTrainPicture(
      {"a", "b", "--labels", "one", "two", "--output", "x.svg", "--low", "0", "--high", "1"});
  ASSERT_TRUE(args);
  EXPECT_THAT(args->logs, ElementsAre("a", "b"));
  EXPECT_THAT(args->labels, ElementsAre("one", "two"));
  EXPECT_EQ(args->low, 0.0);
  EXPECT_EQ(args->key, "loss");
  EXPECT_THAT(ErrorOf([] {
                ParseTrainPicture({"a", "--output", "x", "--labels", "1", "2"});
              }),
              HasSubstr("--labels: 2 labels for 1 logs"));
  EXPECT_THAT(ErrorOf([] {
                ParseTrainPicture({"a", "--output", "x", "--low", "1", "--high", "0"});
              }),
              HasSubstr("--low 1 is not below --high 0"));
}

}  // namespace
}  // namespace switchyard
