#include "train/app/score.h"

#include <gmock/gmock.h>

#include <cmath>

#include "core/testing.h"
#include "train/app/test_run.h"
#include "train/app/training.h"

namespace switchyard::train {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ScoreTest = testing::RunTest;

TEST_F(ScoreTest, AModelThatLearnedNothingScoresLikeChance) {
  TrainingOptions options = Options(1);
  options.trainer.schedule = {.rate = 1e-12, .steps = 1};
  Train(options);
  const auto score = ScoreModel({.model = ExportFinal(dir_ / "out"), .data = options.data});
  EXPECT_EQ(score["documents"], 40);
  EXPECT_NEAR(score["loss"].get<double>(), std::log(288.0), 0.05);
  EXPECT_LT(score["accuracy"].get<double>(), 0.2);
  EXPECT_GT(score["positions"].get<int64_t>(), 0);
  // Tokens of prompts are no targets.
  EXPECT_LT(score["positions"].get<int64_t>(), score["tokens"].get<int64_t>());
}

TEST_F(ScoreTest, TrainingRaisesTheScore) {
  TrainingOptions options = Options(120);
  options.layout = {.ep = 2, .dp = 2};
  Train(options);
  const fs::path model = ExportFinal(dir_ / "out");
  EXPECT_TRUE(fs::exists(model / "model.safetensors"));
  EXPECT_FALSE(fs::exists(model / "model.safetensors.index.json"));
  EXPECT_FALSE(fs::exists(model / "trainer.json"));
  ScoreOptions score_options{.model = model, .data = options.data};
  const auto score = ScoreModel(score_options);
  EXPECT_LT(score["loss"].get<double>(), 1.5);
  EXPECT_GT(score["accuracy"].get<double>(), 0.5);
  EXPECT_GT(score["mtp_agreement"].get<double>(), 0.3);
  // The model has one MoE layer and one dense layer. Every token chooses three experts.
  ASSERT_EQ(score["layers"].size(), 1u);
  int64_t sum = 0;
  for (const auto& load : score["layers"][0]["loads"]) sum += load.get<int64_t>();
  EXPECT_EQ(sum, 3 * score["tokens"].get<int64_t>());
  EXPECT_EQ(score["balancedness"], score["layers"][0]["balancedness"]);
  // The counts do not depend on the passes or the threads.
  score_options.rows_per_pass = 3;
  score_options.threads = 2;
  auto other = ScoreModel(score_options);
  EXPECT_NEAR(other["loss"].get<double>(), score["loss"].get<double>(), 1e-9);
  EXPECT_EQ(other["accuracy"], score["accuracy"]);
  EXPECT_EQ(other["layers"], score["layers"]);
  // The tokens of prompts are targets too.
  score_options.chat_loss = DocumentEncoder::ChatLoss::kAll;
  EXPECT_GT(ScoreModel(score_options)["positions"], score["positions"]);
}

TEST_F(ScoreTest, WhatCannotBeScoredIsNamed) {
  EXPECT_THAT(ErrorOf([&] { ScoreModel({.model = dir_ / "none"}); }, ErrorKind::kNotFound),
              HasSubstr("none"));
  EXPECT_THAT(ErrorOf([&] { ExportFinal(dir_ / "out"); }, ErrorKind::kNotFound),
              HasSubstr("no checkpoint to export"));
}

TEST_F(ScoreTest, SchedulesArePrintedForEachStage) {
  TrainingOptions options = Options(1);
  options.trainer.rows_per_step = 16;
  options.layout = {.dp = 2};
  EXPECT_THAT(ScheduleText(options),
              HasSubstr("4 micro-batches through 3 layers (2 with experts)"));
  options.layout.pp = 2;
  const std::string stages = ScheduleText(options);
  EXPECT_THAT(stages, HasSubstr("stage 0 of 2"));
  EXPECT_THAT(stages, HasSubstr("stage 1 of 2"));
  options.layout.pp = 3;
  EXPECT_THAT(ErrorOf([&] { ScheduleText(options); }), HasSubstr("--pp 3"));
}

}  // namespace
}  // namespace switchyard::train
