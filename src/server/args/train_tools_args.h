// The command lines of `switchyard train-score` and `switchyard train-picture`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace switchyard {

struct TrainScoreArgs {
  std::string model;                    // --model DIR
  std::string tokenizer_path;           // --tokenizer-path; empty: the model's
  std::vector<std::string> data;        // --data
  std::string chat_loss = "assistant";  // --chat-loss: assistant, all
  int64_t length = 512;                 // --length of a row
  int64_t rows_per_pass = 16;           // --rows-per-pass
  int threads = 1;                      // --threads
  std::string output;                   // --output FILE; empty: standard output
};

struct TrainPictureArgs {
  std::vector<std::string> logs;    // arguments LOG, one or more
  std::vector<std::string> labels;  // --labels; empty: the directory names
  std::string key = "loss";         // --key: the plotted field of the log's lines
  std::string output;               // --output FILE.svg
  std::string title;                // --title; empty: the key
  std::optional<double> low, high;  // --low, --high: range of the y axis
};

// Returns nothing after printing the help for --help. Throws kInvalid that names the flag.
std::optional<TrainScoreArgs> ParseTrainScore(const std::vector<std::string>& args);
std::optional<TrainPictureArgs> ParseTrainPicture(const std::vector<std::string>& args);

}  // namespace switchyard
