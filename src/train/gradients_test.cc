// Gradients of every parameter of every kind of layer against finite differences in float64.
#include "train/gradients.h"

#include <gmock/gmock.h>

#include <functional>

#include "core/testing.h"
#include "train/test_training.h"

namespace switchyard::train {
namespace {

using testing::OneRank;

// Relative error of a directional derivative: fourth-order differences with a step of 1e-4 are
// accurate to about 1e-8 on these functions.
constexpr double kBound = 1e-7;

struct Case {
  std::string name, kind;
  LossOptions options;
  std::function<void(ModelConfig*)> change = [](ModelConfig*) {};
  bool replay = false;  // whether the batch gives the experts of its tokens
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class FiniteDifferences : public ::testing::TestWithParam<Case> {};

TEST_P(FiniteDifferences, AgreeWithTheGradientOfEveryParameter) {
  const Case& c = GetParam();
  ModelConfig config = ParseModelConfig(testing::SmallConfig(c.kind));
  c.change(&config);
  OneRank<double> rank(config, c.options);
  Model<double>& model = rank.model;
  Batch batch = testing::RandomBatch({7, 1, 9, 2}, config.vocab_size, 3);
  if (c.replay) batch.experts = testing::RandomExperts(config, batch.size(), 1.0, 8);
  const StepSize size = testing::SizeOf(batch);
  Pass<double> pass;
  model.Run(batch, size, true, &pass);
  const auto gradients = testing::Gradients(model);
  // Fixes the expert choice for the following passes, because the loss is discontinuous where a
  // choice changes. Given experts fix it already.
  for (LayerState<double>& layer : pass.layers)
    layer.moe.router.keep_choice = layer.moe.router.given.empty();

  std::mt19937_64 random(5);
  std::normal_distribution<double> normal;
  for (Parameter<double>* p : model.parameters()) {
    const std::vector<double>& gradient = gradients.at(p->name);
    const std::vector<double> value = p->value;
    double length = 0.0;
    for (const double g : gradient) length += g * g;
    if (p->name.ends_with("e_score_correction_bias")) {
      EXPECT_EQ(length, 0.0) << p->name << " is moved by loads, not by gradients";
      continue;
    }
    if (p->name.find("experts.") == std::string::npos) {
      EXPECT_GT(length, 0.0) << p->name << " is not connected to the loss";
    }
    for (int direction = 0; direction < 3; ++direction) {
      std::vector<double> v(value.size());
      for (double& x : v) x = normal(random);
      const auto loss_at = [&](double step) {
        for (size_t i = 0; i < v.size(); ++i) p->value[i] = value[i] + step * v[i];
        return model.Run(batch, size, false, &pass).total();
      };
      constexpr double kStep = 1e-4;
      const double found =
          (8.0 * (loss_at(kStep) - loss_at(-kStep)) - (loss_at(2 * kStep) - loss_at(-2 * kStep))) /
          (12.0 * kStep);
      double wanted = 0.0;
      for (size_t i = 0; i < v.size(); ++i) wanted += v[i] * gradient[i];
      p->value = value;
      // The bound is relative to the derivative, or for a small derivative to the gradient's
      // length.
      EXPECT_NEAR(found, wanted,
                  kBound * std::max(std::abs(wanted), 0.1 * std::sqrt(length)) + 1e-10)
          << p->name;
    }
  }
}

constexpr BalanceLosses kAllBalance{.batch = 0.7, .sequence = 0.9, .z = 0.3};

INSTANTIATE_TEST_SUITE_P(
    Models, FiniteDifferences,
    ::testing::Values(Case{"Mixtral", "mixtral", {}},
                      Case{"MixtralBalance", "mixtral", {.balance = kAllBalance}},
                      Case{"MixtralTopKSoftmax",
                           "mixtral",
                           {.balance = kAllBalance},
                           [](ModelConfig* c) {
                             c->moe->router.scoring = RouterConfig::Scoring::kTopKSoftmax;
                             c->moe->router.renormalize = false;
                             c->moe->router.routed_scaling_factor = 1.5f;
                           }},
                      Case{"Qwen3Moe", "qwen3_moe", {.balance = {.batch = 0.5}}},
                      Case{"Olmoe", "olmoe", {}},
                      Case{"DeepseekV2", "deepseek_v2", {.balance = {.sequence = 0.5}}},
                      Case{"DeepseekV3", "deepseek_v3", {}},
                      Case{"DeepseekV3MtpBalance",
                           "deepseek_v3",
                           {.balance = kAllBalance, .mtp_layers = 2, .mtp_weight = 0.6}},
                      Case{"DeepseekV3Plain",
                           "deepseek_v3",
                           {.balance = {.z = 0.4}},
                           [](ModelConfig* c) { c->moe->router.renormalize = false; }}),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Replay, FiniteDifferences,
    ::testing::Values(
        Case{.name = "Mixtral",
             .kind = "mixtral",
             .options = {.balance = kAllBalance},
             .replay = true},
        Case{.name = "MixtralTopKSoftmax",
             .kind = "mixtral",
             .options = {},
             .change =
                 [](ModelConfig* c) {
                   c->moe->router.scoring = RouterConfig::Scoring::kTopKSoftmax;
                   c->moe->router.renormalize = false;
                   c->moe->router.routed_scaling_factor = 1.5f;
                 },
             .replay = true},
        Case{.name = "DeepseekV2", .kind = "deepseek_v2", .options = {}, .replay = true},
        Case{.name = "DeepseekV3Mtp",
             .kind = "deepseek_v3",
             .options = {.balance = kAllBalance, .mtp_layers = 1},
             .replay = true}),
    [](const auto& info) { return info.param.name; });

// float32 results match float64 for all instruction sets and numbers of threads.
class Float32 : public ::testing::TestWithParam<std::string> {};

TEST_P(Float32, GradientsAreThoseOfFloat64) {
  const ModelConfig config = ParseModelConfig(testing::SmallConfig(GetParam()));
  LossOptions options{.balance = kAllBalance};
  if (GetParam() == "deepseek_v3") options.mtp_layers = 1;
  OneRank<double> exact(config, options);
  const Batch batch = testing::RandomBatch({20, 1, 30}, config.vocab_size, 4);
  const StepSize size = testing::SizeOf(batch);
  Pass<double> exact_pass;
  const Losses wanted = exact.model.Run(batch, size, true, &exact_pass);
  std::map<std::string, std::vector<float>> first;
  for (const int threads : {1, 3}) {
    OneRank<float> rank(config, options, threads);
    for (size_t i = 0; i < rank.model.parameters().size(); ++i) {
      const std::vector<double>& from = exact.model.parameters()[i]->value;
      rank.model.parameters()[i]->value.assign(from.begin(), from.end());
    }
    Pass<float> pass;
    const Losses losses = rank.model.Run(batch, size, true, &pass);
    EXPECT_NEAR(losses.total(), wanted.total(), 1e-5 * wanted.total());
    const auto gradients = testing::Gradients(rank.model);
    for (const Parameter<double>* p : exact.model.parameters())
      EXPECT_LT(testing::RelativeError(gradients.at(p->name), p->gradient), 1e-5) << p->name;
    if (first.empty()) first = gradients;
    EXPECT_EQ(first, gradients) << "threads change bits";
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Float32,
                         ::testing::Values("mixtral", "qwen3_moe", "olmoe", "deepseek_v2",
                                           "deepseek_v3"),
                         [](const auto& info) { return info.param; });

TEST(Gradients, OfMicroBatchesAddUpToTheStep) {
  const ModelConfig config = ParseModelConfig(testing::SmallConfig("deepseek_v3"));
  const LossOptions options{.balance = {.sequence = 0.5, .z = 0.2}, .mtp_layers = 1};
  OneRank<double> whole(config, options), parts(config, options);
  const Batch a = testing::RandomBatch({5, 6}, config.vocab_size, 1);
  const Batch b = testing::RandomBatch({9}, config.vocab_size, 2);
  Batch both = a;
  for (size_t i = 0; i < b.tokens.size(); ++i) {
    both.tokens.push_back(b.tokens[i]);
    both.targets.push_back(b.targets[i]);
  }
  both.begins.push_back(static_cast<int32_t>(both.size()));
  const StepSize size = testing::SizeOf(both);
  Pass<double> pass, pass_a, pass_b;
  const double wanted = whole.model.Run(both, size, true, &pass).total();
  // Two passes in flight do not interfere.
  Model<double>& model = parts.model;
  model.Begin(a, size, &pass_a);
  model.Begin(b, size, &pass_b);
  constexpr Phase kPhases[] = {Phase::kAttention, Phase::kDispatch, Phase::kShared,
                               Phase::kExperts,   Phase::kCombine,  Phase::kFinish};
  for (int64_t l = 0; l < model.layers(); ++l) {
    for (const Phase phase : kPhases) {
      model.Forward(l, phase, &pass_a);
      model.Forward(l, phase, &pass_b);
    }
  }
  model.Heads(true, &pass_a);
  model.Heads(true, &pass_b);
  for (int64_t l = model.layers() - 1; l >= 0; --l) {
    for (const Phase phase : {Phase::kFinish, Phase::kCombine, Phase::kExperts, Phase::kDispatch,
                              Phase::kShared, Phase::kAttention}) {
      model.Backward(l, phase, &pass_b);
      model.Backward(l, phase, &pass_a);
    }
  }
  EXPECT_NEAR(pass_a.losses.total() + pass_b.losses.total(), wanted, 1e-12);
  const auto gradients = testing::Gradients(model);
  for (const Parameter<double>* p : whole.model.parameters())
    EXPECT_LT(testing::RelativeError(gradients.at(p->name), p->gradient), 1e-12) << p->name;
}

TEST(Model, RefusesWhatItCannotTrain) {
  ThreadPool pool(1);
  const ModelConfig config = ParseModelConfig(testing::SmallConfig("mixtral"));
  const auto error = [&](const std::function<void(ModelConfig*)>& change) {
    ModelConfig changed = config;
    change(&changed);
    return ErrorOf([&] { Model<float>(changed, {}, {}, pool); });
  };
  EXPECT_THAT(error([](ModelConfig* c) { c->attention.qkv_bias = true; }),
              ::testing::HasSubstr("MixtralForCausalLM: an attention with biases cannot be"));
  EXPECT_THAT(error([](ModelConfig* c) { c->quantization.method = "fp8"; }),
              ::testing::HasSubstr("a quantized checkpoint cannot be trained"));
  EXPECT_THAT(error([](ModelConfig* c) { c->moe->shared_gate = true; }),
              ::testing::HasSubstr("a shared expert with a gate cannot be trained"));
  EXPECT_THAT(error([](ModelConfig* c) { c->attention.index_topk = 8; }),
              ::testing::HasSubstr("keys that an indexer selects cannot be trained"));
  EXPECT_EQ(error([](ModelConfig*) {}), "no error");
}

TEST(Model, RefusesBatchesThatDoNotFit) {
  const ModelConfig config = ParseModelConfig(testing::SmallConfig("mixtral"));
  OneRank<float> rank(config, {});
  const auto error = [&](const Batch& batch) {
    return ErrorOf([&] {
      Pass<float> pass;
      rank.model.Run(batch, {}, false, &pass);
    });
  };
  EXPECT_THAT(error({.tokens = {1, 24}, .targets = {1, 1}, .begins = {0, 2}}),
              ::testing::HasSubstr("token 1 of a batch is 24"));
  EXPECT_THAT(error({.tokens = {1, 2}, .targets = {1}, .begins = {0, 2}}),
              ::testing::HasSubstr("2 tokens and 1 targets"));
  EXPECT_THAT(error({.tokens = {1, 2}, .targets = {1, 1}, .begins = {0, 1}}),
              ::testing::HasSubstr("do not cover"));
  EXPECT_THAT(error({.tokens = std::vector<int32_t>(40),
                     .targets = std::vector<int32_t>(40),
                     .begins = {0, 40}}),
              ::testing::HasSubstr("has 40 tokens, want 1 to max_position_embeddings 32"));
  EXPECT_EQ(error({}), "no error");
}

}  // namespace
}  // namespace switchyard::train
