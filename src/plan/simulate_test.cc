#include "plan/simulate.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "core/temporary_directory.h"
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

TEST(Simulate, TheSameSeedGivesTheSameOperations) {
  Question q = GpuQuestion("qwen3_30b_a3b", "h200", 2);
  q.load.input = 512;
  q.load.output = 8;
  const Evaluation e = Evaluate(q, ParseLayout("tp2-ep2-dp2-dense1-deepep-tbo"));
  const auto run = [&](uint64_t seed) {
    return SimulationTrace(
        Simulate(q, e, PoissonArrivals(q.load, 20, 1, seed), {.fidelity = Fidelity::kOperation}));
  };
  const std::string once = run(1);
  EXPECT_THAT(once, HasSubstr("\"name\": \"dispatch\""));
  EXPECT_EQ(once, run(1));
  EXPECT_NE(once, run(2));
}

struct FidelityCase {
  const char *model, *layout;
  int per_node, nodes;
  double rate;
};

// The two fidelities of a simulation, whose results must agree.
void ExpectAgreement(const FidelityCase& c, const ExpertLoadOptions& loads,
                     const EplbOptions& eplb = {}) {
  Question q = GpuQuestion(c.model, "h200", c.per_node, c.nodes);
  q.config.tbo_min_tokens = 2;
  q.config.eplb = eplb;
  q.load.input = 1000;
  q.load.output = 50;
  const Evaluation e = Evaluate(q, ParseLayout(c.layout));
  ASSERT_TRUE(e.accepted) << e.refused;
  const std::vector<Arrival> arrivals = PoissonArrivals(q.load, c.rate, 20, 3);
  SimulationOptions options{.fidelity = Fidelity::kStep, .expert_loads = loads};
  const Simulation steps = Simulate(q, e, arrivals, options);
  options.fidelity = Fidelity::kOperation;
  const Simulation operations = Simulate(q, e, arrivals, options);
  const auto compare = [&](const char* what, double a, double b) {
    std::printf("%-40s %-16s step %9.4f, operation %9.4f, %+5.1f %%\n", c.layout, what, a, b,
                100 * (a / b - 1));
    EXPECT_NEAR(a / b, 1, 0.05) << c.layout << " " << loads.source << " " << what;
  };
  compare("seconds", steps.seconds, operations.seconds);
  compare("output rate", steps.output_rate, operations.output_rate);
  compare("busy", steps.busy, operations.busy);
  compare("itl p50", steps.itl.p50, operations.itl.p50);
  compare("latency p50", steps.latency.p50, operations.latency.p50);
}

// The two fidelities differ in groups with different rows, and in roundings. Engines of DeepSeek-V3
// are near saturation.
TEST(Simulate, TheFidelitiesAgree) {
  for (const FidelityCase& c : {FidelityCase{"qwen3_30b_a3b", "tp1", 1, 1, 8},
                                {"qwen3_30b_a3b", "tp2-ep2", 2, 1, 12},
                                {"qwen3_30b_a3b", "tp2-ep2-dp2", 2, 1, 12},
                                {"qwen3_30b_a3b", "tp4-ep4-dp4-dense1-deepep", 4, 1, 20},
                                {"qwen3_30b_a3b", "tp4-ep4-dp4-dense1-deepep-tbo", 4, 1, 20},
                                {"qwen3_30b_a3b", "tp1-pp4", 4, 1, 12},
                                {"qwen3_30b_a3b", "tp2-pp2-ep2-dp2-dense1-deepep", 4, 1, 12},
                                {"deepseek_v3", "tp4-pp2-ep4-dp4-dense1-deepep", 8, 1, 3},
                                {"deepseek_v3", "tp8-ep8-deepep", 8, 1, 4},
                                {"deepseek_v3", "tp8-ep8-dp8-dense1-deepep", 8, 1, 5},
                                {"deepseek_v3", "tp8-ep8-dp8-dense1-deepep-tbo", 8, 1, 5},
                                {"deepseek_v3", "tp8-ep8-dp8-dense1-deepep-sbo", 8, 1, 5},
                                {"deepseek_v3", "tp8-ep8-dp8-dense1-deepep-sbo", 8, 1, 6.5},
                                {"deepseek_v3", "tp16-ep16-dp16-dense1-deepep-tbo", 8, 2, 8}})
    ExpectAgreement(c, {});
}

TEST(Simulate, TheFidelitiesAgreeWithExpertLoads) {
  const ExpertLoadOptions zipf{.source = "zipf:0.8", .drift_seconds = 20, .seed = 5};
  ExpectAgreement({"qwen3_30b_a3b", "tp4-ep2-dp2", 4, 1, 15}, zipf);
  ExpectAgreement({"qwen3_30b_a3b", "tp4-ep4-dp4-dense1-deepep-tbo", 4, 1, 20}, zipf);
  ExpectAgreement({"qwen3_30b_a3b", "tp4-ep4-dp4-dense1-deepep-red4", 4, 1, 20}, zipf,
                  {.enable = true, .num_iterations = 200, .dispatch = "balanced"});
  ExpectAgreement({"deepseek_v3", "tp8-ep8-dp8-dense1-deepep-sbo", 8, 1, 3}, zipf);
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
  try {
    PoissonArrivals({}, 1e12, 1, 3);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("--rate"));
  }
}

TEST(Arrivals, ReadsTracesOfMooncakeAndAzureAndNamesWrongLines) {
  const TemporaryDirectory directory;
  const std::filesystem::path file = directory.path() / "arrivals.txt";
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
  const auto later = read("2024-05-31 23:59:59.5+00:00,7,2\n2024-06-01 00:00:00.5+00:00,8,3\n");
  ASSERT_EQ(later.size(), 2u);
  EXPECT_DOUBLE_EQ(later[1].seconds, 1.0);
  const char* const negative =
      "{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [-1]}\n";
  for (const char* wrong :
       {"{\"timestamp\": 1}\n", "x,y,z\n", "1,0,5\n", "", "nan,1,1\n", "2024-13-01 00:00:00,1,1\n",
        "TIMESTAMP,GeneratedTokens\n1,1,1\n", negative}) {
    try {
      read(wrong);
      FAIL() << wrong;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("--trace"));
    }
  }
}

}  // namespace
}  // namespace switchyard::plan
