#include "apps/main.h"

#include <fmt/core.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "apps/commands.h"
#include "apps/plan.h"
#include "core/error.h"
#include "core/log.h"
#include "moe/backends.h"
#include "server/args/known_flags.h"
#include "server/serve.h"

namespace switchyard {
namespace {

constexpr const char* kHelp =
    R"(Switchyard: Mixture-of-Experts language models with expert parallelism

  switchyard serve --model-path DIR [flags]        serve a checkpoint over HTTP
  switchyard route --worker-urls URL…              one address for several servers of a model
  switchyard generate --model-path DIR --prompt T  generate text, printing as it comes
  switchyard bench one-batch --model-path DIR      time prefill and decode
  switchyard bench serve [--port P] [flags]        load a running server, print latencies and throughput
  switchyard bench kernels|moe-layer|exchange      time parts of the program, with roofline fractions
  switchyard plan --model-path CONFIG --gpus 8xh200 rank the layouts of a model on a cluster
  switchyard simulate --model-path CONFIG --rate R play requests over a layout, step by step
  switchyard eplb plan|simulate FILE --ranks R     placement of experts from recorded routing
  switchyard quantize DIR OUT --format int4        write a quantized checkpoint
  switchyard train --config train.yaml [flags]     train a model with expert parallelism
  switchyard train-score --model DIR --data FILE   loss, accuracy and balance on held-out text
  switchyard train-picture LOG… --output X.svg     curves of training logs
  switchyard train-tokenizer TEXT… --output DIR    learn a tokenizer from text
  switchyard backends [--model-path DIR] [flags]   compatible backends, and the default choice
  switchyard backends --markdown                   feature support on CPUs, GPUs and several hosts
  switchyard backends --models                     families of models, and what works with each

Each sub-command has --help.
)";

constexpr std::string_view kCommands[] = {
    "serve", "route",       "generate",      "bench",           "eplb",    "plan", "quantize",
    "train", "train-score", "train-picture", "train-tokenizer", "backends"};

int Dispatch(int argc, char** argv, const std::shared_ptr<const MoeBackends>& backends) {
  const std::string command = argc > 1 ? argv[1] : "--help";
  std::vector<std::string> rest(argv + (argc > 1 ? 2 : 1), argv + argc);
  if (command == "rank") return RunRank(argc, argv, backends);
  if (command == "--help" || command == "-h" || command == "help") {
    fmt::print("{}", kHelp);
    return 0;
  }
  if (command == "--version") {
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
                NearestName(command, kCommands));
}

}  // namespace

int Main(int argc, char** argv, const std::function<void(MoeBackends&)>& extend) {
  try {
    auto backends = std::make_shared<MoeBackends>(BuiltinMoeBackends());
    if (extend) extend(*backends);
    return Dispatch(argc, argv, backends);
  } catch (const Error& e) {
    fmt::print(stderr, "switchyard: {}\n", e.what());
    return e.kind() == ErrorKind::kPeer || e.kind() == ErrorKind::kTimeout ? 1 : 2;
  } catch (const std::exception& e) {
    fmt::print(stderr, "switchyard: {}\n", e.what());
    return 1;
  }
}

}  // namespace switchyard
