#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/native/native.h"

namespace switchyard::native {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string Refusal(const Json& body) {
  try {
    ParseScale(body);
  } catch (const RequestError& error) {
    return error.param() + ": " + error.what();
  }
  return "accepted";
}

TEST(ElasticTest, FieldsOfSglangAndVllmAreAliases) {
  EXPECT_EQ(ParseScale({{"new_ep_size", 4}}).ep, 4);
  const ScaleRequest vllm = ParseScale({{"new_data_parallel_size", 2}, {"drain_timeout", 120}});
  EXPECT_EQ(vllm.dp, 2);
  EXPECT_FALSE(vllm.ep || vllm.tp || vllm.beside || vllm.restarts());
  EXPECT_EQ(ParseScale({{"new_dp_size", 2}, {"new_data_parallel_size", 2}}).dp, 2);
}

TEST(ElasticTest, RanksLeaveComeAndRestart) {
  const ScaleRequest moves = ParseScale({{"leave", {1, 3}}, {"come", 1}, {"load_beside", false}});
  EXPECT_THAT(moves.leave, ElementsAre(1, 3));
  EXPECT_EQ(moves.come, 1);
  EXPECT_EQ(moves.beside, false);
  EXPECT_THAT(ParseScale({{"restart", {2, 0}}}).restart, ElementsAre(2, 0));
  const ScaleRequest all = ParseScale({{"restart", true}});
  EXPECT_TRUE(all.restart_all);
  EXPECT_THAT(all.restart, IsEmpty());
}

TEST(ElasticTest, WrongFieldsAreRefusedByName) {
  EXPECT_THAT(Refusal({{"size", 4}}), HasSubstr("size: size is unknown, want new_tp_size"));
  EXPECT_THAT(Refusal({{"new_ep_size", 0}}), HasSubstr("new_ep_size: "));
  EXPECT_THAT(Refusal({{"drain_timeout", 0}}), HasSubstr("drain_timeout: "));
  EXPECT_THAT(Refusal({{"come", -1}}), HasSubstr("come: "));
  EXPECT_THAT(Refusal({{"restart", "yes, all"}}), HasSubstr("restart: "));
  EXPECT_THAT(Refusal({{"restart", 1}}), HasSubstr("restart: restart is 1, want true, false or"));
  EXPECT_THAT(Refusal({{"leave", 1}}), HasSubstr("leave: "));
  EXPECT_THAT(Refusal({{"new_dp_size", 2}, {"new_data_parallel_size", 4}}),
              HasSubstr("two names of one parameter"));
}

}  // namespace
}  // namespace switchyard::native
