// Initialization and loading of parameters, and balancing by selection bias.
#include "train/model.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "core/testing.h"
#include "model/weights/safetensors.h"
#include "train/test_training.h"

namespace switchyard::train {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::OneRank;

fs::path Fixture(const std::string& name) {
  return fs::path(SWITCHYARD_TEST_DATA) / "fixtures" / name;
}

TEST(Model, RanksHoldTheirExpertsWithTheNumbersOfOneRank) {
  const ModelConfig config = ParseModelConfig(testing::SmallConfig("deepseek_v3"));
  ThreadPool pool(1);
  Model<float> whole(config, {}, {}, pool);
  whole.Initialise(3, 0.02);
  std::map<std::string, std::vector<float>> rest;
  for (const Parameter<float>* p : whole.parameters())
    if (p->expert) rest[p->name] = p->value;
  EXPECT_EQ(rest.size(), 8u * 3u);
  for (int r = 0; r < 3; ++r) {
    Model<float> part(config, {}, {.experts = {.rank = r, .size = 3}}, pool);
    part.Initialise(3, 0.02);
    for (const Parameter<float>* p : part.parameters()) {
      if (!p->expert) continue;
      ASSERT_EQ(rest.count(p->name), 1u) << p->name;
      EXPECT_EQ(rest[p->name], p->value);
      rest.erase(p->name);
    }
  }
  EXPECT_TRUE(rest.empty());
}

TEST(Model, InitialNumbersHaveTheirDeviationAndNormsAreOne) {
  OneRank<float> rank(ParseModelConfig(testing::SmallConfig("deepseek_v3")), {.mtp_layers = 1});
  rank.model.Initialise(5, 0.02);
  double squares = 0.0, count = 0.0;
  for (const Parameter<float>* p : rank.model.parameters()) {
    const bool bias = p->name.ends_with("e_score_correction_bias");
    EXPECT_EQ(p->decay, p->shape.size() == 2) << p->name;
    for (const float v : p->value) {
      if (p->shape.size() == 1) {
        EXPECT_EQ(v, bias ? 0.0f : 1.0f) << p->name;
        continue;
      }
      squares += static_cast<double>(v) * v;
      ++count;
    }
  }
  EXPECT_NEAR(std::sqrt(squares / count), 0.02, 0.0005);
}

TEST(Model, LoadsACheckpointByItsNames) {
  ThreadPool pool(1);
  Model<float> model(LoadModelConfig(Fixture("deepseek_v3")), {.mtp_layers = 1}, {}, pool);
  model.Load(Fixture("deepseek_v3"));
  const Checkpoint checkpoint(Fixture("deepseek_v3"));
  size_t found = 0;
  for (const Parameter<float>* p : model.parameters()) {
    const StoredTensor* stored = checkpoint.Find(p->name);
    ASSERT_NE(stored, nullptr) << p->name;
    EXPECT_EQ(stored->shape, p->shape) << p->name;
    ++found;
  }
  // Every tensor is a parameter or an alias of one.
  for (const auto& [name, parameter] : model.aliases()) {
    const StoredTensor* stored = checkpoint.Find(name);
    ASSERT_NE(stored, nullptr) << name;
    EXPECT_EQ(stored->shape, parameter->shape);
    ++found;
  }
  EXPECT_EQ(found, checkpoint.tensors().size());
}

TEST(Model, SaysWhichTensorsACheckpointLacks) {
  ThreadPool pool(1);
  Model<float> model(LoadModelConfig(Fixture("qwen3_moe")), {.mtp_layers = 1}, {}, pool);
  EXPECT_THAT(ErrorOf([&] { model.Load(Fixture("qwen3_moe")); }, ErrorKind::kNotFound),
              HasSubstr("model.layers.3.enorm.weight"));
}

// The gradients of the modules are the same as in training with the model's own losses.
TEST(MtpOnly, OnlyTheModulesHaveGradientsAndTheseAreTheSame) {
  const ModelConfig config = ParseModelConfig(testing::SmallConfig("deepseek_v3"));
  OneRank<float> whole(config, {.mtp_layers = 2}),
      frozen(config, {.mtp_layers = 2, .mtp_only = true});
  const Batch batch = testing::RandomBatch({7, 9}, config.vocab_size, 3);
  Pass<float> pass;
  const Losses want = whole.model.Run(batch, testing::SizeOf(batch), true, &pass);
  const Losses got = frozen.model.Run(batch, testing::SizeOf(batch), true, &pass);
  EXPECT_EQ(got.mtp, want.mtp);
  EXPECT_EQ(got.main, 0.0);
  size_t learned = 0;
  const auto parameters = frozen.model.parameters(), all = whole.model.parameters();
  ASSERT_EQ(parameters.size(), all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    const Parameter<float>& p = *parameters[i];
    ASSERT_EQ(p.name, all[i]->name);
    const bool module =
        p.name.starts_with("model.layers.2.") || p.name.starts_with("model.layers.3.");
    if (module) {
      EXPECT_EQ(p.gradient, all[i]->gradient) << p.name;
    } else {
      EXPECT_TRUE(p.gradient.empty()) << p.name;
    }
    learned += p.gradient.empty() ? 0 : 1;
  }
  EXPECT_GT(learned, 20u);
}

TEST(MtpOnly, ACheckpointMayLackTheModules) {
  ThreadPool pool(1);
  Model<float> model(LoadModelConfig(Fixture("qwen3_moe")), {.mtp_layers = 1, .mtp_only = true}, {},
                     pool);
  model.Initialise(5, 0.02);
  model.Load(Fixture("qwen3_moe"));
  const auto all_ones = [&](std::string_view name) {
    for (const Parameter<float>* p : model.parameters())
      if (p->name == name) return std::ranges::all_of(p->value, [](float v) { return v == 1.0f; });
    ADD_FAILURE() << name;
    return false;
  };
  EXPECT_TRUE(all_ones("model.layers.3.enorm.weight"));
  EXPECT_FALSE(all_ones("model.norm.weight"));
}

TEST(Balance, BiasMovesTowardsTheMean) {
  std::vector<float> bias = {0.5f, 0.0f, -0.25f, 0.0f};
  MoveBias<float>(std::vector<float>{4, 0, 2, 2}, 0.125, bias);
  EXPECT_THAT(bias, ElementsAre(0.375f, 0.125f, -0.25f, 0.0f));
}

// Auxiliary-loss-free balancing with fixed weights: loads even out, although the router strongly
// prefers some experts.
TEST(Balance, BiasesEvenOutASkewedRouter) {
  const ModelConfig config = ParseModelConfig(testing::SmallConfig("deepseek_v3"));
  OneRank<float> rank(config, {});
  const Batch batch = testing::RandomBatch(std::vector<int>(20, 30), config.vocab_size, 8);
  const auto balancedness = [](const std::vector<float>& loads) {
    float most = 0.0f, sum = 0.0f;
    for (const float l : loads) {
      most = std::max(most, l);
      sum += l;
    }
    return sum / static_cast<float>(loads.size()) / most;
  };
  std::vector<float> found;
  Pass<float> pass;
  for (int step = 0; step < 300; ++step) {
    rank.model.ClearLoads();
    rank.model.Run(batch, testing::SizeOf(batch), false, &pass);
    ASSERT_EQ(rank.model.loads().size(), 1u);  // the first layer is dense
    found.push_back(balancedness(rank.model.loads()[0]));
    rank.model.MoveBiases(rank.model.loads(), 0.004);
  }
  EXPECT_LT(found.front(), 0.75f);
  EXPECT_GT(found.back(), 0.9f);
}

// A known value: with even routing, the balance loss equals its weight. If the router always
// chooses the same experts, the loss is up to E / K times its weight.
TEST(Balance, LossOfAnEvenRouterIsItsWeight) {
  ModelConfig config = ParseModelConfig(testing::SmallConfig("mixtral"));
  const LossOptions options{.balance = {.batch = 0.25, .sequence = 0.5}};
  OneRank<double> rank(config, options);
  for (Parameter<double>* p : rank.model.parameters())
    if (p->name.ends_with("gate.weight")) std::fill(p->value.begin(), p->value.end(), 0.0);
  const Batch batch = testing::RandomBatch({8, 3}, config.vocab_size, 8);
  Pass<double> pass;
  const Losses losses = rank.model.Run(batch, testing::SizeOf(batch), false, &pass);
  // With even routing f[e] = 1 and p[e] = 1 / E, so Σ_e f[e] · p[e] = 1 in each of the two layers.
  EXPECT_NEAR(losses.balance, 2 * 0.75, 1e-12);
}

}  // namespace
}  // namespace switchyard::train
