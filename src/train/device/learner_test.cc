// A model on a device in the training loop, with plain operations on CPUs.
#include "train/device/learner.h"

#include <gmock/gmock.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/temporary_directory.h"
#include "train/run/layout.h"
#include "train/run/trainer.h"
#include "train/test_bigram.h"
#include "train/test_training.h"

namespace switchyard::train {
namespace {

namespace fs = std::filesystem;

using Values = std::map<std::string, std::vector<float>>;

class DeviceLearnerTest : public ::testing::Test {
 protected:
  DeviceLearnerTest() {
    std::ofstream(dir_ / "config.json") << testing::SmallConfig("deepseek_v3");
  }

  struct Ran {
    std::vector<StepReport> reports;
    Values values;
  };
  // Calls `run` with the model in a learner.
  using WithLearner = std::function<void(Model<float>& model, ThreadPool& pool,
                                         const std::function<void(TrainedModel&)>& run)>;

  TrainerOptions OptionsOf(const std::string& output) const {
    TrainerOptions options{.rows_per_step = 8, .rows_per_pass = 3, .output = dir_ / output};
    options.schedule = {.rate = 0.01, .warmup_steps = 3, .steps = 30};
    options.files = {.dtype = DType::kF32, .copied = {dir_ / "config.json"}};
    return options;
  }
  // Trains until `stop_after` steps are taken, from the last checkpoint in `output` if there is
  // one. Returns the reports.
  std::vector<StepReport> RunLearner(TrainedModel& learner, const TrainerOptions& options,
                                     const TrainerRanks& ranks, int64_t stop_after,
                                     ThreadPool& pool) const {
    Corpus corpus(CountingDocuments(8, 60), {.length = 8, .seed = 5});
    std::vector<StepReport> reports;
    Trainer trainer(learner, corpus, options, ranks, pool);
    if (const auto last = LatestCheckpoint(options.output)) trainer.Resume(*last);
    trainer.Run([&](const StepReport& report) { reports.push_back(report); },
                [&] { return trainer.state().step >= stop_after; }, {});
    return reports;
  }
  Values SavedValues(const std::string& output) const {
    ThreadPool pool(1);
    Model<float> saved(LoadModelConfig(dir_), {}, {}, pool);
    saved.Load(*LatestCheckpoint(dir_ / output));
    Values values;
    for (const Parameter<float>* p : saved.parameters()) values[p->name] = p->value;
    return values;
  }

  Ran Train(const std::string& output, int64_t stop_after, const WithLearner& with_learner) {
    ThreadPool pool(1);
    Model<float> model(LoadModelConfig(dir_), {.balance = {.sequence = 0.01}}, {}, pool);
    model.Initialise(1, 0.1);
    Ran ran;
    with_learner(model, pool, [&](TrainedModel& learner) {
      ran.reports = RunLearner(learner, OptionsOf(output), {}, stop_after, pool);
    });
    ran.values = SavedValues(output);
    return ran;
  }

  // The same on several ranks. The reports are those of rank 0.
  template <typename C>
  Ran TrainOnRanks(const std::string& output, int64_t stop_after, const Layout& layout) {
    Ran ran;
    const ModelConfig config = LoadModelConfig(dir_);
    const auto body = [&](int rank, const std::shared_ptr<SharedArena>& arena) {
      const auto ranks =
          LayoutRanks::Create(arena, layout, rank, {.timeout = std::chrono::seconds(60)});
      ThreadPool pool(1);
      const ExpertRanks experts = {.rank = ranks->place.ep, .size = layout.ep};
      Model<float> model(config, {.balance = {.sequence = 0.01}}, ranks->layer_ranks(experts),
                         pool);
      model.Initialise(1, 0.1);
      const std::unique_ptr<TrainOps<C>> ops = MakePlainOps<C>(pool);
      const std::unique_ptr<DeviceRanks> groups = MakeHostRanks(*ranks);
      DeviceLearner<C> learner(model, {.bias_step = 0.01}, *ops, *groups);
      std::vector<StepReport> reports =
          RunLearner(learner, OptionsOf(output), ranks->trainer_ranks(), stop_after, pool);
      if (rank == 0) ran.reports = std::move(reports);
    };
    RunRankThreads(layout.ranks(), LayoutRanks::BytesPerRank(layout) + 4096, body);
    ran.values = SavedValues(output);
    return ran;
  }

  template <typename C>
  Ran TrainOnDevice(const std::string& output, int64_t stop_after) {
    return Train(output, stop_after, [](Model<float>& model, ThreadPool& pool, const auto& run) {
      const std::unique_ptr<TrainOps<C>> ops = MakePlainOps<C>(pool);
      DeviceRanks alone;
      DeviceLearner<C> learner(model, {.bias_step = 0.01}, *ops, alone);
      run(learner);
    });
  }
  Ran TrainOnCpu(const std::string& output) {
    return Train(output, 30, [](Model<float>& model, ThreadPool&, const auto& run) {
      Learner learner(model, {.bias_step = 0.01}, nullptr);
      run(learner);
    });
  }

