// Test fixture: a directory with all inputs of a small training run.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "core/temporary_directory.h"
#include "text/tokenizer/bpe_trainer.h"
#include "train/app/training.h"
#include "train/test_training.h"

namespace switchyard::train::testing {

class RunTest : public ::testing::Test {
 protected:
  RunTest() {
    // Vocabulary: 256 bytes, special tokens and some merges.
    BpeTrainer trainer(ByteLevelPreTokenizer(kWordPattern));
    for (int i = 0; i < 4; ++i) trainer.Add(Text(i));
    const std::vector<std::string> special = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    WriteTokenizer(dir_ / "tokenizer",
                   trainer.Learn({.vocab_size = 280, .special_tokens = special}), special,
                   {.eos = "<|im_end|>", .chat_template = kDefaultChatTemplate});
    std::string config = SmallConfig("deepseek_v3");
    const auto replace = [&](const std::string& from, const std::string& to) {
      config.replace(config.find(from), from.size(), to);
    };
    replace("\"vocab_size\": 24", "\"vocab_size\": 288");
    replace("{", "{\"num_nextn_predict_layers\": 1, ");
    std::ofstream(dir_ / "config.json") << config;
    std::ofstream data(dir_ / "data.jsonl");
    for (int i = 0; i < 40; ++i) {
      data << R"({"messages": [{"role": "user", "content": ")" << i
           << R"("}, {"role": "assistant", "content": ")" << Text(i) << "\"}]}\n";
    }
  }

  static std::string Text(int i) {
    return "the yard has track " + std::to_string(i % 7) + " and track " + std::to_string(i % 5);
  }

  TrainingOptions Options(int64_t steps) const {
    TrainingOptions options;
    options.model = dir_ / "config.json";
    options.tokenizer = dir_ / "tokenizer";
    options.data = {dir_ / "data.jsonl"};
    options.packing = {.length = 32, .whole_documents = true, .seed = 3};
    options.learner.bias_step = 0.01;
    options.trainer = {.rows_per_step = 4, .rows_per_pass = 2, .output = dir_ / "out"};
    options.trainer.schedule = {
        .rate = 0.02, .warmup_steps = std::min<int64_t>(2, steps), .steps = steps};
    return options;
  }

  TrainingEnd Train(const TrainingOptions& options, const std::function<bool()>& stop = {}) {
    std::FILE* out = std::tmpfile();
    TrainingEnd end;
    {
      Progress progress(out, false);
      end = RunTraining(options, stop, progress);
    }
    said_.assign(static_cast<size_t>(std::ftell(out)), '\0');
    std::rewind(out);
    said_.resize(std::fread(said_.data(), 1, said_.size(), out));
    std::fclose(out);
    return end;
  }

  const TemporaryDirectory temporary_;
  const std::filesystem::path& dir_ = temporary_.path();
  std::string said_;  // output of the last Train
};

}  // namespace switchyard::train::testing
