#include <fmt/core.h>

#include <map>

#include "core/command_line.h"
#include "core/error.h"
#include "server/args/args.h"
#include "server/args/command_words.h"
#include "server/args/feature_args.h"

namespace switchyard {
namespace {

constexpr const char* kBenchHelp =
    R"(switchyard bench: benchmarks of the program and its parts on this machine

  switchyard bench one-batch --model-path DIR   prefill and decode of a model
  switchyard bench serve                        a load on a running server: latencies, throughput
  switchyard bench kernels                      matrix products, experts, attention, small ops
  switchyard bench moe-layer                    one MoE layer: router, exchange, experts
  switchyard bench exchange                     collectives, dispatch and combine of rows
  switchyard bench roofline                     peak rates of the machine: memory, caches, arithmetic
  switchyard bench calibrate                    a cost table of this machine for `switchyard plan`

Each has --help. A result line has the median time of one call, operations and bytes per second, and the
fraction of the roofline, whose peak rates are measured in the same run.
)";

constexpr std::string_view kBenches[] = {"one-batch", "serve",    "kernels",  "moe-layer",
                                         "exchange",  "roofline", "calibrate"};

void AddBenchFlags(CommandLine& app, BenchArgs& a) {
  constexpr const char* kBench = "Benchmark";
  app.Flag("--device", a.device, kBench,
           "Device to measure: auto (cuda if there is a GPU), cpu or cuda")
      .OneOf({"auto", "cpu", "cuda"});
  const bool calibrates = a.which == "calibrate";
  if (!calibrates)
    app.Flag("--filter", a.filter, kBench,
             "Runs only cases whose name and shape contain this text");
  app.Flag("--json", a.json, kBench,
           calibrates ? "Write the table to this file instead of standard output"
                      : "Also write the figures to this file");
  if (a.which != "roofline")
    app.Flag("--cpu-isa", a.cpu_isa, kBench,
             "Instruction set on CPUs: auto, reference, avx2, avx512, amx; amx-emulated for tests");
  if (a.which == "kernels" || a.which == "roofline" || calibrates) {
    app.Flag("--cpu-threads", a.threads, kBench, "Threads on CPUs; 0: all cores").NonNegative();
    app.Flag("--base-gpu-id", a.base_gpu_id, kBench, "GPU to measure").NonNegative();
    return;
  }
  app.Flag("--ranks,--tp", a.ranks, kBench,
           a.which == "exchange"
               ? "Number of ranks; 0: one per GPU; on CPUs, runs with 2 and with 4 ranks"
               : "Number of ranks (the EP size), each with its own tokens. 0: one per GPU, or 2 on "
                 "CPUs")
      .Range(0, 64);
  app.Option(
         "--tokens", a.tokens,
         a.which == "exchange"
             ? "Tokens of each rank; several values make several cases. Default: 1 32 512 4096 "
               "on CPUs, 8 128 1024 4096 on GPUs"
             : "Tokens of each rank; several values make several cases. Default: 1 8 128 1024 on "
               "CPUs, 8 128 1024 8192 on GPUs")
      .Group(kBench)
      .Range(1, 1 << 20);
  if (a.which == "exchange") return;
  app.Flag("--cpu-threads-per-rank", a.threads, kBench,
           "Threads of each rank on CPUs; 0: the number of cores divided by the ranks")
      .NonNegative();
  app.Flag("--model", a.model, kBench,
           "Model shape, with random weights: olmoe-1b-7b, qwen3-30b-a3b or deepseek-v3; default: "
           "all that fit in memory")
      .OneOf({"olmoe-1b-7b", "qwen3-30b-a3b", "deepseek-v3"});
  app.Flag("--experts-per-rank", a.experts_per_rank, kBench,
           "Experts of each rank; 0: the model's experts divided by the ranks (on GPUs, by 8)")
      .NonNegative();
}

}  // namespace

void AddOneBatchFlags(CommandLine& app, OneBatchArgs& a) {
  constexpr const char* kBench = "Benchmark";
  app.Option("--batch-size,--batch", a.batch_sizes, "Requests per batch; a run for each value")
      .Group(kBench)
      .ShowDefault()
      .Positive();
  app.Option("--input-len,--input", a.input_lengths, "Prompt tokens of each request")
      .Group(kBench)
      .ShowDefault()
      .Positive();
  app.Flag("--output-len,--output", a.output_length, kBench, "Tokens decoded after the prompt")
      .Range(2, 1 << 20);
  app.Flag("--repeat", a.repeat, kBench, "Runs of each case; medians are printed").Positive();
  app.Flag("--json", a.json, kBench, "Also write the figures to this file");
  app.Flag("--cost-table", a.cost_table, kBench,
           "JSON of `bench calibrate`, to predict steps; default: that of `plan` for this device");
  app.Option("--profile", a.profile_dir,
             "Write a Chrome trace of the measured runs of each rank to this directory; without a "
             "value: SWITCHYARD_TORCH_PROFILER_DIR, SGLANG_TORCH_PROFILER_DIR or /tmp")
      .Group(kBench)
      .OptionalValue();
  app.Switch("--same-experts", a.same_experts, kBench,
             "With drafts and dummy weights: all rows of a layer choose the same experts");
  app.Option(
         "--expert-skew", a.expert_skew,
         "With dummy weights: random experts for each token and layer, in place of the router's "
         "choice. 0: uniform; else Zipf-like, expert e with the weight (e + 1)^-SKEW")
      .Group(kBench)
      .Range(0.0, 4.0);
}

std::optional<BenchArgs> ParseBench(const std::string& which,
                                    const std::vector<std::string>& args) {
  if (which.empty() || which == "--help" || which == "-h") {
    fmt::print("{}", kBenchHelp);
    return std::nullopt;
  }
  BenchArgs a;
  a.which = which;
  const std::map<std::string, const char*> summaries = {
      {"kernels", "Time matrix products, experts and attention; on GPUs also small ops"},
      {"moe-layer", "Time one MoE layer with random weights: router, exchange, experts"},
      {"exchange", "Time collectives, and dispatch and combine of rows between ranks"},
      {"roofline", "Measure the peak rates of this machine: memory, caches, arithmetic"},
      {"calibrate",
       "Measure kernels and links of this machine's CPUs or GPUs, and print a cost table for "
       "`switchyard plan --cost-table`"}};
  const auto summary = summaries.find(which);
  if (summary == summaries.end())
    throw Invalid(
        "there is no bench {}; the nearest is bench {}; want one-batch, serve, kernels, moe-layer, "
        "exchange, roofline or calibrate",
        which, NearestName(which, kBenches));
  CommandLine app(summary->second, "switchyard bench " + which);
  AddBenchFlags(app, a);
  if (!ParseWords(app, args)) return std::nullopt;
  return a;
}

}  // namespace switchyard
