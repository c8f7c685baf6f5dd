#include "plan/engine_costs.h"

#include <gmock/gmock.h>

#include "plan/test_question.h"

namespace switchyard::plan {
namespace {

using testing::DoubleNear;

struct Planned {
  Question question = GpuQuestion("qwen3_30b_a3b", "h200", 1);
  Evaluation evaluation;
  explicit Planned(const std::string& layout, int gpu_id_step = 1) {
    question.config.gpu_id_step = gpu_id_step;
    question.load.imbalance = 1.0;
    const Layout parsed = ParseLayout(layout);
    question.cluster.per_node = parsed.mesh.tp;
    evaluation = Evaluate(question, parsed);
    question.config = ConfigOf(parsed, question.config);
  }
  EngineCosts costs() const { return {question.config, evaluation.plan, ShippedTable("h200")}; }
  LayoutCosts of_plan() const { return {question, evaluation.layout, evaluation.plan}; }
};

TEST(EngineCosts, AreThoseOfThePlan) {
  for (const char* layout : {"tp1", "tp2-ep2", "tp2-ep2-deepep"}) {
    const Planned planned(layout);
    const EqualRequests requests{.batch = 16, .input = 512, .output = 32, .chunk = 8192};
    EXPECT_DOUBLE_EQ(planned.costs().Prefill(requests),
                     planned.of_plan().Prefill(8192, 512).seconds);
    EXPECT_DOUBLE_EQ(planned.costs().DecodeStep(requests),
                     planned.of_plan().Decode(16, 528).seconds);
  }
}

TEST(EngineCosts, SumTheStepsOfAPrefill) {
  const Planned planned("tp1");
  const EngineCosts costs = planned.costs();
  const auto prefill = [&](int64_t batch, int64_t input, int64_t chunk) {
    return costs.Prefill({.batch = batch, .input = input, .output = 1, .chunk = chunk});
  };
  // Five prompts, of which two fit into a step.
  EXPECT_DOUBLE_EQ(prefill(5, 500, 1000), 2 * prefill(2, 500, 1000) + prefill(1, 500, 1000));
  // Chunks of one prompt: later chunks attend to more keys than a prompt of that length.
  EXPECT_GT(prefill(1, 4096, 1024), 4 * prefill(1, 1024, 1024));
  EXPECT_THAT(prefill(3, 4096, 1024), DoubleNear(3 * prefill(1, 4096, 1024), 1e-9));
}

TEST(EngineCosts, RanksOfOneGpuShareItsRates) {
  const EqualRequests requests{.batch = 8, .input = 64, .output = 16, .chunk = 8192};
  EXPECT_GT(Planned("tp2-ep2", 0).costs().DecodeStep(requests),
            1.2 * Planned("tp2-ep2", 1).costs().DecodeStep(requests));
}

TEST(EngineCosts, LayoutOfFlagsIsTheLayout) {
  for (const char* name : {"tp1", "tp8-ep8-dp8-dense1-deepep-low_latency-red8-tbo-chunk8192"})
    EXPECT_EQ(LayoutOf(ConfigOf(ParseLayout(name), {})).Name(), name);
}

TEST(EngineCosts, TableOfADevice) {
  const auto name_of = [](const char* device) {
    const auto table = ShippedTableOf(device);
    return table ? table->name : "none";
  };
  EXPECT_EQ(name_of("NVIDIA H200"), "h200");
  EXPECT_EQ(name_of("NVIDIA H20"), "h20");
  EXPECT_EQ(name_of("NVIDIA H100 80GB HBM3"), "h100");
  EXPECT_EQ(name_of("NVIDIA A100-SXM4-80GB"), "a100");
  EXPECT_EQ(name_of("NVIDIA GeForce RTX 4090"), "rtx4090");
  EXPECT_EQ(name_of("NVIDIA H100 PCIe"), "none");
  EXPECT_EQ(name_of("NVIDIA H200 NVL"), "none");
  EXPECT_EQ(name_of("Tesla T4"), "none");
}

}  // namespace
}  // namespace switchyard::plan
