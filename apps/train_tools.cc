// `switchyard train-score` and `switchyard train-picture`.
#include <fmt/core.h>

#include <filesystem>
#include <vector>

#include "apps/commands.h"
#include "apps/eplb.h"
#include "train/app/picture.h"
#include "train/app/score.h"

namespace switchyard {

int RunTrainScore(const TrainScoreArgs& args) {
  using ChatLoss = train::DocumentEncoder::ChatLoss;
  CheckWritable("--output", args.output);
  CheckWritable("--token-output", args.token_output);
  const std::string json =
      train::ScoreModel(
          {.model = args.model,
           .tokenizer = args.tokenizer_path,
           .data = {args.data.begin(), args.data.end()},
           .chat_loss = args.chat_loss == "all" ? ChatLoss::kAll : ChatLoss::kAssistant,
           .length = args.length,
           .rows_per_pass = args.rows_per_pass,
           .threads = args.threads,
           .routing_replay = args.routing_replay == "on",
           .tokens = args.token_output})
          .dump(2) +
      "\n";
  if (args.output.empty()) {
    fmt::print("{}", json);
  } else {
    WriteFile(args.output, json);
  }
  return 0;
}

int RunTrainPicture(const TrainPictureArgs& args) {
  std::vector<train::Curve> curves;
  for (size_t i = 0; i < args.logs.size(); ++i) {
    std::filesystem::path log = args.logs[i];
    if (std::filesystem::is_directory(log)) log /= "log.jsonl";
    const std::string folder = std::filesystem::absolute(log).parent_path().filename().string();
    curves.push_back(train::CurveOf(log, args.key, args.labels.empty() ? folder : args.labels[i]));
  }
  train::WritePicture(
      args.output, train::DrawCurves(curves, {.title = args.title.empty() ? args.key : args.title,
                                              .x_label = "step",
                                              .y_label = args.key,
                                              .low = args.low,
                                              .high = args.high}));
  return 0;
}

}  // namespace switchyard
