#include "plan/engine_step.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "model/test_profile.h"
#include "plan/search.h"
#include "plan/test_question.h"

namespace switchyard::plan {
namespace {

struct Planned {
  Question question;
  Evaluation evaluation;
  LayoutCosts costs;

  Planned(Question q, const std::string& layout)
      : question(std::move(q)),
        evaluation(Evaluate(question, ParseLayout(layout))),
        costs(question, evaluation.layout, evaluation.plan) {}
  Planned(const Planned&) = delete;  // as LayoutCosts
  EngineStep step() const { return {costs.steps(false), costs.steps(true)}; }
};

Question TwoCpuRanks(const std::string& fixture) {
  Question q{.model = LoadModelConfig(Fixture(fixture)), .table = CpuDefaults(2)};
  q.config.model_path = Fixture(fixture);
  q.config.tbo_min_tokens = 2;
  q.cluster = {.per_node = 2, .cpus = 2, .memory = 8e9};
  return q;
}

// Each rank of the engine and of the simulation runs the same operations in the same order.
TEST(EngineStep, HasTheOrderOfTheEnginesTrace) {
  for (int settings = 0; settings < 8; ++settings) {
    const bool two_batches = settings & 1, single_batch = settings & 2, decode = settings & 4;
    std::string layout = "tp2-ep2-deepep";
    if (two_batches) layout += "-tbo";
    if (single_batch) layout += "-sbo";
    const Planned planned(TwoCpuRanks("deepseek_v3"), layout);
    ASSERT_TRUE(planned.evaluation.accepted) << planned.evaluation.refused;
    std::vector<OperationSpan> spans;
    const StepShape shape =
        decode
            ? StepShape{.sequences = 4, .rows = 4, .keys = 7, .logit_rows = 4}
            : StepShape{.decode = false, .sequences = 2, .rows = 24, .keys = 6, .logit_rows = 24};
    planned.step().Run(std::span(&shape, 1), &spans);
    const auto profile = Profile("deepseek_v3", decode, two_batches, single_batch);
    for (int rank = 0; rank < 2; ++rank) {
      std::vector<std::string> want, got;
      for (const nlohmann::json& event : profile[rank]) {
        if (event["name"] == "head") continue;  // after all operations
        want.push_back(fmt::format("{} {} {}", event["name"].get<std::string>(),
                                   event["args"]["micro_batch"].get<int>(),
                                   event["args"].value("layer", -1)));
      }
      double last = 0;
      for (const OperationSpan& span : spans) {
        if (span.rank != rank || span.operation.kind == schedule::Kind::kSample) continue;
        const schedule::Operation& o = span.operation;
        got.push_back(fmt::format("{} {} {}", NameOf(o), o.micro_batch, o.layer));
        EXPECT_GE(span.start, last);
        last = span.start + span.seconds;
      }
      EXPECT_EQ(got, want) << layout << (decode ? " decode" : " prefill") << " rank " << rank;
    }
  }
}

Planned DeepSeek(const std::string& layout, int nodes = 1) {
  Question q = GpuQuestion("deepseek_v3", "h200", 8, nodes);
  q.config.tbo_min_tokens = 2;
  q.load.imbalance = 1;
  return {std::move(q), layout};
}

StepShape DecodeOf(double rows, double mean) {
  return {.decode = true,
          .sequences = rows,
          .rows = rows,
          .keys = 2000,
          .logit_rows = rows,
          .mean_rows = mean};
}

TEST(EngineStep, EqualGroupsTakeAboutTheTimeOfOneRank) {
  for (const char* layout : {"tp8-ep8-dp8-dense1-deepep", "tp8-ep8-dp8-dense1-deepep-tbo",
                             "tp8-ep8-dp8-dense1-deepep-sbo", "tp8-ep8-dp8-dense1-deepep-tbo-sbo",
                             "tp8-ep8-deepep", "tp8-ep8", "tp8-ep8-dp8"}) {
    const Planned planned = DeepSeek(layout);
    ASSERT_TRUE(planned.evaluation.accepted) << planned.evaluation.refused;
    const StepShape shape = DecodeOf(64, 0);
    const std::vector<StepShape> groups(planned.evaluation.layout.mesh.dp, shape);
    const double one = planned.costs.Of(shape).seconds, all = planned.step().Run(groups);
    EXPECT_NEAR(all / one, 1, 0.05) << layout;
  }
}

// All ranks wait for the group with the most rows.
TEST(EngineStep, TheSlowestGroupDeterminesTheTime) {
  const Planned planned = DeepSeek("tp8-ep8-dp8-dense1-deepep");
  const auto seconds = [&](double first, double others) {
    const double mean = (first + 7 * others) / 8;
    std::vector<StepShape> groups(8, DecodeOf(others, mean));
    groups[0] = DecodeOf(first, mean);
    return planned.step().Run(groups);
  };
  EXPECT_GT(seconds(64, 32), seconds(36, 36));
  EXPECT_LT(seconds(64, 32), seconds(64, 64));
  EXPECT_GT(seconds(64, 0), 0);  // groups without rows take part in exchanges
}

TEST(EngineStep, SingleBatchOverlapHidesAPartOfCombine) {
  const StepShape shape = DecodeOf(64, 0);
  const std::vector<StepShape> groups(8, shape);
  EXPECT_LT(DeepSeek("tp8-ep8-dp8-dense1-deepep-sbo").step().Run(groups),
            DeepSeek("tp8-ep8-dp8-dense1-deepep").step().Run(groups));
}

// Ranks of a host share its NICs.
TEST(EngineStep, FewerNicsMakeExchangesOfHostsSlower) {
  const auto seconds = [](int nics) {
    Question q = GpuQuestion("deepseek_v3", "h200", 8, 2);
    q.cluster.nics = nics;
    const Planned planned(std::move(q), "tp16-ep16-dp16-dense1-deepep");
    EXPECT_TRUE(planned.evaluation.accepted) << planned.evaluation.refused;
    return planned.step().Run(std::vector<StepShape>(16, DecodeOf(128, 0)));
  };
  EXPECT_GT(seconds(2), 1.5 * seconds(8));
}

// Exchanges without a cost, of ranks with and without rows.
TEST(EngineStep, EndsIfExchangesTakeNoTime) {
  for (const char* layout : {"tp2-ep2-dp2-dense1-deepep", "tp2-ep2-dp2-dense1-deepep-sbo"}) {
    Question q = GpuQuestion("qwen3_30b_a3b", "h200", 2);
    q.table.host = {.seconds = 0, .rate = 1e12};
    const Planned planned(std::move(q), layout);
    ASSERT_TRUE(planned.evaluation.accepted) << planned.evaluation.refused;
    const StepShape all[] = {
        {.sequences = 4, .rows = 4, .keys = 100, .logit_rows = 4, .mean_rows = 2},
        {.sequences = 0, .rows = 0, .keys = 1, .logit_rows = 0, .mean_rows = 2}};
    EXPECT_GT(planned.step().Run(all), 0);
  }
}

}  // namespace
}  // namespace switchyard::plan
