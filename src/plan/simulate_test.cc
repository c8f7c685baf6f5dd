#include "plan/simulate.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "plan/test_question.h"

namespace switchyard::plan {
namespace {

using ::testing::HasSubstr;

Question OneGpu() {
  Question q = GpuQuestion("qwen3_30b_a3b", "h200", 1);
  q.load.input = 512;
  q.load.output = 64;
  return q;
}

TEST(Simulate, TheSameSeedGivesTheSameRun) {
  const Question q = OneGpu();
  const Evaluation e = Evaluate(q, ParseLayout("tp1"));
  const auto run = [&](uint64_t seed) {
    return SimulationText(e, Simulate(q, e, PoissonArrivals(q.load, 5, 20, seed)));
  };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(2));
}

TEST(Simulate, EveryRequestEndsAndAnIdleEngineIsAsFastAsOneRequest) {
  const Question q = OneGpu();
  const Evaluation e = Evaluate(q, ParseLayout("tp1"));
  const Simulation one = Simulate(q, e, {{0, 512, 64}, {1000, 512, 64}});
  EXPECT_EQ(one.requests, 2);
  EXPECT_EQ(one.steps, 2 * 64);  // one prefill, which gives the first token, and 63 decode steps
  const LayoutCosts costs(q, e.layout, e.plan);
  EXPECT_NEAR(one.ttft.p50, costs.Prefill(512, 512).seconds, 0.05 * one.ttft.p50);
  EXPECT_NEAR(one.itl.p50, costs.Decode(1, 544).seconds, 0.05 * one.itl.p50);
}

TEST(Simulate, ThroughputOfALongQueueIsThatOfThePlan) {
  Question q = OneGpu();
  q.config.max_running_requests = 64;
  const Evaluation e = Evaluate(q, ParseLayout("tp1"));
  std::vector<Arrival> all(2000, Arrival{0, q.load.input, q.load.output});
  const Simulation s = Simulate(q, e, all);
  EXPECT_NEAR(s.output_rate / e.best->output_rate, 1, 0.15);
  EXPECT_NEAR(s.busy, 1, 1e-6);
}

TEST(Simulate, ARequestThatNoCacheHoldsIsRefused) {
  const Question q = OneGpu();
  const Evaluation e = Evaluate(q, ParseLayout("tp1"));
  try {
    Simulate(q, e, {{0, 1 << 23, 1}});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("does not fit the cache"));
  }
}

TEST(Arrivals, PoissonArrivalsHaveTheRequestedRate) {
  const std::vector<Arrival> all = PoissonArrivals({}, 100, 100, 3);
  EXPECT_NEAR(static_cast<double>(all.size()), 10'000, 400);
}

TEST(Arrivals, ReadsTracesOfMooncakeAndAzureAndNamesWrongLines) {
  const auto file =
      std::filesystem::temp_directory_path() / ("arrivals_" + std::to_string(getpid()) + ".txt");
  const auto read = [&](const std::string& text) {
    std::ofstream(file) << text;
    return ReadArrivals(file);
  };
  const auto json = read(
      "{\"timestamp\": 1500, \"input_length\": 7, \"output_length\": 3, \"hash_ids\": [1]}\n"
      "{\"timestamp\": 500, \"input_length\": 6, \"output_length\": 2}\n");
  ASSERT_EQ(json.size(), 2u);
  EXPECT_DOUBLE_EQ(json[1].seconds, 1.0);
  EXPECT_EQ(json[0].input, 6);
  const auto csv = read(
      "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.50,10,5\r\n"
      "2023-11-16 18:15:47.00,20,6\r\n");
  ASSERT_EQ(csv.size(), 2u);
  EXPECT_DOUBLE_EQ(csv[1].seconds, 0.5);
  EXPECT_EQ(csv[1].output, 6);
  for (const char* wrong : {"{\"timestamp\": 1}\n", "x,y,z\n", "1,0,5\n", ""}) {
    try {
      read(wrong);
      FAIL() << wrong;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("--trace"));
    }
  }
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace switchyard::plan
