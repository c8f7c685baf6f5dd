#include "train/run/trainer.h"

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <fstream>
#include <mutex>

#include "comm/device/communicator.h"
#include "core/temporary_directory.h"
#include "core/testing.h"
#include "train/test_bigram.h"

namespace switchyard::train {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class TrainerTest : public ::testing::Test {
 protected:
  TrainerTest() { std::ofstream(dir_ / "config.json") << "{}"; }

  TrainerOptions Options(int64_t steps) const {
    TrainerOptions options{.rows_per_step = 6, .rows_per_pass = 2, .output = dir_ / "out"};
    options.schedule = {.rate = 0.05, .warmup_steps = 3, .steps = steps};
    options.files = {.dtype = DType::kF32, .copied = {dir_ / "config.json"}};
    return options;
  }

  // The position of the data after this many steps, as a number.
  int64_t PositionAfter(int64_t steps) const {
    Corpus corpus(CountingDocuments(8, 60), {.length = 8, .seed = 5});
    SamplePosition position;
    for (int64_t step = 0; step < steps; ++step) corpus.Take(Options(1).rows_per_step, &position);
    return position.epoch * 1000 + position.row;
  }

  const TemporaryDirectory temporary_;
  const fs::path& dir_ = temporary_.path();
};

struct Ran {
  std::vector<double> losses;
  std::map<std::string, std::vector<float>> values;  // parameters of all ranks, by name
};

// Trains on `ranks` threads until `stop_after` steps are taken, resuming from the last checkpoint.
Ran TrainOn(int ranks, const TrainerOptions& options, int64_t stop_after) {
  Ran out;
  std::mutex mutex;
  const MeshShape shape{.tp = ranks, .ep = ranks};
  RunRankThreads(ranks, RankComm::BytesPerRank(shape) + (1 << 20),
                 [&](int rank, std::shared_ptr<SharedArena> arena) {
                   const auto comm = RankComm::Create(arena, shape, rank);
                   BigramModel model(8, rank, ranks, comm->tp.get());
                   Corpus corpus(CountingDocuments(8, 60), {.length = 8, .seed = 5});
                   ThreadPool pool(1);
                   Trainer trainer(model, corpus, options, comm->tp.get(), pool);
                   if (const auto last = LatestCheckpoint(options.output)) trainer.Resume(*last);
                   trainer.Run(
                       [&](const StepReport& report) {
                         if (rank == 0) out.losses.push_back(report.losses.total());
                       },
                       [&] { return trainer.state().step >= stop_after; }, {});
                   const std::lock_guard lock(mutex);
                   for (const Parameter<float>* p : model.Parameters())
                     out.values[p->name] = p->value;
                 });
  return out;
}

TEST_F(TrainerTest, ResumedRunsAreTheSameToTheBit) {
  TrainerOptions options = Options(20);
  const Ran straight = TrainOn(1, options, 20);
  EXPECT_LT(straight.losses.back(), 0.8 * straight.losses.front());
  options.output = dir_ / "halves";
  const Ran first = TrainOn(1, options, 10), second = TrainOn(1, options, 20);
  ASSERT_EQ(first.losses.size(), 10u);
  for (size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(straight.losses[i], i < 10 ? first.losses[i] : second.losses[i - 10]) << i;
  }
  EXPECT_EQ(second.values, straight.values);
}

TEST_F(TrainerTest, AnyNumberOfRanksResumes) {
  TrainerOptions options = Options(20);
  options.adam.epsilon = 1e-4;  // bounds the effect of rounding in gradients that are nearly zero
  const Ran straight = TrainOn(1, options, 20);
  options.output = dir_ / "ranks";
  TrainOn(2, options, 6);
  EXPECT_TRUE(fs::exists(options.output / "checkpoint-000006/model-00002-of-00002.safetensors"));
  EXPECT_TRUE(fs::exists(options.output / "checkpoint-000006/model.safetensors.index.json"));
  EXPECT_TRUE(fs::exists(options.output / "checkpoint-000006/config.json"));
  TrainOn(4, options, 13);
  const Ran last = TrainOn(1, options, 20);
  ASSERT_EQ(last.values.size(), straight.values.size());
  for (const auto& [name, values] : straight.values) {
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_NEAR(last.values.at(name)[i], values[i], 1e-5) << name;
    }
  }
}

