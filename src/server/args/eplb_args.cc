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
    R"(switchyard eplb: placement of experts from recorded routing

  switchyard eplb plan COUNTS --ranks R        plan from a recording, print placement and balancedness
  switchyard eplb simulate TRACE --ranks R     replay a recording: plan from the past, evaluate on the next steps

A recording is what POST /dump_expert_distribution_record of a server writes (SGLang's .pt files too), or any JSON
or safetensors file with counts [steps, layers, experts]. Each has --help.
)";

constexpr std::string_view kTools[] = {"plan", "simulate"};

void AddCommon(CommandLine& app, EplbArgs& a) {
  app.Option(a.which == "plan" ? "COUNTS" : "TRACE", a.file,
             "JSON, safetensors or PyTorch file with counts [steps, layers, experts], or "
             "[layers, experts]")
      .Required();
  app.Option("--tensor", a.tensor, "Name of the counts in the file").ShowDefault();
  app.Option("--ranks", a.ranks, "EP ranks").Required().Positive();
  app.Option("--physical", a.physical, "Expert slots of all ranks; 0: the number of experts")
      .ShowDefault()
      .NonNegative();
  app.Option("--nodes", a.nodes, "Hosts, with equal numbers of ranks").ShowDefault().Positive();
  app.Option(
         "--groups", a.groups,
         "Expert groups of the router (n_group), for deepseek_hierarchical and elasticity_aware")
      .ShowDefault()
      .Positive();
  app.Option("--algorithm", a.algorithm,
             "auto (yard), deepseek, deepseek_hierarchical, elasticity_aware or yard")
      .ShowDefault();
  app.Option("--dispatch", a.dispatch,
             "Replica selection that the evaluation assumes: static, dynamic, fake, balanced or lp")
      .ShowDefault();
  app.Option("--expert-mib", a.expert_mib,
             "Size of one expert in MiB, to compute the bytes that a plan moves; default: "
             "DeepSeek-V3 in FP8")
      .ShowDefault()
      .Positive();
}

void AddPlan(CommandLine& app, EplbArgs& a) {
  app.Option("--previous", a.previous,
             "File with the current placement (physical_to_logical_map); default: trivial");
  app.Option(
      "--output", a.output,
      "Writes the placement to this file, for --init-expert-location, instead of printing it");
}

void AddSimulate(CommandLine& app, EplbArgs& a) {
  app.Option("--window", a.window,
             "Number of past steps from whose load a plan is computed; the first window is not "
             "evaluated")
      .ShowDefault()
      .Positive();
  app.Option("--every", a.every, "Steps between two plans").ShowDefault().Positive();
  app.Option("--svg", a.svg,
             "Draws rank loads and balancedness over the steps, with the trivial placement and "
             "with the plans, to this SVG file");
}

}  // namespace

std::optional<EplbArgs> ParseEplb(const std::string& which, const std::vector<std::string>& args) {
  if (which.empty() || which == "--help" || which == "-h") {
    fmt::print("{}", kHelp);
    return std::nullopt;
  }
  if (which != "plan" && which != "simulate")
    throw Invalid("there is no eplb {}; the nearest is eplb {}; want plan or simulate", which,
                  NearestName(which, kTools));
  EplbArgs a;
  a.which = which;
  CommandLine app(which == "plan"
                      ? "Plans the placement of experts from a recorded load. Prints the "
                        "placement, the balance of ranks, and the number of experts that migrate"
                      : "Replays a recorded load window by window: each plan is computed from past "
                        "steps and evaluated on the steps that follow",
                  "switchyard eplb " + which);
  AddCommon(app, a);
  which == "plan" ? AddPlan(app, a) : AddSimulate(app, a);
  if (!ParseWords(app, args)) return std::nullopt;
  return a;
}

}  // namespace switchyard
