// A model on a device, with plain operations on CPUs, against Model<float>.
#include "train/device/model.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/testing.h"
#include "train/device/checks.h"
#include "train/optimizer/adamw.h"
#include "train/optimizer/catalog.h"
#include "train/test_training.h"

namespace switchyard::train {
namespace {

using testing::Gradients;
using ::testing::HasSubstr;
using testing::OneRank;
using testing::RandomBatch;
using testing::RelativeError;
using testing::SizeOf;
using testing::SmallConfig;

// The micro-batches of a step: ragged, empty, and without a target.
std::vector<Batch> StepOf(const ModelConfig& config) {
  std::vector<Batch> batches = {RandomBatch({7, 1, 12}, config.vocab_size, 3), Batch(),
                                RandomBatch({5}, config.vocab_size, 4),
                                RandomBatch({3, 9}, config.vocab_size, 5)};
  for (int32_t& target : batches[2].targets) target = Batch::kIgnored;
  return batches;
}

constexpr StepSize kSize = {.targets = 26, .tokens = 37};

// Gives experts to about half of the tokens, with one slot of each micro-batch empty.
void Give(const ModelConfig& config, std::vector<Batch>* batches) {
  for (Batch& batch : *batches) {
    batch.experts = testing::RandomExperts(config, batch.size(), 0.5, 9);
    const auto first = std::ranges::find_if(batch.experts, [](int32_t e) { return e >= 0; });
    if (first != batch.experts.end()) *first = -1;
  }
}

struct Learned {
  Losses losses;
  std::map<std::string, std::vector<float>> gradients;
  std::vector<std::vector<float>> loads;
  Model<float>::ReplayCounts replay;
};

void ExpectNear(const Learned& got, const Learned& want) {
  EXPECT_NEAR(got.losses.main, want.losses.main, 1e-5);
  EXPECT_NEAR(got.losses.mtp, want.losses.mtp, 1e-5);
  EXPECT_NEAR(got.losses.balance, want.losses.balance, 1e-5);
  EXPECT_EQ(got.loads, want.loads);
  EXPECT_EQ(got.replay.replayed, want.replay.replayed);
  EXPECT_EQ(got.replay.agreed, want.replay.agreed);
  for (const auto& [name, gradient] : want.gradients)
    EXPECT_LT(RelativeError(got.gradients.at(name), gradient), 2e-5) << name;
}

Learned OnCpu(const ModelConfig& config, const LossOptions& options,
              const std::vector<Batch>& batches) {
  OneRank<float> one(config, options);
  Learned learned;
  Pass<float> pass;
  for (const Batch& batch : batches) learned.losses += one.model.Run(batch, kSize, true, &pass);
  learned.gradients = Gradients(one.model);
  learned.loads = one.model.loads();
  learned.replay = one.model.replay();
  return learned;
}

template <typename C>
Learned OnDevice(const ModelConfig& config, const LossOptions& options,
                 const std::vector<Batch>& batches, int threads = 1) {
  OneRank<float> one(config, options, threads);
  const std::unique_ptr<TrainOps<C>> ops = MakePlainOps<C>(one.pool);
  DeviceRanks alone;
  DeviceModel<C> model(one.model, *ops, alone);
  for (const Batch& batch : batches) model.Learn(batch, kSize);
  Learned learned{.losses = model.TakeLosses(),
                  .gradients = {},
                  .loads = model.TakeLoads(),
                  .replay = model.TakeReplay()};
  model.parameters().GradientsToHost();
  learned.gradients = Gradients(one.model);
  return learned;
}

class DeviceModelTest : public ::testing::TestWithParam<const char*> {
 protected:
  const ModelConfig config_ = ParseModelConfig(SmallConfig(GetParam()));
  const LossOptions options_ = {.balance = {.batch = 0.3, .sequence = 0.2, .z = 0.1}};
};

TEST_P(DeviceModelTest, LossesAndGradientsAreThoseOfTheModelOnCpus) {
  std::vector<Batch> batches = StepOf(config_);
  ExpectNear(OnDevice<float>(config_, options_, batches, 2), OnCpu(config_, options_, batches));
  Give(config_, &batches);
  const Learned want = OnCpu(config_, options_, batches);
  EXPECT_GT(want.replay.replayed, 0.0);
  ExpectNear(OnDevice<float>(config_, options_, batches), want);
}

TEST(DeviceModel, MtpModulesLearnAsOnCpus) {
  const ModelConfig config = ParseModelConfig(SmallConfig("deepseek_v3"));
  const LossOptions options = {.balance = {.sequence = 0.2}, .mtp_layers = 2, .mtp_weight = 0.4};
  std::vector<Batch> batches = StepOf(config);
  Give(config, &batches);
  ExpectNear(OnDevice<float>(config, options, batches), OnCpu(config, options, batches));
}

TEST_P(DeviceModelTest, ResultsDoNotDependOnThreads) {
  const LossOptions options;
  const std::vector<Batch> batches = StepOf(config_);
  const Learned one = OnDevice<BF16>(config_, options, batches, 1),
                two = OnDevice<BF16>(config_, options, batches, 2);
  EXPECT_EQ(one.losses.main, two.losses.main);
  EXPECT_EQ(one.losses.balance, 0.0);
  EXPECT_EQ(one.gradients, two.gradients);
}

INSTANTIATE_TEST_SUITE_P(Kinds, DeviceModelTest,
                         ::testing::Values("mixtral", "qwen3_moe", "olmoe", "deepseek_v2",
                                           "deepseek_v3"));

TEST(DeviceModel, Bfloat16ChangesGradientsByItsRoundingOnly) {
  const ModelConfig config = ParseModelConfig(SmallConfig("mixtral"));
  const std::vector<Batch> batches = StepOf(config);
  const Learned want = OnCpu(config, {}, batches), got = OnDevice<BF16>(config, {}, batches);
  EXPECT_NEAR(got.losses.main, want.losses.main, 0.02 * want.losses.main);
  const std::string head = "lm_head.weight";
  EXPECT_LT(RelativeError(got.gradients.at(head), want.gradients.at(head)), 0.1);
}

TEST(DeviceModel, LaterMicroBatchesUseTheSameMemory) {
  const ModelConfig config = ParseModelConfig(SmallConfig("deepseek_v3"));
  OneRank<float> one(config, {});
  const auto ops = MakePlainOps<float>(one.pool);
  DeviceRanks alone;
  DeviceModel<float> model(one.model, *ops, alone);
  const Batch batch = RandomBatch({7, 5}, config.vocab_size, 3);
  model.Learn(batch, kSize);
  model.TakeLosses();
  const int64_t bytes = model.bytes();
  for (int i = 0; i < 3; ++i) {
    model.Learn(batch, kSize);
    model.TakeLosses();
  }
  EXPECT_EQ(model.bytes(), bytes);
}

TEST(DeviceModel, TheNormCountsEveryGradientAndNamesTheFirstThatIsNotFinite) {
  const ModelConfig config = ParseModelConfig(SmallConfig("deepseek_v3"));
  OneRank<float> one(config, {});
  const auto ops = MakePlainOps<float>(one.pool);
  DeviceRanks alone;
  DeviceModel<float> model(one.model, *ops, alone);
  const Batch batch = RandomBatch({7, 5}, config.vocab_size, 3);
  const Catalog catalog(one.model.parameters(), nullptr);
  const auto learn = [&] {
    model.parameters().ClearGradients();
    model.Learn(batch, kSize);
    model.parameters().GradientsToHost();
    return model.parameters().Norm();
  };
  const GradientNorm finite = learn(), want = NormOfGradients(catalog, one.pool);
  EXPECT_EQ(finite.not_finite, "");
  EXPECT_NEAR(finite.norm, want.norm, 1e-9 * want.norm);
  for (Parameter<float>* p : one.model.parameters())
    if (p->name.ends_with("layers.1.mlp.shared_experts.up_proj.weight"))
      p->value[2] = std::numeric_limits<float>::quiet_NaN();
  model.parameters().FromHost(nullptr);
  const GradientNorm broken = learn();
  EXPECT_NE(broken.not_finite, "");
  EXPECT_EQ(broken.not_finite, NormOfGradients(catalog, one.pool).not_finite);
}

TEST(DeviceModel, WhatItDoesNotTrainIsNamed) {
  const ModelConfig config = ParseModelConfig(SmallConfig("deepseek_v3"));
  EXPECT_THAT(ErrorOf([&] { CheckDeviceModel(config, {.mtp_only = true}); }), HasSubstr("MTP"));
  OneRank<float> one(config, {});
  const auto ops = MakePlainOps<float>(one.pool);
  DeviceRanks alone;
  DeviceModel<float> model(one.model, *ops, alone);
  Batch batch = RandomBatch({7}, config.vocab_size, 3);
  batch.tokens[0] = 100;
  EXPECT_THAT(ErrorOf([&] { model.Learn(batch, kSize); }), HasSubstr("vocabulary"));
}

}  // namespace
}  // namespace switchyard::train
