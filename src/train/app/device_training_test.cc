// Runs on a device from files to the exported model, with plain operations on CPUs.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "core/testing.h"
#include "train/app/test_run.h"
#include "train/app/training.h"
#include "train/device/ranks.h"

namespace switchyard::train {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class DeviceTrainingTest : public testing::RunTest {
 protected:
  TrainingOptions OnDevice(int64_t steps) const {
    TrainingOptions options = Options(steps);
    options.products = ProductDtype::kBFloat16;
    options.device_ops = MakePlainRankOps;
    return options;
  }
  std::string FileOf(const fs::path& path) const {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
};

TEST_F(DeviceTrainingTest, ARunIsInterruptedResumedAndExported) {
  TrainingOptions options = OnDevice(6);
  EXPECT_EQ(Train(options).step, 6);
  EXPECT_THAT(said_, HasSubstr("MiB of parameters, gradients and moments"));
  const std::string whole = FileOf(options.trainer.output / "checkpoint-000006/model.safetensors");
  EXPECT_NE(whole, "");

  options.trainer.output = dir_ / "parts";
  options.trainer.save_every = 2;
  options.trainer.async_save = true;
  int polls = 0;
  EXPECT_TRUE(Train(options, [&] { return ++polls > 3; }).stopped);
  EXPECT_EQ(Train(options).step, 6);
  EXPECT_EQ(FileOf(options.trainer.output / "checkpoint-000006/model.safetensors"), whole);
  EXPECT_EQ(FileOf(options.trainer.output / "checkpoint-000006/optimizer.safetensors"),
            FileOf(dir_ / "out/checkpoint-000006/optimizer.safetensors"));
  EXPECT_TRUE(fs::exists(ExportFinal(options.trainer.output) / "model.safetensors"));
}

// The files of a checkpoint do not depend on the layout, so a run may change it.
TEST_F(DeviceTrainingTest, ARunOnSeveralRanksIsResumedOnOneAndExported) {
  TrainingOptions options = OnDevice(6);
  options.layout.ep = options.layout.dp = 2;
  options.losses.balance = {.batch = 0.01, .sequence = 0.01};
  options.trainer.save_every = 2;
  std::atomic<int> polls = 0;  // of both ranks
  EXPECT_TRUE(Train(options, [&] { return ++polls > 6; }).stopped);
  options.layout = {};
  EXPECT_EQ(Train(options).step, 6);
  options.trainer.schedule.steps = 8;
  options.layout = {.ep = 2, .dp = 4};
  EXPECT_EQ(Train(options).step, 8);
  EXPECT_TRUE(fs::exists(ExportFinal(options.trainer.output) / "model.safetensors"));
}

// Shards change no bit.
TEST_F(DeviceTrainingTest, RanksShareTheMoments) {
  TrainingOptions options = OnDevice(5);
  for (const Layout& layout : {Layout{.ep = 2, .dp = 2}, Layout{.ep = 2, .dp = 4}}) {
    SCOPED_TRACE(layout.ToString());
    options.layout = layout;
    options.zero_stage = 0;
    options.trainer.save_every = 0;
    options.trainer.output = dir_ / ("whole, " + layout.ToString());
    Train(options);
    const fs::path whole = options.trainer.output;
    options.zero_stage = 1;
    options.trainer.save_every = 2;
    options.trainer.output = dir_ / ("shards, " + layout.ToString());
    std::atomic<int> polls = 0;
    EXPECT_TRUE(Train(options, [&] { return ++polls > 3 * layout.ranks(); }).stopped);
    EXPECT_THAT(said_, HasSubstr("without --zero-stage 1"));
    EXPECT_EQ(Train(options).step, 5);
    for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
      const std::string name = std::string("checkpoint-000005/") + file;
      EXPECT_EQ(FileOf(options.trainer.output / name), FileOf(whole / name)) << file;
    }
  }
}

// A profile changes no bit.
TEST_F(DeviceTrainingTest, EveryRankWritesATraceOfItsSteps) {
  TrainingOptions options = OnDevice(4);
  options.layout.ep = options.layout.dp = 2;
  options.losses.balance = {.batch = 0.01, .sequence = 0.01};
  Train(options);
  const fs::path whole = options.trainer.output;
  options.trainer.output = dir_ / "profiled";
  options.profile = profile::Options{
      .dir = (dir_ / "traces").string(), .name = "train", .start_step = 2, .num_steps = 2};
  Train(options);
  EXPECT_THAT(said_, HasSubstr("train-TP-0.trace.json, 0 were dropped"));
  for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
    const std::string name = std::string("checkpoint-000004/") + file;
    EXPECT_EQ(FileOf(options.trainer.output / name), FileOf(whole / name)) << file;
  }
  for (int rank = 0; rank < 2; ++rank) {
    std::map<std::string, int> names;  // number of events
    const nlohmann::json trace =
        nlohmann::json::parse(FileOf(dir_ / fmt::format("traces/train-TP-{}.trace.json", rank)));
    for (const nlohmann::json& event : trace["traceEvents"])
      if (event["ph"] == "X") ++names[event["name"]];
    EXPECT_EQ(names["training step"], 2);
    const int layers = names["attention"];  // in all micro-batches
    EXPECT_GT(layers, 0);
    EXPECT_EQ(names["attention backward"], layers);
    for (const char* name : {"experts", "combine", "weight gradients", "gather x", "gather dy",
                             "gather experts", "gather weights", "sum dx", "sum dweights"})
      EXPECT_EQ(names[name], names["experts backward"]) << name;
    EXPECT_EQ(names["sum outputs"], names["experts"]);  // few rows: in one part
    EXPECT_GT(names["sum gradients"], 0);
    EXPECT_EQ(names["AdamW"], 2);
    EXPECT_EQ(names["learn"], 2);
  }
}

