#include "server/args/eplb_args.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/command_line.h"
#include "core/error.h"
#include "server/args/known_flags.h"
#include "server/args/parse_words.h"

namespace switchyard {
namespace {

constexpr const char* kHelp =
    R"(switchyard eplb: where experts should sit, from recorded routing

  switchyard eplb plan COUNTS --ranks R        plan on a recording, print placement and balancedness
  switchyard eplb simulate TRACE --ranks R     replay a recording: plan on the past, judge what came

A recording is what POST /dump_expert_distribution_record of a server writes (SGLang's .pt files too), or any JSON
or safetensors file with counts [steps, layers, experts]. Each answers --help.
)";

constexpr std::string_view kTools[] = {"plan", "simulate"};

void AddCommon(CommandLine& app, EplbArgs& a) {
  app.Option(a.which == "plan" ? "COUNTS" : "TRACE", a.file,
             "JSON, safetensors or PyTorch file with counts [steps, layers, experts], or "
             "[layers, experts]")
      .Required();
  app.Option("--tensor", a.tensor, "Name of the counts in the file").ShowDefault();
  app.Option("--ranks", a.ranks, "EP ranks").Required().Positive();
  app.Option("--physical", a.physical, "Places for experts on all ranks; 0: as many as experts")
      .ShowDefault()
      .NonNegative();
  app.Option("--nodes", a.nodes, "Hosts, with as many ranks each").ShowDefault().Positive();
  app.Option("--groups", a.groups,
             "Groups of experts that the router chooses from (n_group), for "
             "deepseek_hierarchical and elasticity_aware")
      .ShowDefault()
      .Positive();
  app.Option("--algorithm", a.algorithm,
             "auto (yard), deepseek, deepseek_hierarchical, elasticity_aware or yard")
      .ShowDefault();
  app.Option("--dispatch", a.dispatch,
             "How a batch's tokens are divided over replicas, for the judgement: static, "
             "dynamic, fake, balanced or lp")
      .ShowDefault();
  app.Option("--expert-mib", a.expert_mib,
             "Size of one expert in MiB, for the bytes that a plan moves; default: of "
             "DeepSeek-V3 in FP8")
      .ShowDefault()
      .Positive();
}

void AddPlan(CommandLine& app, EplbArgs& a) {
  app.Option("--previous", a.previous,
             "File with the placement that there is (physical_to_logical_map); default: the "
             "trivial one");
  app.Option("--output", a.output,
             "Write the placement to this file, for --init-expert-location, instead of "
             "printing it");
}

void AddSimulate(CommandLine& app, EplbArgs& a) {
  app.Option("--window", a.window, "Steps that a plan sees; the first as many are not judged")
      .ShowDefault()
      .Positive();
  app.Option("--every", a.every, "Steps from plan to plan").ShowDefault().Positive();
  app.Option("--svg", a.svg,
             "Draw a picture: loads of ranks over the steps before and after, and how even "
             "they are");
}

}  // namespace

std::optional<EplbArgs> ParseEplb(const std::string& which, const std::vector<std::string>& args) {
  if (which.empty() || which == "--help" || which == "-h") {
    fmt::print("{}", kHelp);
    return std::nullopt;
  }
  if (which != "plan" && which != "simulate")
    throw Invalid("eplb {}: the nearest is eplb {}; want plan or simulate", which,
                  NearestName(which, kTools));
  EplbArgs a;
  a.which = which;
  CommandLine app(
      which == "plan"
          ? "Plan where experts sit for a recorded load; print the placement, how evenly "
            "it loads ranks, and what has to move"
          : "Replay a recorded load window by window: plan on the steps before, judge on "
            "those that follow",
      "switchyard eplb " + which);
  AddCommon(app, a);
  which == "plan" ? AddPlan(app, a) : AddSimulate(app, a);
  if (!ParseWords(app, args)) return std::nullopt;
  return a;
}

}  // namespace switchyard