TEST_F(TrainerTest, ALossThatIsNotFiniteStopsTheRun) {
  const TrainerOptions options = Options(20);
  TrainOn(1, options, 4);
  BigramModel model(8, 0, 1, nullptr);
  Corpus corpus(CountingDocuments(8, 60), {.length = 8, .seed = 5});
  ThreadPool pool(1);
  Trainer trainer(model, corpus, options, nullptr, pool);
  trainer.Resume(*LatestCheckpoint(options.output));
  model.break_at = 2;
  const std::string error = ErrorOf([&] { trainer.Run({}, {}, {}); });
  EXPECT_THAT(error, HasSubstr("step 6: the loss is nan, the gradient of row.3 is not finite"));
  EXPECT_THAT(error, HasSubstr("the last good checkpoint is"));
  EXPECT_THAT(error, HasSubstr("checkpoint-000004"));
  EXPECT_EQ(trainer.state().step, 5);
  EXPECT_EQ(LatestCheckpoint(options.output)->filename(), "checkpoint-000004");
}

TEST_F(TrainerTest, SkippedStepsChangeNothingButThePosition) {
  TrainerOptions options = Options(6);
  options.rule.skip_nonfinite = true;
  BigramModel model(8, 0, 1, nullptr);
  Corpus corpus(CountingDocuments(8, 60), {.length = 8, .seed = 5});
  ThreadPool pool(1);
  Trainer trainer(model, corpus, options, nullptr, pool);
  model.break_at = 3;
  std::vector<std::vector<float>> values;
  std::vector<std::string> warnings, skipped;
  trainer.Run(
      [&](const StepReport& report) {
        values.push_back(model.Parameters()[3]->value);
        skipped.push_back(report.skipped);
      },
      {}, [&](const std::string& w) { warnings.push_back(w); });
  ASSERT_EQ(values.size(), 6u);
  EXPECT_EQ(values[2], values[1]);
  for (const size_t step : {1, 3, 4, 5}) EXPECT_NE(values[step], values[step - 1]) << step;
  for (const float v : values[5]) EXPECT_TRUE(std::isfinite(v));
  const std::string why = "the loss is nan, the gradient of row.3 is not finite";
  EXPECT_THAT(skipped, ::testing::ElementsAre("", "", why, "", "", ""));
  EXPECT_THAT(warnings, ::testing::ElementsAre("step 3: the update is skipped: " + why));
  EXPECT_EQ(trainer.state().step, 6);
  EXPECT_EQ(trainer.state().position.epoch * 1000 + trainer.state().position.row, PositionAfter(6));
}

TEST_F(TrainerTest, TooManySkippedStepsEndTheRun) {
  TrainerOptions options = Options(20);
  options.rule = {.skip_nonfinite = true, .max_skipped = 0};
  BigramModel model(8, 0, 1, nullptr);
  Corpus corpus(CountingDocuments(8, 60), {.length = 8, .seed = 5});
  ThreadPool pool(1);
  Trainer trainer(model, corpus, options, nullptr, pool);
  model.break_at = 3;
  EXPECT_THAT(ErrorOf([&] { trainer.Run({}, {}, {}); }),
              HasSubstr("step 3: the loss is nan, the gradient of row.3 is not finite; skipped "
                        "steps in a row: 1 (--max-skipped-steps 0)"));
}

std::map<std::string, std::string> FilesBelow(const fs::path& dir) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(dir)) {
    const fs::path& path = entry.path();
    if (!entry.is_regular_file() || path.filename() == "trainer.json") continue;  // has times
    std::ifstream in(path, std::ios::binary);
    files[fs::relative(path, dir).string()] = {std::istreambuf_iterator<char>(in), {}};
  }
  return files;
}

TEST_F(TrainerTest, CheckpointsInTheBackgroundAreTheSame) {
  TrainerOptions options = Options(9);
  options.save_every = 2;
  options.keep = 0;
  options.rule.spike_sigmas = 3;
  const Ran wanted = TrainOn(2, options, 9);
  const auto files = FilesBelow(options.output);
  EXPECT_EQ(files.size(), 5u * 6);  // steps 2, 4, 6, 8 and 9: 2 · 2 tensor files, index, config
  options.output = dir_ / "async";
  options.async_save = true;
  TrainOn(2, options, 5);
  EXPECT_EQ(LatestStep(options.output), 5);
  const Ran found = TrainOn(2, options, 9);
  EXPECT_EQ(found.values, wanted.values);
  fs::remove_all(CheckpointPath(options.output, 5));
  EXPECT_EQ(FilesBelow(options.output), files);
}

