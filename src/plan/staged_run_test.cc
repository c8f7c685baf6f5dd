// Simulations of layouts with pipeline stages.
#include "plan/staged_run.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "core/format.h"
#include "plan/test_question.h"

namespace switchyard::plan {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::Ge;
using ::testing::HasSubstr;

// A simulation on CPUs, one for each rank.
struct OnCpus {
  Question question;
  Evaluation evaluation;

  OnCpus(const std::string& layout, int ranks, const EngineConfig& config = {})
      : question(CpuQuestion("qwen3_30b_a3b", ranks, 256)) {
    const std::filesystem::path model = question.config.model_path;
    question.config = config;
    question.config.model_path = model;
    evaluation = Evaluate(question, ParseLayout(layout));
    EXPECT_TRUE(evaluation.accepted) << layout << ": " << evaluation.refused;
  }
  Simulation Run(const std::vector<Arrival>& arrivals,
                 const SimulationOptions& options = {}) const {
    return Simulate(question, evaluation, arrivals, options);
  }
};

// A stage runs one pass at a time, in order, and only after the stage before.
void ExpectOrder(const Simulation& s) {
  const size_t stages = s.stage_busy.size();
  ASSERT_EQ(s.first_engine.size() % stages, 0u);
  ASSERT_EQ(s.first_engine.size() / stages, static_cast<size_t>(s.steps));
  for (size_t i = 0; i < s.first_engine.size(); ++i) {
    const Simulation::Step& step = s.first_engine[i];
    ASSERT_EQ(step.stage, static_cast<int>(i % stages));
    ASSERT_GT(step.seconds, 0);
    if (step.stage > 0) {
      const Simulation::Step& before = s.first_engine[i - 1];
      ASSERT_GE(step.start, before.start + before.seconds);
      ASSERT_EQ(step.prompt_rows, before.prompt_rows);
      ASSERT_EQ(step.decode_rows, before.decode_rows);
    }
    if (i >= stages) {
      const Simulation::Step& before = s.first_engine[i - stages];
      ASSERT_GE(step.start, before.start + before.seconds);
    }
  }
}

// m chunks of a prompt keep p equal stages busy m / (m + p − 1) of the time.
TEST(StagedRun, ChunksOfAPromptFillThePipeline) {
  constexpr int64_t kChunks = 16, kRows = 256;
  for (const Fidelity fidelity : {Fidelity::kStep, Fidelity::kOperation})
    for (const int stages : {2, 4}) {
      const OnCpus cpus(fmt::format("tp1-pp{}-chunk{}", stages, kRows), stages);
      const Simulation s =
          cpus.Run(std::vector<Arrival>(1, {0, kChunks * kRows, 1}), {.fidelity = fidelity});
      EXPECT_EQ(s.steps, kChunks);
      EXPECT_EQ(s.most_in_flight, stages);
      ExpectOrder(s);
      const double bound = static_cast<double>(kChunks) / static_cast<double>(kChunks + stages - 1);
      std::printf("%d stages, %d chunks: %.3f of the bound %.3f\n", stages,
                  static_cast<int>(kChunks), s.busy / bound, bound);
      EXPECT_GE(s.busy, 0.9 * bound) << stages;
      EXPECT_LE(s.busy, bound + 0.02) << stages;
    }
}

// As many micro-batches as stages, each of 32 requests. The last stage also has the head. So with
// four stages of twelve layers, the others must wait for it for a tenth of the time.
TEST(StagedRun, MicroBatchesKeepAllStagesBusyInDecode) {
  for (const Fidelity fidelity : {Fidelity::kStep, Fidelity::kOperation})
    for (const int stages : {2, 4}) {
      const OnCpus cpus(fmt::format("tp1-pp{}", stages), stages);
      const Simulation s =
          cpus.Run(std::vector<Arrival>(static_cast<size_t>(32 * stages), {0, 16, 400}),
                   {.fidelity = fidelity});
      EXPECT_EQ(s.lost, 0);
      EXPECT_EQ(s.most_in_flight, stages);
      const size_t pass = s.first_engine.size() / 2 / static_cast<size_t>(stages);
      const std::span<const Simulation::Step> middle =
          std::span(s.first_engine)
              .subspan(pass * static_cast<size_t>(stages), s.stage_busy.size());
      EXPECT_EQ(middle.front().decode_rows, 32);
      const double longest =
          std::ranges::max_element(middle, {}, &Simulation::Step::seconds)->seconds;
      for (size_t i = 0; i < s.stage_busy.size(); ++i)
        EXPECT_GE(s.stage_busy[i], 0.9 * middle[i].seconds / longest)
            << "stage " << i << "\n"
            << SimulationText(cpus.evaluation, s);
      if (stages == 2) {
        EXPECT_THAT(s.stage_busy, Each(Ge(0.85)));
      }
    }
}

// The plan's formulas hold where they are exact: one request, and as many as stages.
TEST(StagedRun, AgreesWithThePlan) {
  for (const bool gpus : {false, true}) {
    const Question q =
        gpus ? GpuQuestion("qwen3_30b_a3b", "h200", 4) : CpuQuestion("qwen3_30b_a3b", 4, 256);
    const Evaluation e = Evaluate(q, ParseLayout("tp1-pp4"));
    ASSERT_TRUE(e.accepted) << e.refused;
    const LayoutCosts costs(q, e.layout, e.plan);
    for (const int requests : {1, 4}) {
      const Simulation s =
          Simulate(q, e, std::vector<Arrival>(static_cast<size_t>(requests), {0, 100, 200}));
      EXPECT_NEAR(s.itl.p50 / costs.Decode(requests, 200).seconds, 1, 0.05)
          << (gpus ? "h200" : "cpu") << ", " << requests << " requests";
      if (requests == 1) {
        EXPECT_NEAR(s.ttft.p50 / costs.PrefillSeconds(100, 100, 1), 1, 0.05);
        EXPECT_NEAR(s.busy, 0.25, 0.02);
      }
    }
  }
}

// Requests of random lengths, in a cache that is too small for all of them.
TEST(StagedRun, AllRequestsEndInOrderOfPasses) {
  std::mt19937 random(3);
  const auto below = [&](int64_t end) { return static_cast<int64_t>(random() % end); };
  std::vector<Arrival> arrivals;
  for (int i = 0; i < 30; ++i)
    arrivals.push_back({.seconds = 0.25 * static_cast<double>(below(40)),
                        .input = 1 + below(300),
                        .output = 1 + below(100)});
  std::ranges::sort(arrivals, {}, &Arrival::seconds);
  for (const char* layout : {"tp1-pp4-chunk64", "tp2-pp2-ep2-dp2-deepep", "tp2-pp2"})
    for (const auto& [depth, micro_batch, dynamic] :
         {std::tuple(0, 0, false), {2, 4, false}, {1, 0, true}}) {
      EngineConfig config;
      // Requests that were retracted may decode beside a full micro-batch.
      config.max_total_tokens = micro_batch > 0 ? 50'000 : 1500;
      config.pp_async_batch_depth = depth;
      config.pp_max_micro_batch_size = micro_batch;
      config.dynamic_chunking = dynamic;
      const OnCpus cpus(layout, 4, config);
      for (const Fidelity fidelity : {Fidelity::kStep, Fidelity::kOperation}) {
        const Simulation s = cpus.Run(arrivals, {.fidelity = fidelity});
        EXPECT_EQ(s.lost, 0) << layout;
        EXPECT_LE(s.most_in_flight, cpus.evaluation.layout.mesh.pp + depth);
        EXPECT_GT(s.most_in_flight, 1);
        ExpectOrder(s);
        if (micro_batch == 0) continue;
        for (const Simulation::Step& step : s.first_engine) ASSERT_LE(step.decode_rows, 4);
      }
    }
}

TEST(StagedRun, TheSameSeedGivesTheSameEvents) {
  Question q = GpuQuestion("qwen3_30b_a3b", "h200", 4);
  q.load.input = 512;
  q.load.output = 8;
  const Evaluation e = Evaluate(q, ParseLayout("tp2-pp2-ep2-dp2-dense1-deepep"));
  ASSERT_TRUE(e.accepted) << e.refused;
  for (const Fidelity fidelity : {Fidelity::kStep, Fidelity::kOperation}) {
    const auto run = [&](uint64_t seed) {
      const Simulation s =
          Simulate(q, e, PoissonArrivals(q.load, 20, 1, seed), {.fidelity = fidelity});
      return SimulationText(e, s) + SimulationTrace(s) + SimulationPicture(e, s);
    };
    const std::string once = run(1);
    EXPECT_EQ(once, run(1));
    EXPECT_NE(once, run(2));
    EXPECT_THAT(once, AllOf(HasSubstr("pipeline stages are busy"),
                            HasSubstr("passes are in flight"), HasSubstr("in each pass")));
  }
}

// An operation of a rank lies within a pass of its stage, and has a layer of the stage.
TEST(StagedRun, OperationsAreThoseOfTheirStage) {
  const OnCpus cpus("tp2-pp2-ep2-deepep", 4);
  const Simulation s =
      cpus.Run(std::vector<Arrival>(3, {0, 20, 3}), {.fidelity = Fidelity::kOperation});
  const std::vector<StageMemory>& stages = cpus.evaluation.stages;
  std::vector<int> seen(4, 0);
  for (const OperationSpan& span : s.operations) {
    const int stage = span.rank / 2;
    seen.at(static_cast<size_t>(span.rank)) = 1;
    EXPECT_TRUE(std::ranges::any_of(s.first_engine, [&](const Simulation::Step& step) {
      return step.stage == stage && span.start >= step.start &&
             span.start + span.seconds <= step.start + step.seconds + 1e-9;
    })) << span.start;
    if (span.operation.kind != schedule::Kind::kForward) continue;
    EXPECT_GE(span.operation.layer, stages[stage].layers.begin);
    EXPECT_LT(span.operation.layer, stages[stage].layers.end);
  }
  EXPECT_THAT(seen, Each(1));
}

TEST(StagedRun, LaterPromptsReuseCachedPrefixes) {
  const OnCpus cpus("tp1-pp2", 2);
  const std::vector<Arrival> arrivals = {{0, 1100, 4, {7, 8}}, {1e6, 1100, 4, {7, 8}}};
  const Simulation s = cpus.Run(arrivals);
  EXPECT_EQ(s.cached_tokens, 1024);
  EXPECT_EQ(s.lost, 0);
}

TEST(StagedRun, ExpertLoadsAndFailuresAreRefused) {
  const OnCpus cpus("tp1-pp2", 2);
  const std::vector<Arrival> arrivals(1, {0, 10, 2});
  const auto refusal = [&](const SimulationOptions& options) {
    return RefusalOf([&] { cpus.Run(arrivals, options); });
  };
  EXPECT_THAT(refusal({.expert_loads = {.source = "zipf:1"}}),
              AllOf(HasSubstr("--expert-loads zipf:1"), HasSubstr("layout tp1-pp2")));
  EXPECT_THAT(refusal({.failures = {.listed = {{1, 2}}}}), HasSubstr("--fail: ranks are not"));
  EXPECT_THAT(refusal({.failures = {.listed = {}, .per_day = 2}}), HasSubstr("--fail-rate 2"));
  Question q = CpuQuestion("qwen3_30b_a3b", 1, 256);
  q.config.pp_async_batch_depth = 1;
  const Evaluation one = Evaluate(q, ParseLayout("tp1"));
  EXPECT_THAT(RefusalOf([&] { Simulate(q, one, arrivals); }),
              HasSubstr("--pp-async-batch-depth 1 has no effect without --pp-size"));
}

}  // namespace
}  // namespace switchyard::plan
