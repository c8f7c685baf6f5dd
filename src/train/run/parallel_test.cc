// The gradients, losses and norms of a step do not depend on the parallel layout.
#include <gmock/gmock.h>

#include "train/run/test_layouts.h"

namespace switchyard::train {
namespace {

using testing::LayoutResult;
using testing::LayoutRun;
using testing::RunLayout;

LossOptions Options() {
  return {.balance = {.batch = 0.5, .sequence = 0.4, .z = 0.1}, .mtp_layers = 1};
}

// qwen3_moe: a tied head, grouped attention with per-head norms, a dense layer. deepseek_v3: latent
// attention with low-rank queries, a shared expert.
class Layouts : public ::testing::TestWithParam<std::string> {
 public:
  const ModelConfig config = ParseModelConfig(testing::SmallConfig(GetParam()));
  const Batch batch = testing::RandomBatch({9, 4, 1, 7, 12, 3, 5, 8}, config.vocab_size, 6);
  const LayoutResult one = RunLayout(config, batch, {.losses = Options()});

  // float64 reference with the same weights. Where large terms cancel, even the float32 gradient on
  // one rank differs from this reference by more than the bound.
  const std::map<std::string, std::vector<double>> exact = Exact();

  std::map<std::string, std::vector<double>> Exact() const {
    testing::OneRank<float> rank(config, Options());
    testing::OneRank<double> precise(config, Options());
    const auto from = rank.model.parameters();
    const auto to = precise.model.parameters();
    for (size_t i = 0; i < to.size(); ++i)
      to[i]->value.assign(from[i]->value.begin(), from[i]->value.end());
    Pass<double> pass;
    precise.model.Run(batch, testing::SizeOf(batch), true, &pass);
    return testing::Gradients(precise.model);
  }

  void ExpectSame(const LayoutRun& run) {
    SCOPED_TRACE(run.layout.ToString());
    const LayoutResult found = RunLayout(config, batch, run);
    EXPECT_NEAR(found.curve[0], one.curve[0], 1e-6 * one.curve[0]);
    EXPECT_NEAR(found.norms[0], one.norms[0], 1e-6 * one.norms[0]);
    EXPECT_EQ(found.loads, one.loads);
    ASSERT_EQ(found.gradients.size(), one.gradients.size());
    // Without TP and without copies of experts, an expert receives the same rows in the same order
    // as on one rank, so its gradient has the same bits.
    const bool bits = run.layout.tp == 1 && run.layout.ep == run.layout.dp;
    for (const auto& [name, gradient] : one.gradients) {
      const std::vector<double>& wanted = exact.at(name);
      const double error = testing::RelativeError(gradient, wanted);
      EXPECT_LT(testing::RelativeError(found.gradients.at(name), wanted),
                std::max(2e-6, 3.0 * error))
          << name << ", of one rank " << error;
      if (bits && name.find(".experts.") != std::string::npos) {
        EXPECT_EQ(found.gradients.at(name), gradient) << name;
      }
    }
  }
};

TEST_P(Layouts, TensorParallelRanksGiveTheGradientsOfOne) {
  ExpectSame({.layout = {.tp = 2}, .losses = Options()});
  ExpectSame({.layout = {.tp = 2, .ep = 2}, .losses = Options()});
  if (GetParam().starts_with("deepseek"))
    ExpectSame({.layout = {.tp = 4, .ep = 2}, .losses = Options()});
}

TEST_P(Layouts, ExpertsInTwoDimensionsGiveTheGradientsOfOne) {
  for (const int ep : {1, 2, 4}) {
    ExpectSame({.layout = {.tp = 2, .ep = ep, .dp = 2}, .borders = {0, 3, 8}, .losses = Options()});
  }
  // A group without rows.
  ExpectSame({.layout = {.tp = 2, .ep = 4, .dp = 2}, .borders = {0, 8, 8}, .losses = Options()});
  ExpectSame({.layout = {.ep = 2, .dp = 2}, .borders = {0, 3, 8}, .losses = Options()});
}

TEST_P(Layouts, PipelineStagesGiveTheGradientsOfOne) {
  ExpectSame({.layout = {.pp = 2}, .losses = Options()});
  ExpectSame({.layout = {.tp = 2, .pp = 2}, .losses = Options()});
  ExpectSame({.layout = {.tp = 2, .ep = 2, .pp = 2}, .losses = Options()});
  ExpectSame({.layout = {.ep = 2, .dp = 2, .pp = 2}, .borders = {0, 3, 8}, .losses = Options()});
}

INSTANTIATE_TEST_SUITE_P(Kinds, Layouts,
                         ::testing::Values("mixtral", "qwen3_moe", "deepseek_v2", "deepseek_v3"),
                         [](const auto& info) { return info.param; });

// A model split into stages gives the same bits as the whole model. The exception is the gradient
// of the embedding, because the gradients of its two copies are summed in another order.
TEST(Stages, ChangeNoBit) {
  ModelConfig config = ParseModelConfig(testing::SmallConfig("deepseek_v3"));
  config.layers.resize(4, config.layers.back());
  const Batch batch = testing::RandomBatch({9, 4, 1, 7}, config.vocab_size, 6);
  const LayoutResult one = RunLayout(config, batch, {.losses = Options()});
  for (const int pp : {2, 3, 4}) {
    const LayoutResult found =
        RunLayout(config, batch, {.layout = {.pp = pp}, .losses = Options()});
    for (const auto& [name, gradient] : one.gradients) {
      if (name.find("embed_tokens") != std::string::npos) {
        EXPECT_LT(testing::RelativeError(found.gradients.at(name), gradient), 1e-6);
      } else {
        EXPECT_EQ(found.gradients.at(name), gradient) << name << " of " << pp << " stages";
      }
    }
  }
}

TEST(Curves, OfAllLayoutsAgree) {
  const ModelConfig config = ParseModelConfig(testing::SmallConfig("deepseek_v3"));
  const Batch batch = testing::RandomBatch({9, 4, 1, 7, 12, 3, 5, 8}, config.vocab_size, 6);
  LossOptions losses = Options();
  // This loss depends on the partition into micro-batches, because its f[e] do.
  losses.balance.batch = 0.0;
  LayoutRun run{.losses = losses, .steps = 20};
  const LayoutResult one = RunLayout(config, batch, run);
  EXPECT_LT(one.curve.back(), 0.8 * one.curve.front());
  for (const Layout& layout : {Layout{.tp = 2, .ep = 2}, Layout{.tp = 2, .ep = 4, .dp = 2},
                               Layout{.ep = 2, .dp = 2, .pp = 2}, Layout{.tp = 2, .pp = 2}}) {
    run.layout = layout;
    const LayoutResult found = RunLayout(config, batch, run);
    for (size_t step = 0; step < found.curve.size(); ++step) {
      EXPECT_NEAR(found.curve[step], one.curve[step], 1e-4 * one.curve[step])
          << layout.ToString() << ", step " << step;
    }
    EXPECT_EQ(RunLayout(config, batch, run).values, found.values)
        << layout.ToString() << " is not reproducible";
  }
}

}  // namespace
}  // namespace switchyard::train
