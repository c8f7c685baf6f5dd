// The program: sub-commands, and nothing else. Exit codes: 0 done, 1 failed while running, 2 wrong
// input.
#include <fmt/core.h>

#include <cstdio>
#include <string>
#include <vector>

#include "apps/commands.h"
#include "core/error.h"
#include "core/log.h"
#include "server/serve.h"

namespace {

constexpr const char* kHelp =
    R"(Switchyard: Mixture-of-Experts language models with expert parallelism

  switchyard serve --model-path DIR [flags]        serve a checkpoint over HTTP
  switchyard generate --model-path DIR --prompt T  generate text, printing as it comes
  switchyard bench one-batch --model-path DIR      time prefill and decode

Each sub-command answers --help.
)";

int Dispatch(int argc, char** argv) {
  using namespace switchyard;
  const std::string command = argc > 1 ? argv[1] : "--help";
  std::vector<std::string> rest(argv + (argc > 1 ? 2 : 1), argv + argc);
  if (command == "rank") return RunRank(argc, argv);
  if (command == "--help" || command == "-h" || command == "help") {
    fmt::print("{}", kHelp);
    return 0;
  }
  if (command == "--version") {
    fmt::print("switchyard {}\n", SWITCHYARD_VERSION);
    return 0;
  }
  if (command == "serve") {
    const auto args = ParseServe(rest);
    if (!args) return 0;
    InitLog(args->engine.log_level);
    return RunServe(*args);
  }
  if (command == "generate") {
    const auto args = ParseGenerate(rest);
    if (!args) return 0;
    InitLog(args->server.engine.log_level);
    return RunGenerate(*args);
  }
  if (command == "bench") {
    const std::string which = rest.empty() ? "" : rest.front();
    if (which != "one-batch") throw Invalid("bench {}: want one-batch", which);
    rest.erase(rest.begin());
    const auto args = ParseOneBatch(rest);
    if (!args) return 0;
    InitLog(args->server.engine.log_level);
    return RunOneBatch(*args);
  }
  throw Invalid("there is no sub-command {}; see switchyard --help", command);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return Dispatch(argc, argv);
  } catch (const switchyard::Error& e) {
    fmt::print(stderr, "switchyard: {}\n", e.what());
    return e.kind() == switchyard::ErrorKind::kPeer || e.kind() == switchyard::ErrorKind::kTimeout
               ? 1
               : 2;
  } catch (const std::exception& e) {
    fmt::print(stderr, "switchyard: {}\n", e.what());
    return 1;
  }
}
