// Ends of ranks in simulations.
#include "plan/failures.h"

#include <gmock/gmock.h>

#include "core/error.h"
#include "model/test_layouts.h"
#include "plan/simulate.h"
#include "plan/test_question.h"

namespace switchyard::plan {
namespace {

using ::testing::HasSubstr;

TEST(Failures, RandomOnesHaveTheRequestedRateAndTheSameSeedRepeats) {
  const auto of = [](uint64_t seed) {
    return FailuresOf({.listed = {{5, 7}}, .per_day = 2, .seed = seed}, 4, 8, 10 * 86'400);
  };
  int64_t all = 0;
  for (const std::vector<RankFailure>& engine : of(1)) {
    all += std::ssize(engine);
    EXPECT_TRUE(std::ranges::is_sorted(engine, {}, &RankFailure::seconds));
    for (const RankFailure& failure : engine) EXPECT_LT(failure.rank, 8);
  }
  EXPECT_NEAR(static_cast<double>(all), 640, 80);
  EXPECT_EQ(of(1)[2].size(), of(1)[2].size());
  EXPECT_EQ(of(1)[2].front().seconds, of(1)[2].front().seconds);
  EXPECT_NE(of(1)[2].front().seconds, of(2)[2].front().seconds);
}

TEST(Failures, WrongFlagsAreRefused) {
  for (const char* wrong : {"", "3", "3@", "@4", "-1@4", "3@x", "3@-1", "3@nan"}) {
    try {
      ParseFailure(wrong);
      FAIL() << wrong;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("want RANK@SECONDS"));
    }
  }
  EXPECT_EQ(ParseFailure("3@1.5").seconds, 1.5);
  EXPECT_THROW(FailuresOf({.listed = {{8, 1}}}, 1, 8, 10), Error);
  try {
    FailuresOf({.listed = {}, .per_day = 1e15}, 1, 8, 10);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("--fail-rate"));
  }
}

Question Gpus() {
  Question q = GpuQuestion("qwen3_30b_a3b", "h200", 2);
  q.load.input = 300;
  q.load.output = 200;
  return q;
}

Question Cpus(const std::string& backend) {
  Question q{.model = LoadModelConfig(Fixture("qwen3_moe")), .table = CpuDefaults(4)};
  q.config.model_path = Fixture("qwen3_moe");
  q.config.elastic_ep_backend = backend;
  q.config.max_total_tokens = 40'000;
  q.cluster = {.per_node = 4, .cpus = 4, .memory = 8e9};
  q.load.input = 60;
  q.load.output = 60;
  return q;
}

TEST(Failures, AllRequestsContinueAfterThePause) {
  const Question q = Gpus();
  const Evaluation e = Evaluate(q, ParseLayout("tp2-ep2"));
  ASSERT_TRUE(e.accepted) << e.refused;
  const std::vector<Arrival> arrivals = PoissonArrivals(q.load, 6, 6, 2);
  for (const Fidelity fidelity : {Fidelity::kStep, Fidelity::kOperation}) {
    SimulationOptions options{.fidelity = fidelity};
    const Simulation without = Simulate(q, e, arrivals, options);
    options.failures = {.listed = {{1, 2.5}, {0, 3}}, .restart_seconds = 4};
    const Simulation with = Simulate(q, e, arrivals, options);
    EXPECT_EQ(with.lost, 0);
    EXPECT_EQ(with.requests, without.requests);
    EXPECT_EQ(with.failures.failures, 2);
    // The second rank ends while the first one loads, so there is one pause.
    ASSERT_EQ(with.pauses.size(), 1u);
    EXPECT_NEAR(with.failures.pause_seconds, 4.5, 1e-9);
    EXPECT_GT(with.failures.aborted_seconds, 0);
    EXPECT_GT(with.failures.redone_rows, 300);  // GPUs lose their caches
    EXPECT_GT(with.latency.p99, without.latency.p99 + 4);
    EXPECT_EQ(with.failures.absent_seconds, 0);
    EXPECT_EQ(SimulationText(e, with), SimulationText(e, Simulate(q, e, arrivals, options)));
  }
}

TEST(Failures, TheCacheOfCpuRanksStays) {
  const Question q = Cpus("none");
  const Evaluation e = Evaluate(q, ParseLayout("tp2-ep2"));
  ASSERT_TRUE(e.accepted) << e.refused;
  std::vector<Arrival> arrivals(4, Arrival{0, 60, 60, {}});
  const Simulation whole = Simulate(q, e, arrivals);
  const Simulation s = Simulate(
      q, e, arrivals, {.failures = {.listed = {{1, whole.seconds / 2}}, .restart_seconds = 1}});
  EXPECT_EQ(s.lost, 0);
  EXPECT_EQ(s.failures.failures, 1);
  // Each request computes at most its last page again, and not its prompt.
  EXPECT_LE(s.failures.redone_rows, 4 * q.config.page_size);
  EXPECT_NEAR(s.seconds, whole.seconds + 1, 0.2 * whole.seconds);
}

// KeptPages keeps no pages of a model with recurrent states.
TEST(Failures, TheCacheStaysOnCpusWithoutRecurrentStates) {
  Question q = Cpus("none");
  const Evaluation e = Evaluate(q, ParseLayout("tp2-ep2"));
  ASSERT_TRUE(e.accepted) << e.refused;
  q.config.eplb.enable = true;
  EXPECT_TRUE(RecoveryOf({}, q, e).keeps_cache);
  q.model.layers[0].linear = true;
  EXPECT_FALSE(RecoveryOf({}, q, e).keeps_cache);
}

TEST(Failures, OtherRanksServeWhileOneIsAbsent) {
  const Question q = Cpus("mooncake");
  const Evaluation e = Evaluate(q, ParseLayout("tp4-ep4-dp4-dense1-deepep-red4"));
  ASSERT_TRUE(e.accepted) << e.refused;
  const std::vector<Arrival> arrivals(40, Arrival{0, 60, 800, {}});
  const double half = Simulate(q, e, arrivals).seconds / 2;
  const double load = 0.1;
  ASSERT_GT(half, 2 * load);
  for (const Fidelity fidelity : {Fidelity::kStep, Fidelity::kOperation}) {
    const SimulationOptions options{.fidelity = fidelity,
                                    .expert_loads = {.source = "zipf:0.5"},
                                    .failures = {.listed = {{1, half}}, .restart_seconds = load}};
    const Simulation s = Simulate(q, e, arrivals, options);
    EXPECT_EQ(s.lost, 0);
    EXPECT_GT(s.failures.absent_seconds, 0);
    ASSERT_EQ(s.pauses.size(), 2u);  // without the rank, and with it again
    EXPECT_THAT(s.pauses[0].reason, HasSubstr("rank 1 ended"));
    EXPECT_THAT(s.pauses[1].reason, HasSubstr("all ranks serve"));
    EXPECT_LT(s.failures.pause_seconds, load);
  }
}

TEST(Failures, TheOtherRanksRebalance) {
  Question q = Cpus("mooncake");
  q.config.eplb.enable = true;
  q.config.eplb.num_iterations = 20;
  const Evaluation e = Evaluate(q, ParseLayout("tp4-ep4-dp4-dense1-deepep-red4"));
  ASSERT_TRUE(e.accepted) << e.refused;
  const std::vector<Arrival> arrivals(40, Arrival{0, 60, 800, {}});
  const ExpertLoadOptions loads = {.source = "zipf:1"};
  const double half = Simulate(q, e, arrivals, {.expert_loads = loads}).seconds / 2;
  const Simulation s = Simulate(
      q, e, arrivals,
      {.expert_loads = loads, .failures = {.listed = {{1, half}}, .restart_seconds = half / 2}});
  EXPECT_EQ(s.lost, 0);
  EXPECT_GT(s.failures.absent_seconds, 0);
}

TEST(Failures, GpusRefuseToServeWithoutARank) {
  Question q = GpuQuestion("qwen3_30b_a3b", "h200", 4);
  q.config.elastic_ep_backend = "mooncake";
  const Evaluation e = Evaluate(q, ParseLayout("tp4-ep4-dp4-dense1-deepep"));
  EXPECT_FALSE(e.accepted);
  EXPECT_THAT(e.refused, HasSubstr("--elastic-ep-backend"));
}

}  // namespace
}  // namespace switchyard::plan