  // The losses and norms of `steps` steps agree.
  static void ExpectSameCurves(const Ran& got, const Ran& want, size_t steps) {
    ASSERT_EQ(got.reports.size(), steps);
    for (size_t i = 0; i < got.reports.size(); ++i) {
      const StepReport &a = got.reports[i], &b = want.reports[i];
      EXPECT_NEAR(a.losses.main, b.losses.main, 2e-4 * b.losses.main) << i;
      EXPECT_NEAR(a.losses.balance, b.losses.balance, 2e-4) << i;
      EXPECT_NEAR(a.gradient_norm, b.gradient_norm, 1e-2 * b.gradient_norm) << i;
      EXPECT_EQ(a.figures.size(), b.figures.size());
    }
  }

  const TemporaryDirectory temporary_;
  const fs::path& dir_ = temporary_.path();
};

TEST_F(DeviceLearnerTest, TheLossCurveIsThatOfTheModelOnCpus) {
  const Ran want = TrainOnCpu("cpu"), got = TrainOnDevice<float>("device", 30);
  ExpectSameCurves(got, want, 30);
  EXPECT_EQ(got.values.size(), want.values.size());
  double moved = 0;
  for (const auto& [name, value] : want.values) {
    EXPECT_LT(testing::RelativeError(got.values.at(name), value), 1e-2) << name;
    if (name.ends_with("e_score_correction_bias"))
      for (const float v : value) moved += std::abs(v);
  }
  EXPECT_GT(moved, 0.0);
}

TEST_F(DeviceLearnerTest, TheLossCurvesOfAllLayoutsAgree) {
  const Ran want = TrainOnDevice<float>("one", 30);
  int count = 0;
  for (const Layout& layout :
       {Layout{.dp = 2}, Layout{.ep = 2, .dp = 2}, Layout{.ep = 2, .dp = 4}}) {
    SCOPED_TRACE(layout.ToString());
    const Ran got = TrainOnRanks<float>("ranks" + std::to_string(count++), 30, layout);
    ExpectSameCurves(got, want, 30);
    ASSERT_EQ(got.values.size(), want.values.size());
    for (const auto& [name, value] : want.values)
      EXPECT_LT(testing::RelativeError(got.values.at(name), value), 1e-2) << name;
  }
}

// A checkpoint has the same contents in every layout.
TEST_F(DeviceLearnerTest, ARunChangesItsLayout) {
  const Ran whole = TrainOnDevice<float>("whole", 30);
  TrainOnRanks<float>("parts", 11, {.ep = 2, .dp = 2});
  TrainOnDevice<float>("parts", 17);
  TrainOnRanks<float>("parts", 22, {.ep = 2, .dp = 4});
  const Ran rest = TrainOnCpu("parts");
  ASSERT_EQ(rest.reports.size(), 8u);
  EXPECT_NEAR(rest.reports.back().losses.main, whole.reports.back().losses.main, 1e-3);
}

TEST_F(DeviceLearnerTest, AResumedRunOfRanksHasTheBitsOfAnUninterruptedOne) {
  const Layout layout = {.ep = 2, .dp = 2};
  const Ran whole = TrainOnRanks<BF16>("whole", 30, layout);
  TrainOnRanks<BF16>("parts", 13, layout);
  const Ran rest = TrainOnRanks<BF16>("parts", 30, layout);
  ASSERT_EQ(rest.reports.size(), 17u);
  EXPECT_EQ(rest.reports.back().losses.main, whole.reports.back().losses.main);
  EXPECT_EQ(rest.values, whole.values);
}

TEST_F(DeviceLearnerTest, Bfloat16Learns) {
  const Ran want = TrainOnCpu("cpu"), got = TrainOnDevice<BF16>("device", 30);
  const double last = want.reports.back().losses.main;
  EXPECT_LT(got.reports.back().losses.main, 0.5 * got.reports.front().losses.main);
  EXPECT_NEAR(got.reports.back().losses.main, last, 0.1 * want.reports.front().losses.main);
}

TEST_F(DeviceLearnerTest, AResumedRunHasTheBitsOfAnUninterruptedOne) {
  const Ran whole = TrainOnDevice<BF16>("whole", 30);
  TrainOnDevice<BF16>("parts", 13);
  const Ran rest = TrainOnDevice<BF16>("parts", 30);
  ASSERT_EQ(rest.reports.size(), 17u);
  EXPECT_EQ(rest.reports.back().losses.main, whole.reports.back().losses.main);
  EXPECT_EQ(rest.values, whole.values);
}

// A checkpoint has the same contents on both, so a run may change its device.
TEST_F(DeviceLearnerTest, ARunOnCpusResumesOnADevice) {
  const Ran whole = TrainOnDevice<float>("whole", 30);
  TrainOnDevice<float>("parts", 13);
  const Ran rest = TrainOnCpu("parts");
  ASSERT_EQ(rest.reports.size(), 17u);
  EXPECT_NEAR(rest.reports.back().losses.main, whole.reports.back().losses.main, 1e-3);
}

}  // namespace
}  // namespace switchyard::train