TEST_F(DeviceTrainingTest, OptionsThatOnlyCpusHaveAreRefusedByName) {
  const auto refusal = [&](const std::function<void(TrainingOptions&)>& change) {
    TrainingOptions options = OnDevice(2);
    change(options);
    return ErrorOf([&] { Train(options); });
  };
  using Options = TrainingOptions;
  EXPECT_THAT(refusal([](Options& o) { o.layout.tp = 2; }),
              HasSubstr("--tp is not supported yet; want --tp 1"));
  EXPECT_THAT(refusal([](Options& o) { o.layout.pp = 2; }),
              HasSubstr("--pp is not supported yet; want --pp 1"));
  EXPECT_THAT(refusal([](Options& o) { o.products = ProductDtype::kFloat32; }),
              HasSubstr("want --compute-dtype bfloat16"));
  EXPECT_THAT(refusal([](Options& o) { o.products = ProductDtype::kFp8; }),
              HasSubstr("hidden_size is 12; --compute-dtype fp8 needs a multiple of 128"));
  EXPECT_THAT(refusal([](Options& o) {
                o.products = ProductDtype::kFp8;
                o.device_ops = nullptr;
              }),
              HasSubstr("--compute-dtype fp8: FP8 products run on GPUs; want --device cuda"));
  EXPECT_THAT(refusal([](Options& o) { o.recompute = Recompute::kLayer; }),
              HasSubstr("--recompute is not supported yet"));
  EXPECT_THAT(refusal([](Options& o) { o.learner.order = schedule::Order::kOverlapped; }),
              HasSubstr("--schedule is not supported yet"));
  EXPECT_THAT(refusal([](Options& o) { o.early_sums = true; }), HasSubstr("--early-sums"));
  EXPECT_THAT(refusal([](Options& o) { o.synchronous = true; }), HasSubstr("--exchange sync"));
  EXPECT_THAT(refusal([&](Options& o) {
                o.lora.rank = 2;
                o.learner.bias_step = 0;
                o.init_from = dir_;
              }),
              HasSubstr("--lora-rank is not supported yet"));
}

}  // namespace
}  // namespace switchyard::train
