#include "server/args/train_tools_args.h"

#include "core/command_line.h"
#include "core/error.h"
#include "server/args/known_flags.h"
#include "server/args/parse_words.h"

namespace switchyard {

std::optional<TrainScoreArgs> ParseTrainScore(const std::vector<std::string>& args) {
  TrainScoreArgs a;
  CommandLine app(
      "Scores a model on held-out text, as JSON: next-token loss and accuracy, acceptance rate of "
      "MTP drafts, expert balance",
      "switchyard train-score");
  app.Option("--model,--model-path", a.model, "Directory of a checkpoint").Required();
  app.Option("--tokenizer-path", a.tokenizer_path,
             "Directory of the tokenizer; default: the model's");
  app.Option("--data", a.data, "Text files, .jsonl files, or directories of them").Required();
  app.Option("--chat-loss", a.chat_loss, "Tokens of a chat that are scored: assistant, or all")
      .ShowDefault()
      .OneOf({"assistant", "all"});
  app.Option("--length", a.length,
             "Tokens per row, at most max_position_embeddings; longer documents are split")
      .ShowDefault()
      .Positive();
  app.Option("--rows-per-pass", a.rows_per_pass, "Rows per forward pass").ShowDefault().Positive();
  app.Option("--threads", a.threads).ShowDefault().Range(1, 1024);
  app.Option("--output", a.output, "File to write; default: standard output");
  if (!ParseWords(app, args)) return std::nullopt;
  return a;
}

std::optional<TrainPictureArgs> ParseTrainPicture(const std::vector<std::string>& args) {
  TrainPictureArgs a;
  CommandLine app("Draws training logs as an SVG figure", "switchyard train-picture");
  app.Option("LOG", a.logs, "log.jsonl of a run, or the run's directory").Required();
  app.Option("--output", a.output, "SVG file to write").Required();
  app.Option("--labels", a.labels, "One label per log; default: the directory names");
  app.Option("--key", a.key,
             "Key of log.jsonl whose values are drawn, such as loss, main, mtp, balance, "
             "learning_rate, gradient_norm, tokens_per_second, balancedness, "
             "balancedness_worst, dead_experts")
      .ShowDefault();
  app.Option("--title", a.title, "Title of the figure; default: the key");
  app.Option("--low", a.low, "Lower end of the y axis; default: from the data");
  app.Option("--high", a.high, "Upper end of the y axis; default: from the data");
  if (!ParseWords(app, args)) return std::nullopt;
  if (!a.labels.empty() && a.labels.size() != a.logs.size()) {
    throw Invalid("--labels: {} labels for {} logs; give one per log", a.labels.size(),
                  a.logs.size());
  }
  if (a.low && a.high && *a.low >= *a.high) {
    throw Invalid("--low {} is not below --high {}", *a.low, *a.high);
  }
  return a;
}

}  // namespace switchyard
