// Sub-commands that are implemented in separate files.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/args/args.h"
#include "server/args/tool_args.h"
#include "server/args/train_args.h"

namespace switchyard {

struct MoeBackends;

// Each returns the program's exit code and throws Error on invalid input.
int RunGenerate(const GenerateArgs& args);
int RunBackends(const BackendsArgs& args);
int RunOneBatch(const OneBatchArgs& args);
// `bench serve`, which parses its own flags.
int RunBenchServe(const std::vector<std::string>& args);
// These parse their own flags.
int RunChat(const std::vector<std::string>& args);
int RunCompletion(const std::vector<std::string>& args);
int RunRoute(const std::vector<std::string>& args);
// bench kernels, moe-layer and exchange.
int RunBench(const BenchArgs& args, const std::shared_ptr<const MoeBackends>& backends);
int RunEplb(const EplbArgs& args);  // eplb plan and simulate
int RunQuantize(const QuantizeArgs& args);
int RunTrain(const TrainArgs& args);
// A rank process of RunTrain. The arguments are those of main().
inline constexpr std::string_view kTrainRankCommand = "train-rank";  // train::kRankCommand
int RunTrainRank(int argc, char** argv);
int RunTrainScore(const TrainScoreArgs& args);
int RunTrainPicture(const TrainPictureArgs& args);
int RunTrainTokenizer(const TrainTokenizerArgs& args);
int RunTokenMap(const TokenMapArgs& args);

}  // namespace switchyard
