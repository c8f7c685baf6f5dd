// Routing replay: training with experts that the batch gives to its tokens.
#include <gmock/gmock.h>

#include "core/testing.h"
#include "train/run/learner.h"
#include "train/run/test_layouts.h"

namespace switchyard::train {
namespace {

using ::testing::HasSubstr;
using testing::LayoutResult;
using testing::OneRank;
using testing::RunLayout;

LossOptions Options() {
  return {.balance = {.batch = 0.5, .sequence = 0.4, .z = 0.1}, .mtp_layers = 1};
}

// The experts that a pass used, as a batch gives them.
template <typename T>
std::vector<int32_t> ExpertsOf(const Pass<T>& pass, const ModelConfig& config, int64_t tokens) {
  const int64_t k = config.moe->router.top_k, layers = config.num_layers();
  std::vector<int32_t> experts(tokens * layers * k, -1);
  for (int64_t layer = 0; layer < layers; ++layer) {
    if (!config.layers[layer].moe) continue;
    for (int64_t t = 0; t < tokens; ++t) {
      std::copy_n(pass.layers[layer].moe.router.topk.ids.begin() + t * k, k,
                  experts.begin() + (t * layers + layer) * k);
    }
  }
  return experts;
}

class Replay : public ::testing::TestWithParam<std::string> {
 public:
  const ModelConfig config = ParseModelConfig(testing::SmallConfig(GetParam()));
  const Batch batch = testing::RandomBatch({9, 4, 1, 7, 12, 3, 5, 8}, config.vocab_size, 6);
  const StepSize size = testing::SizeOf(batch);
};

TEST_P(Replay, OfTheOwnSelectionChangesNoBit) {
  OneRank<float> own(config, Options());
  Pass<float> pass;
  const double loss = own.model.Run(batch, size, true, &pass).total();
  Batch given = batch;
  given.experts = ExpertsOf(pass, config, batch.size());
  for (const bool all : {true, false}) {  // all tokens, or every third one selects its own experts
    const auto width = std::ssize(given.experts) / batch.size();
    for (int64_t t = 0; t < batch.size() && !all; t += 3)
      std::fill_n(given.experts.begin() + t * width, width, -1);
    OneRank<float> replay(config, Options());
    Pass<float> again;
    EXPECT_EQ(replay.model.Run(given, size, true, &again).total(), loss);
    EXPECT_EQ(testing::Gradients(replay.model), testing::Gradients(own.model));
    EXPECT_EQ(replay.model.loads(), own.model.loads());
    EXPECT_GT(replay.model.replay().replayed, 0.0);
    EXPECT_EQ(replay.model.replay().agreed, replay.model.replay().replayed);
  }
}

TEST_P(Replay, UsesTheGivenExpertsAndCountsThem) {
  OneRank<float> rank(config, Options());
  Batch given = batch;
  given.experts = testing::RandomExperts(config, batch.size(), 1.0, 4);
  Pass<float> pass;
  const double other = rank.model.Run(given, size, false, &pass).main;
  EXPECT_EQ(ExpertsOf(pass, config, batch.size()), given.experts);
  EXPECT_LT(rank.model.replay().agreed, rank.model.replay().replayed);
  const int64_t k = config.moe->router.top_k, layers = config.num_layers();
  size_t index = 0;
  for (int64_t layer = 0; layer < layers; ++layer) {
    if (!config.layers[layer].moe) continue;
    std::vector<float> counts(config.moe->router.num_experts);
    for (int64_t t = 0; t < batch.size(); ++t)
      for (int64_t j = 0; j < k; ++j) ++counts[given.experts[(t * layers + layer) * k + j]];
    EXPECT_EQ(rank.model.loads()[index++], counts) << "layer " << layer;
  }
  // The next micro-batch of the same pass has no given experts.
  const double own = rank.model.Run(batch, size, false, &pass).main;
  EXPECT_EQ(own, OneRank<float>(config, Options()).model.Run(batch, size, false, &pass).main);
  EXPECT_NE(own, other);
}

TEST_P(Replay, DoesNotDependOnTheLayout) {
  Batch given = batch;
  given.experts = testing::RandomExperts(config, batch.size(), 0.8, 4);
  OneRank<float> rank(config, Options());
  OneRank<double> precise(config, Options());
  for (size_t i = 0; i < precise.model.parameters().size(); ++i) {
    const std::vector<float>& from = rank.model.parameters()[i]->value;
    precise.model.parameters()[i]->value.assign(from.begin(), from.end());
  }
  Pass<double> pass;
  precise.model.Run(given, size, true, &pass);
  const auto exact = testing::Gradients(precise.model);
  const LayoutResult one = RunLayout(config, given, {.losses = Options()});
  for (const Layout& layout :
       {Layout{.tp = 2}, Layout{.ep = 2, .dp = 2}, Layout{.pp = 2},
        Layout{.tp = 2, .ep = 4, .dp = 2}, Layout{.tp = 2, .ep = 2, .pp = 2}}) {
    SCOPED_TRACE(layout.ToString());
    const LayoutResult found = RunLayout(config, given, {.layout = layout, .losses = Options()});
    EXPECT_NEAR(found.curve[0], one.curve[0], 1e-6 * one.curve[0]);
    EXPECT_EQ(found.loads, one.loads);
    for (const auto& [name, gradient] : one.gradients) {
      const double error = testing::RelativeError(gradient, exact.at(name));
      EXPECT_LT(testing::RelativeError(found.gradients.at(name), exact.at(name)),
                std::max(2e-6, 3.0 * error))
          << name << ", of one rank " << error;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Replay, ::testing::Values("qwen3_moe", "deepseek_v3"),
                         [](const auto& info) { return info.param; });

// A given slot without an expert has no output, as on a server whose router has no eligible expert
// left.
TEST(GivenExperts, MayLeaveASlotEmpty) {
  const ModelConfig config = ParseModelConfig(testing::SmallConfig("mixtral"));
  OneRank<float> rank(config, {});
  Batch batch = testing::RandomBatch({6}, config.vocab_size, 1);
  batch.experts = testing::RandomExperts(config, batch.size(), 1.0, 4);
  batch.experts[1] = -1;
  Pass<float> pass;
  rank.model.Run(batch, testing::SizeOf(batch), true, &pass);
  EXPECT_EQ(ExpertsOf(pass, config, batch.size()), batch.experts);
  EXPECT_EQ(pass.layers[0].moe.router.weights[0], 1.0f);
  EXPECT_EQ(pass.layers[0].moe.router.weights[1], 0.0f);
}

TEST(GivenExperts, OfBatchesAreChecked) {
  const ModelConfig config = ParseModelConfig(testing::SmallConfig("qwen3_moe"));
  OneRank<float> rank(config, {});
  Batch batch = testing::RandomBatch({3}, config.vocab_size, 1);
  const auto error = [&](const std::vector<int32_t>& experts) {
    batch.experts = experts;
    return ErrorOf([&] {
      Pass<float> pass;
      rank.model.Run(batch, {}, false, &pass);
    });
  };
  EXPECT_THAT(error({1, 2, 3}), HasSubstr("3 given experts, want 18 (3 tokens, 2 layers, top-3)"));
  std::vector<int32_t> experts = testing::RandomExperts(config, 3, 1.0, 4);
  EXPECT_EQ(error(experts), "no error");
  experts[9] = experts[10];
  EXPECT_THAT(error(experts), HasSubstr("token 1 of a batch, layer 1: expert"));
  experts[9] = 8;
  EXPECT_THAT(error(experts), HasSubstr("expert 8 is out of range, want 0 to 7, or -1"));
  experts[0] = 0;  // layer 0 is dense
  EXPECT_THAT(error(experts),
              HasSubstr("token 0 of a batch, layer 0: expert 0 is given to a layer without"));
}

TEST(GivenExperts, MoveTheBiasesAndTheLogHasTheirAgreement) {
  const ModelConfig config = ParseModelConfig(testing::SmallConfig("deepseek_v3"));
  OneRank<float> rank(config, {});
  Learner learner(rank.model, {.bias_step = 0.5, .bias_step_falls = false}, nullptr);
  Parameter<float>* bias = nullptr;
  for (Parameter<float>* p : learner.Parameters())
    if (p->name.ends_with("e_score_correction_bias")) bias = p;
  ASSERT_NE(bias, nullptr);
  const std::vector<float> before = bias->value;
  Batch batch = testing::RandomBatch({4}, config.vocab_size, 1);
  for (int t = 0; t < 4; ++t)  // layer 0 is dense
    batch.experts.insert(batch.experts.end(), {-1, -1, -1, 5, 6, 7});
  learner.Learn(std::span(&batch, 1), testing::SizeOf(batch));
  const auto figures = learner.AfterStep(1.0);
  EXPECT_EQ(figures.at("dead_experts"), 5.0);
  EXPECT_LT(figures.at("routing_agreement"), 1.0);
  for (size_t e = 0; e < before.size(); ++e)
    EXPECT_FLOAT_EQ(bias->value[e], before[e] + (e < 5 ? 0.5f : -0.5f)) << e;
  batch.experts.clear();
  learner.Learn(std::span(&batch, 1), testing::SizeOf(batch));
  EXPECT_EQ(learner.AfterStep(1.0).count("routing_agreement"), 0u);
}

}  // namespace
}  // namespace switchyard::train
