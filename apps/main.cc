#include "apps/main.h"

#include <fmt/core.h>

#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "apps/command_table.h"
#include "apps/commands.h"
#include "apps/plan.h"
#include "core/error.h"
#include "core/log.h"
#include "moe/backends.h"
#include "server/args/command_words.h"
#include "server/serve.h"

namespace switchyard {
namespace {

// Prints the sub-commands for completion scripts: name, tab, summary.
void PrintCommands() {
  for (const CommandSummary& command : CommandSummaries())
    fmt::print("{}\t{}\n", command.name, command.summary);
}

// The sub-command whose name is nearest to `command`.
std::string NearestCommand(const std::string& command) {
  std::vector<std::string> names;
  for (const CommandSummary& known : CommandSummaries())
    names.push_back(known.name.substr(0, known.name.find(' ')));
  return NearestName(command, std::vector<std::string_view>(names.begin(), names.end()));
}

int Dispatch(int argc, char** argv, const std::shared_ptr<const MoeBackends>& backends) {
  const std::string command = argc > 1 ? argv[1] : "--help";
  std::vector<std::string> rest(argv + (argc > 1 ? 2 : 1), argv + argc);
  if (command == "rank") return RunRank(argc, argv, backends);
  if (command == kTrainRankCommand) return RunTrainRank(argc, argv);
  if (command == "--help" || command == "-h" || command == "help") {
    fmt::print("{}", MainHelp());
    return 0;
  }
  if (command == "--help=commands") {
    PrintCommands();
    return 0;
  }
  if (command == "--version" || command == "version") {
    if (!rest.empty()) throw Invalid("switchyard {} takes no arguments", command);
    fmt::print("switchyard {}\n", SWITCHYARD_VERSION);
    return 0;
  }
  // Sets the backends of a sub-command's engine config.
  const auto start = [&](EngineConfig& engine) {
    engine.backends = backends;
    InitLog(engine.log_level);
    ReplaceForeignA2a(&engine);
  };
  if (command == "serve") {
    auto args = ParseServe(rest);
    if (!args) return 0;
    start(args->engine);
    return RunServe(*args);
  }
  if (command == "chat") return RunChat(rest);
  if (command == "completion") return RunCompletion(rest);
  if (command == "route") return RunRoute(rest);
  if (command == "generate") {
    auto args = ParseGenerate(rest);
    if (!args) return 0;
    start(args->server.engine);
    return RunGenerate(*args);
  }
  if (command == "backends") {
    auto args = ParseBackends(rest);
    if (!args) return 0;
    start(args->server.engine);
    return RunBackends(*args);
  }
  if (command == "plan") {
    const auto args = ParsePlan(rest);
    return args ? RunPlan(*args, backends) : 0;
  }
  if (command == "simulate") {
    const auto args = ParseSimulate(rest);
    return args ? RunSimulate(*args, backends) : 0;
  }
  if (command == "quantize") {
    const auto args = ParseQuantize(rest);
    return args ? RunQuantize(*args) : 0;
  }
  if (command == "train") {
    const auto args = ParseTrain(rest);
    return args ? RunTrain(*args) : 0;
  }
  if (command == "train-score") {
    const auto args = ParseTrainScore(rest);
    return args ? RunTrainScore(*args) : 0;
  }
  if (command == "train-picture") {
    const auto args = ParseTrainPicture(rest);
    return args ? RunTrainPicture(*args) : 0;
  }
  if (command == "train-tokenizer") {
    const auto args = ParseTrainTokenizer(rest);
    return args ? RunTrainTokenizer(*args) : 0;
  }
  if (command == "token-map") {
    const auto args = ParseTokenMap(rest);
    return args ? RunTokenMap(*args) : 0;
  }
  if (command == "eplb" || command == "bench") {
    const std::string which = rest.empty() ? "" : rest.front();
    if (!rest.empty()) rest.erase(rest.begin());
    if (command == "eplb") {
      const auto args = ParseEplb(which, rest);
      return args ? RunEplb(*args) : 0;
    }
    if (which == "one-batch") {
      auto args = ParseOneBatch(rest);
      if (!args) return 0;
      start(args->server.engine);
      return RunOneBatch(*args);
    }
    if (which == "serve") return RunBenchServe(rest);
    const auto args = ParseBench(which, rest);
    return args ? RunBench(*args, backends) : 0;
  }
  throw Invalid("there is no sub-command {}; the nearest is {}; see switchyard --help", command,
                NearestCommand(command));
}

// fmt::print would throw if standard error is closed.
void PrintFailure(const std::exception& failure) {
  std::fputs(fmt::format("switchyard: {}\n", failure.what()).c_str(), stderr);
}

}  // namespace

int Main(int argc, char** argv, const std::function<void(MoeBackends&)>& extend) {
  try {
    auto backends = std::make_shared<MoeBackends>(BuiltinMoeBackends());
    if (extend) extend(*backends);
    return Dispatch(argc, argv, backends);
  } catch (const Error& e) {
    PrintFailure(e);
    return e.kind() == ErrorKind::kPeer || e.kind() == ErrorKind::kTimeout ? 1 : 2;
  } catch (const std::exception& e) {
    PrintFailure(e);
    return 1;
  }
}

}  // namespace switchyard
