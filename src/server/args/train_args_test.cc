#include "server/args/train_args.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "core/temporary_directory.h"
#include "core/testing.h"

namespace switchyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TrainArgsTest : public ::testing::Test {
 protected:
  std::vector<std::string> WithYaml(const std::string& yaml, std::vector<std::string> more = {}) {
    std::ofstream(file_) << yaml;
    more.insert(more.begin(), {"--config", file_.string()});
    return more;
  }

  const TemporaryDirectory temporary_;
  const std::filesystem::path file_ = temporary_.path() / "train.yaml";
};

const std::vector<std::string> kLeast = {"--model", "m", "--data",   "a", "b",
                                         "--steps", "7", "--output", "o"};

TEST_F(TrainArgsTest, TheLeastThatIsNeeded) {
  const auto args = ParseTrain(kLeast);
  ASSERT_TRUE(args);
  EXPECT_EQ(args->model, "m");
  EXPECT_THAT(args->data, ElementsAre("a", "b"));
  EXPECT_EQ(args->steps, 7);
  EXPECT_EQ(args->dp, 0);
  EXPECT_EQ(args->resume, "auto");
}

TEST_F(TrainArgsTest, FlagsOfMemoryAndOfTheScheduleAreRead) {
  std::vector<std::string> args = kLeast;
  args.insert(args.end(), {"--zero-stage", "1", "--recompute", "moe", "--schedule", "zero-bubble"});
  const auto read = ParseTrain(args);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->zero_stage, 1);
  EXPECT_EQ(read->recompute, "moe");
  EXPECT_EQ(read->schedule, "zero-bubble");
  args.insert(args.end(), {"--zero-stage", "2"});
  EXPECT_THAT(ErrorOf([&] { ParseTrain(args); }), HasSubstr("--zero-stage"));
}

TEST_F(TrainArgsTest, AdaptersNeedARank) {
  std::vector<std::string> args = kLeast;
  args.insert(args.end(), {"--lora-alpha", "8", "--lora-targets", "q_proj", "up_proj"});
  EXPECT_THAT(ErrorOf([&] { ParseTrain(args); }), HasSubstr("only with --lora-rank"));
  args.insert(args.end(), {"--lora-rank", "4"});
  const auto read = ParseTrain(args);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->lora_rank, 4);
  EXPECT_EQ(read->lora_alpha, 8);
  EXPECT_THAT(read->lora_targets, ElementsAre("q_proj", "up_proj"));
}

TEST_F(TrainArgsTest, WhatIsMissingIsNamed) {
  for (const char* flag : {"--model", "--data", "--steps", "--output"}) {
    std::vector<std::string> args;
    bool skipping = false;
    for (const std::string& word : kLeast) {
      if (word.starts_with("--")) skipping = word == flag;
      if (!skipping) args.push_back(word);
    }
    EXPECT_THAT(ErrorOf([&] { ParseTrain(args); }), HasSubstr(std::string(flag) + " is missing"));
  }
  EXPECT_TRUE(ParseTrain({"--export-only", "--output", "o"}));
}

TEST_F(TrainArgsTest, TheCommandLineOverridesTheFile) {
  const auto args = ParseTrain(WithYaml(
      "model: m\ndata: [a, b]\nsteps: 10\nlearning_rate: 3e-3\noutput: o\nwhole-documents: true\n"
      "compute-dtype: bfloat16\n",
      {"--data", "c", "--steps", "20"}));
  ASSERT_TRUE(args);
  EXPECT_THAT(args->data, ElementsAre("c"));
  EXPECT_EQ(args->steps, 20);
  EXPECT_EQ(args->learning_rate, 3e-3);
  EXPECT_TRUE(args->whole_documents);
  EXPECT_EQ(args->compute_dtype, "bfloat16");
  EXPECT_EQ(ParseTrain(kLeast)->compute_dtype, "float32");
  EXPECT_EQ(ParseTrain(WithYaml("compute-dtype: fp8\n", kLeast))->compute_dtype, "fp8");
}

