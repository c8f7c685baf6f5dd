// A real model in the training loop.
#include "train/run/learner.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <mutex>

#include "comm/device/communicator.h"
#include "core/temporary_directory.h"
#include "train/run/trainer.h"
#include "train/test_bigram.h"
#include "train/test_training.h"

namespace switchyard::train {
namespace {

namespace fs = std::filesystem;

class LearnerTest : public ::testing::Test {
 protected:
  LearnerTest() { std::ofstream(dir_ / "config.json") << testing::SmallConfig("deepseek_v3"); }

  const TemporaryDirectory temporary_;
  const fs::path& dir_ = temporary_.path();
};

TEST_F(LearnerTest, AModelLearnsOverRanksAndLoadsFromItsCheckpoint) {
  constexpr int kRanks = 2, kSteps = 30;
  const ModelConfig config = LoadModelConfig(dir_);
  const LossOptions losses{.balance = {.sequence = 0.01}, .mtp_layers = 1};
  const MeshShape shape{.tp = kRanks, .ep = kRanks};
  const ExpertExchangeOptions exchange_options{.tokens = 64};
  TrainerOptions options{.rows_per_step = 8, .rows_per_pass = 2, .output = dir_ / "out"};
  options.schedule = {.rate = 0.02, .warmup_steps = 3, .steps = kSteps};
  options.files = {.dtype = DType::kF32, .copied = {dir_ / "config.json"}};

  std::vector<StepReport> reports;
  std::map<std::string, std::vector<float>> values;
  std::mutex mutex;
  RunRankThreads(kRanks,
                 RankComm::BytesPerRank(shape) +
                     ExpertExchange::BytesPerRank(kRanks, config, exchange_options) + (1 << 20),
                 [&](int rank, const std::shared_ptr<SharedArena>& arena) {
                   const auto comm = RankComm::Create(arena, shape, rank);
                   ThreadPool pool(1);
                   const ExpertExchange exchange(*comm->memory, comm->mesh.EpGroup(), config,
                                                 exchange_options, pool);
                   Model<float> model(config, losses, {.experts = exchange.ranks()}, pool);
                   model.Initialise(1, 0.1);
                   Learner learner(model,
                                   {.bias_step = 0.01, .order = schedule::Order::kOverlapped},
                                   comm->tp.get());
                   Corpus corpus(CountingDocuments(8, 60), {.length = 8, .seed = 5});
                   TrainerOptions own = options;
                   own.files.aliases = learner.Aliases();
                   Trainer trainer(learner, corpus, own, comm->tp.get(), pool);
                   trainer.Run(
                       [&](const StepReport& report) {
                         if (rank == 0) reports.push_back(report);
                       },
                       [] { return false; }, {});
                   const std::lock_guard lock(mutex);
                   for (const Parameter<float>* p : learner.Parameters())
                     values[p->name] = p->value;
                 });
  ASSERT_EQ(reports.size(), static_cast<size_t>(kSteps));
  EXPECT_LT(reports.back().losses.main, 0.5 * reports.front().losses.main);
  EXPECT_GT(reports.back().figures.at("balancedness"), 0.0);

  ThreadPool pool(1);
  Model<float> model(LoadModelConfig(*LatestCheckpoint(options.output)), losses, {}, pool);
  model.Load(*LatestCheckpoint(options.output));
  EXPECT_EQ(model.parameters().size(), values.size());
  float moved = 0.0f;
  for (const Parameter<float>* p : model.parameters()) {
    EXPECT_EQ(p->value, values.at(p->name)) << p->name;
    if (!p->name.ends_with("e_score_correction_bias")) continue;
    for (const float v : p->value) moved += std::abs(v);
  }
  EXPECT_GT(moved, 0.0f) << "no selection bias was moved";
}

// The largest change of a selection bias in a step with bias_step 0.5 and half the learning rate.
float LargestMove(bool falls) {
  const ModelConfig config = ParseModelConfig(testing::SmallConfig("deepseek_v3"));
  ThreadPool pool(1);
  Model<float> model(config, {}, {}, pool);
  model.Initialise(1, 0.1);
  Learner learner(model, {.bias_step = 0.5, .bias_step_falls = falls}, nullptr);
  const Batch batch = testing::RandomBatch({7, 5}, config.vocab_size, 3);
  learner.Learn(std::span(&batch, 1), {.targets = 12, .tokens = 12});
  learner.AfterStep(0.5);
  float largest = 0.0f;
  for (const Parameter<float>* p : learner.Parameters()) {
    if (!p->name.ends_with("e_score_correction_bias")) continue;
    for (const float v : p->value) largest = std::max(largest, std::abs(v));
  }
  return largest;
}

TEST(BiasStep, FallsWithTheRateUnlessItIsConstant) {
  EXPECT_FLOAT_EQ(LargestMove(true), 0.25f);
  EXPECT_FLOAT_EQ(LargestMove(false), 0.5f);
}

}  // namespace
}  // namespace switchyard::train
