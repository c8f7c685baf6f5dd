#include "train/app/step_log.h"

#include <gmock/gmock.h>

#include <cmath>

#include "core/error.h"
#include "core/temporary_directory.h"
#include "core/testing.h"
#include "train/app/picture.h"

namespace switchyard::train {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class StepLogTest : public ::testing::Test {
 protected:
  void Write(int64_t after, int64_t first, int64_t last) {
    StepLog log(path(), after, [&](const std::string& w) { warnings_.push_back(w); });
    for (int64_t step = first; step <= last; ++step) {
      log.Write({.step = step,
                 .losses = {.main = 2.0 / static_cast<double>(step)},
                 .tokens = 10,
                 .seconds = 0.5,
                 .figures = {{"balancedness", 0.5}, {"balancedness_worst", 0.25}}});
    }
  }
  fs::path path() const { return dir_ / "log.jsonl"; }

  const TemporaryDirectory temporary_;
  const fs::path& dir_ = temporary_.path();
  std::vector<std::string> warnings_;
};

TEST_F(StepLogTest, LinesPastTheCheckpointAreRemoved) {
  Write(0, 1, 7);
  Write(4, 5, 6);  // resumes from the checkpoint of step 4
  const auto lines = ReadStepLog(path());
  ASSERT_EQ(lines.size(), 6u);
  for (size_t i = 0; i < lines.size(); ++i) EXPECT_EQ(lines[i]["step"], i + 1);
  EXPECT_EQ(lines[1]["loss"], 1.0);
  EXPECT_EQ(lines[1]["tokens_per_second"], 20.0);
  EXPECT_EQ(lines[1]["balancedness"], 0.5);
  Write(0, 1, 1);  // a run that starts at step 0
  EXPECT_EQ(ReadStepLog(path()).size(), 1u);
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(StepLogTest, ATruncatedLineIsSkipped) {
  Write(0, 1, 2);
  std::ofstream(path(), std::ios::app) << "{\"step\": 3, \"lo";
  EXPECT_EQ(ReadStepLog(path()).size(), 2u);
  std::ofstream(path(), std::ios::app) << "\n{\"step\": 4}\n";
  EXPECT_THAT(ErrorOf([&] { ReadStepLog(path()); }), HasSubstr("log.jsonl:3: not a line"));
}

TEST_F(StepLogTest, WhatIsNoLogIsRefused) {
  EXPECT_THAT(ErrorOf([&] { ReadStepLog(dir_ / "none"); }, ErrorKind::kNotFound),
              HasSubstr("cannot be read"));
  std::ofstream(path()) << "";
  EXPECT_THAT(ErrorOf([&] { ReadStepLog(path()); }), HasSubstr("no step found"));
}

TEST_F(StepLogTest, ALogThatCannotBeWrittenIsReportedOnce) {
  fs::create_directories(path());
  Write(0, 1, 3);
  EXPECT_EQ(warnings_.size(), 1u);
}

TEST_F(StepLogTest, PicturesAreDrawnFromTheLog) {
  Write(0, 1, 50);
  WritePictures(dir_);
  for (const char* name : {"loss.svg", "balance.svg"}) {
    std::ifstream in(dir_ / name);
    const std::string svg((std::istreambuf_iterator<char>(in)), {});
    EXPECT_THAT(svg, HasSubstr("<polyline")) << name;
    EXPECT_THAT(svg, HasSubstr("</svg>")) << name;
  }
  EXPECT_EQ(CurveOf(path(), "loss", "a").points.size(), 50u);
  EXPECT_THAT(ErrorOf([&] { CurveOf(path(), "lost", "a"); }),
              HasSubstr("no line has a number in the key lost"));
}

}  // namespace
}  // namespace switchyard::train