// The error of a run ends it, but a checkpoint that is being written is completed.
TEST_F(TrainerTest, AnErrorWaitsForTheCheckpointInTheBackground) {
  TrainerOptions options = Options(20);
  options.save_every = 2;
  options.async_save = true;
  BigramModel model(8, 0, 1, nullptr);
  Corpus corpus(CountingDocuments(8, 60), {.length = 8, .seed = 5});
  ThreadPool pool(1);
  Trainer trainer(model, corpus, options, nullptr, pool);
  model.break_at = 5;
  EXPECT_THAT(
      ErrorOf([&] { trainer.Run({}, {}, {}); }),
      HasSubstr("the last good checkpoint is " + CheckpointPath(options.output, 4).string()));
  EXPECT_EQ(LatestStep(options.output), 4);
}

class FullDiskTest : public TrainerTest, public ::testing::WithParamInterface<bool> {};

TEST_P(FullDiskTest, KeepsTheLastGoodCheckpoint) {
  TrainerOptions options = Options(6);
  TrainOn(1, options, 2);
  options.save_every = 2;
  options.async_save = GetParam();
  BigramModel model(8, 0, 1, nullptr);
  Corpus corpus(CountingDocuments(8, 60), {.length = 8, .seed = 5});
  ThreadPool pool(1);
  Trainer trainer(model, corpus, options, nullptr, pool);
  trainer.Resume(*LatestCheckpoint(options.output));
  std::vector<std::string> warnings;
  // A limit on the file size emulates a full disk.
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit low = before;
  low.rlim_cur = 100;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
  const std::string error =
      ErrorOf([&] { trainer.Run({}, {}, [&](const std::string& w) { warnings.push_back(w); }); },
              ErrorKind::kResource);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  ASSERT_EQ(warnings.size(), 1u);  // the warning of step 4; the error at the end is thrown
  EXPECT_THAT(warnings[0], HasSubstr("model.safetensors: cannot be written: File too large"));
  EXPECT_THAT(error, HasSubstr("cannot be written"));
  EXPECT_EQ(LatestCheckpoint(options.output)->filename(), "checkpoint-000002");
  EXPECT_EQ(std::distance(fs::directory_iterator(options.output), fs::directory_iterator()), 1);
}

INSTANTIATE_TEST_SUITE_P(Saves, FullDiskTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Async" : "Sync"; });

TEST_F(TrainerTest, CheckpointsOfOtherRunsAreRefused) {
  const TrainerOptions options = Options(4);
  TrainOn(1, options, 4);
  const fs::path last = *LatestCheckpoint(options.output);
  const auto resume = [&](int vocab, int documents) {
    BigramModel model(vocab, 0, 1, nullptr);
    Corpus corpus(CountingDocuments(vocab, documents), {.length = 8, .seed = 5});
    ThreadPool pool(1);
    Trainer(model, corpus, options, nullptr, pool).Resume(last);
  };
  EXPECT_THAT(ErrorOf([&] { resume(8, 61); }), HasSubstr("another corpus"));
  EXPECT_THAT(ErrorOf([&] { resume(7, 60); }), HasSubstr("model lacks (row.7)"));
  EXPECT_THAT(ErrorOf([&] { resume(9, 60); }), HasSubstr("another config"));
  fs::resize_file(last / "optimizer.safetensors", 500);
  EXPECT_THAT(ErrorOf([&] { resume(8, 60); }), HasSubstr("optimizer.safetensors"));
}

TEST_F(TrainerTest, OldCheckpointsAreDeleted) {
  TrainerOptions options = Options(6);
  options.save_every = 1;
  options.keep = 2;
  TrainOn(1, options, 6);
  EXPECT_EQ(std::distance(fs::directory_iterator(options.output), fs::directory_iterator()), 2);
  EXPECT_EQ(LatestCheckpoint(options.output)->filename(), "checkpoint-000006");
}

}  // namespace
}  // namespace switchyard::train