TEST_F(TrainArgsTest, WordsGiveTheSameFlagsWithoutTheFile) {
  const std::string yaml = "model: m\ndata: [a, b]\nsteps: 7\noutput: o\nlearning-rate: 0.5\n";
  for (const bool joined : {false, true}) {
    std::vector<std::string> words =
        WithYaml(yaml, {"--steps", "9", "--async-save", "--save-every", "3"});
    if (joined) {
      words[1] = words[0] + "=" + words[1];
      words.erase(words.begin());
    }
    const auto args = ParseTrain(words);
    std::filesystem::remove(file_);
    const auto again = ParseTrain(args->words);
    ASSERT_TRUE(again);
    EXPECT_EQ(again->steps, 9);
    EXPECT_EQ(again->learning_rate, 0.5);
    EXPECT_THAT(again->data, ElementsAre("a", "b"));
    EXPECT_TRUE(again->async_save);
    EXPECT_EQ(again->words, args->words);
  }
}

TEST_F(TrainArgsTest, UnknownNamesAreRefusedWithTheNearest) {
  const std::string of_file = ErrorOf([&] { ParseTrain(WithYaml("lenght: 5\n")); });
  EXPECT_THAT(of_file, HasSubstr(file_.string()));
  EXPECT_THAT(of_file, HasSubstr("there is no key lenght; the nearest is length"));
  EXPECT_THAT(ErrorOf([&] { ParseTrain({"--warmup-step=5"}); }),
              HasSubstr("there is no flag --warmup-step; the nearest is --warmup-steps"));
}

TEST_F(TrainArgsTest, FlagsWithoutEffectAreRefused) {
  const auto refusal = [](const std::vector<std::string>& more) {
    std::vector<std::string> args = kLeast;
    args.insert(args.end(), more.begin(), more.end());
    return ErrorOf([&] { ParseTrain(args); });
  };
  EXPECT_THAT(refusal({"--base-gpu-id", "1"}), HasSubstr("--base-gpu-id: GPUs compute only"));
  EXPECT_EQ(refusal({"--base-gpu-id", "1", "--device", "cuda"}), "no error");
  EXPECT_THAT(refusal({"--gpu-id-step", "0"}), HasSubstr("--gpu-id-step: GPUs compute only"));
  EXPECT_THAT(refusal({"--async-save"}), HasSubstr("--async-save: writes the checkpoints of"));
  EXPECT_EQ(refusal({"--async-save", "--save-every", "2"}), "no error");
  EXPECT_EQ(refusal({"--async-save=false"}), "no error");
  EXPECT_THAT(refusal({"--max-skipped-steps", "10"}), HasSubstr("--max-skipped-steps: steps are"));
  EXPECT_EQ(refusal({"--max-skipped-steps", "3", "--on-nonfinite", "skip"}), "no error");
  EXPECT_EQ(refusal({"--max-skipped-steps", "3", "--spike-sigmas", "6"}), "no error");
}

TEST_F(TrainArgsTest, ValuesOutOfRangeNameTheFlag) {
  for (const auto& [flag, value] :
       std::vector<std::pair<std::string, std::string>>{{"--length", "0"},
                                                        {"--chat-loss", "user"},
                                                        {"--routing-replay", "R3"},
                                                        {"--lr-schedule", "linear"},
                                                        {"--final-lr-part", "2"},
                                                        {"--tp", "0"},
                                                        {"--exchange", "fast"},
                                                        {"--dtype", "int8"},
                                                        {"--compute-dtype", "float16"},
                                                        {"--device", "tpu"},
                                                        {"--steps", "many"}}) {
    std::vector<std::string> args = kLeast;
    args.insert(args.end(), {flag, value});
    EXPECT_THAT(ErrorOf([&] { ParseTrain(args); }), HasSubstr(flag)) << value;
  }
}

}  // namespace
}  // namespace switchyard
