#include "plan/cost_table.h"

#include <gmock/gmock.h>

#include <cmath>
#include <vector>

#include "core/error.h"

namespace switchyard::plan {
namespace {

using ::testing::HasSubstr;

std::string ErrorOf(const std::string& json) {
  try {
    ParseCostTable(json, "t.json");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Curve, IsAPowerLawBetweenPointsAndConstantBeyond) {
  const Curve curve{.points = {{1, 10}, {100, 1000}}};
  EXPECT_DOUBLE_EQ(curve.At(0.5), 10);
  EXPECT_NEAR(curve.At(10), 100, 1e-9);
  EXPECT_DOUBLE_EQ(curve.At(1e6), 1000);
}

TEST(CostTable, AWrittenTableReadsBack) {
  const CostTable table = ShippedTable("H200");
  const std::string json = ToJson(table);
  EXPECT_EQ(ToJson(ParseCostTable(json, "t.json")), json);
}

TEST(CostTable, WrongKeysAndValuesAreNamed) {
  EXPECT_THAT(ErrorOf("{"), HasSubstr("t.json: not valid JSON"));
  EXPECT_THAT(ErrorOf(R"({"bandwith": 1})"), HasSubstr("unknown key \"bandwith\""));
  EXPECT_THAT(ErrorOf(R"({"bandwidth": -1})"), HasSubstr("bandwidth is not a number"));
  EXPECT_THAT(ErrorOf(R"({"bandwidth": 1, "products": {"bfloat16": [[2, 1], [1, 1]]}})"),
              HasSubstr("ascending order"));
  EXPECT_THAT(ErrorOf(R"({"bandwidth": 1})"), HasSubstr("products needs an entry bfloat16"));
}

TEST(CostTable, AFormatWithoutAnEntryUsesTheNextPlainerOne) {
  CostTable table;
  table.products = {{"bfloat16", {.points = {{1, 1}}}},
                    {"int8-channel", {.points = {{1, 2}}}},
                    {"int8-channel, int8-token", {.points = {{1, 3}}}}};
  EXPECT_EQ(table.ProductRate("int8-channel, int8-token", 1), 3);
  EXPECT_EQ(table.ProductRate("int8-channel, fp8-token", 1), 2);
  EXPECT_EQ(table.ProductRate("nvfp4", 1), 1);
  EXPECT_EQ(table.ExpertRate("int8-channel", 1), 2);
}

TEST(CostTable, RatesOfExpertsBetweenTwoSizesFollowFromTheSize) {
  CostTable table;
  table.experts = {{"bfloat16", {.points = {{1, 900}}}}, {"mxfp4", {.points = {{1, 70}}}}};
  table.small_experts = {{"bfloat16", {.points = {{1, 100}}}}};
  const double small = CostTable::kSmallExpert, large = CostTable::kLargeExpert;
  EXPECT_NEAR(table.ExpertRate("bfloat16", 1, small / 2), 100, 1e-9);
  EXPECT_NEAR(table.ExpertRate("bfloat16", 1, std::sqrt(small * large)), 300, 1e-9);
  EXPECT_NEAR(table.ExpertRate("bfloat16", 1, 2 * large), 900, 1e-9);
  EXPECT_EQ(table.ExpertRate("bfloat16", 1), table.ExpertRate("bfloat16", 1, large));
  EXPECT_EQ(table.ExpertRate("mxfp4", 1, small), 70);  // it has no rates of small experts
}

TEST(CostTable, WithoutChainsAllProductsHaveTheTimeOfAColumn) {
  CostTable table;
  table.chain_seconds = 3;
  EXPECT_EQ(table.ChainSeconds("bfloat16", 64), 3);
  table.chains = {{"bfloat16", {.points = {{1, 4}, {64, 5}}}}};
  EXPECT_EQ(table.ChainSeconds("bfloat16", 64), 5);
  EXPECT_EQ(table.ChainSeconds("fp8-block", 1), 4);
}

TEST(CostTable, AnUnknownCardListsTheKnownOnes) {
  try {
    ShippedTable("tpu");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("card tpu is unknown; want one of h200, h100"));
  }
}

TEST(CostTable, EveryShippedTableHasItsSource) {
  for (const std::string& name : ShippedNames()) {
    const CostTable table = ShippedTable(name);
    EXPECT_EQ(table.name, name);
    EXPECT_THAT(table.source, HasSubstr(table.measured ? "measured on H200" : "not measured"));
    EXPECT_GT(table.memory_bytes, 1e9);
  }
}

TEST(CostTable, RanksThatShareADeviceHaveAShareOfItsRates) {
  const CostTable whole = CpuDefaults(8), half = whole.Shared(0.5);
  EXPECT_DOUBLE_EQ(half.ProductRate("bfloat16", 64), whole.ProductRate("bfloat16", 64) / 2);
  EXPECT_DOUBLE_EQ(half.bandwidth, whole.bandwidth / 2);
}

TEST(CostTable, MoreWorkNeverTakesLessTime) {
  const auto times_of = [](const Curve& rates) {
    std::vector<double> times;
    for (const auto& [size, rate] : rates.points) times.push_back(size / rate);
    return times;
  };
  // Seconds 2, 3, 1, 4, 3.5, 9 for sizes 1 to 32.
  const Curve noisy{
      .points = {{1, 0.5}, {2, 2.0 / 3}, {4, 4}, {8, 2}, {16, 16 / 3.5}, {32, 32 / 9.0}}};
  EXPECT_THAT(times_of(WithGrowingTimes(noisy)),
              testing::Pointwise(testing::DoubleNear(1e-12), {2.0, 2.0, 2.0, 3.75, 3.75, 9.0}));
  const Curve growing{.points = {{1, 1}, {2, 2}, {4, 3}}};
  EXPECT_EQ(WithGrowingTimes(growing).points, growing.points);
  EXPECT_TRUE(WithGrowingTimes({}).points.empty());
}

}  // namespace
}  // namespace switchyard::plan
