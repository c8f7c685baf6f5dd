// Compares predicted times of whole steps with recorded ones. The cost tables contain times of
// kernels only.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "plan/test_question.h"

namespace switchyard::plan {
namespace {

struct Step {
  const char* layout;
  bool decode;
  double size;     // decode: sequences; prefill: tokens of a step
  double seconds;  // recorded
};

struct Errors {
  double median = 0, worst = 0;
};

// A model of `name` with `layers` layers; 0: all of them. `quantization`: as --quantization.
Question CutModel(const std::string& name, const std::string& card, size_t layers,
                  const std::string& quantization = "") {
  Question q = GpuQuestion(name, card, 1);
  if (!quantization.empty()) q.model = PublishedModel(name, {.method = quantization});
  if (layers > 0) q.model.layers.resize(layers);
  q.load.imbalance = 1.0;  // random weights route evenly
  return q;
}

Errors ErrorsOf(Question q, const std::vector<Step>& steps, double prompt) {
  std::vector<double> errors;
  for (const Step& step : steps) {
    Layout layout = ParseLayout(step.layout);
    q.cluster.per_node = layout.mesh.tp;
    layout.chunk = step.decode ? 2048 : static_cast<int32_t>(step.size);
    const Evaluation e = Evaluate(q, layout);
    EXPECT_TRUE(e.accepted) << e.refused;
    const LayoutCosts costs(q, layout, e.plan);
    const StepTime time =
        step.decode ? costs.Decode(step.size, prompt + 16) : costs.Prefill(step.size, prompt);
    const double error = time.seconds / step.seconds - 1;
    std::printf("%-18s %s %6.0f: predicted %8.2f ms, recorded %8.2f ms, %+5.1f %%\n", step.layout,
                step.decode ? "decode " : "prefill", step.size, 1e3 * time.seconds,
                1e3 * step.seconds, 100 * error);
    errors.push_back(std::abs(error));
  }
  std::ranges::sort(errors);
  return {.median = errors[errors.size() / 2], .worst = errors.back()};
}

// docs/performance.md, "Whole models", and docs/notes/gpu.md, "Four H200 of one host": bfloat16,
// prompts of 512 tokens.
TEST(Recorded, StepsOfQwen3OnH200) {
  Question q = GpuQuestion("qwen3_30b_a3b", "h200", 1);
  q.load.imbalance = 1.0;  // random weights route evenly
  const Errors errors = ErrorsOf(q,
                                 {{"tp1", true, 1, 4.9e-3},
                                  {"tp1", true, 32, 17.3e-3},
                                  {"tp1", true, 256, 25.6e-3},
                                  {"tp1", false, 512, 512 / 25300.0},
                                  {"tp1", false, 8192, 8192 / 64331.0},
                                  {"tp1", false, 16384, 16384 / 67300.0},
                                  {"tp2-ep2", true, 1, 4.67e-3},
                                  {"tp2-ep2", true, 32, 11.6e-3},
                                  {"tp2-ep2", true, 256, 18.7e-3},
                                  {"tp4-ep4", true, 1, 1 / 262.0},
                                  {"tp4-ep4", true, 256, 256 / 19786.0},
                                  {"tp4-ep4", false, 16384, 16384 / 112115.0},
                                  {"tp4-ep4-deepep", true, 1, 1 / 220.0},
                                  {"tp4-ep4-deepep", true, 256, 256 / 19386.0},
                                  {"tp4-ep4-deepep", false, 16384, 16384 / 111323.0}},
                                 512);
  EXPECT_LT(errors.median, 0.15);
  EXPECT_LT(errors.worst, 0.25);
}

// docs/performance.md, "Whole models": the shape with 24 layers, prompts of 512 tokens.
TEST(Recorded, StepsOf24LayersOfQwen3OnH200) {
  const Errors errors = ErrorsOf(CutModel("qwen3_30b_a3b", "h200", 24),
                                 {{"tp1", true, 1, 2.30e-3},
                                  {"tp1", true, 8, 4.80e-3},
                                  {"tp1", true, 32, 8.26e-3},
                                  {"tp1", true, 128, 10.82e-3},
                                  {"tp1", true, 256, 12.98e-3},
                                  {"tp1", false, 512, 512 / 49600.0},
                                  {"tp1", false, 4096, 4096 / 125300.0},
                                  {"tp1", false, 8192, 8192 / 145000.0}},
                                 512);
  EXPECT_LT(errors.median, 0.15);
  EXPECT_LT(errors.worst, 0.25);
}

// docs/notes/gpu.md, "Prompt attention".
TEST(Recorded, StepsOf24LayersOfQwen3InFp8OnH200) {
  const Errors errors = ErrorsOf(CutModel("qwen3_30b_a3b", "h200", 24, "fp8"),
                                 {{"tp1", true, 1, 2.15e-3},
                                  {"tp1", true, 16, 4.78e-3},
                                  {"tp1", true, 128, 7.72e-3},
                                  {"tp1", false, 512, 512 / 70400.0},
                                  {"tp1", false, 8192, 8192 / 186500.0}},
                                 512);
  EXPECT_LT(errors.median, 0.15);
  EXPECT_LT(errors.worst, 0.25);
}

}  // namespace
}  // namespace switchyard::plan
