#include "server/args/plan_args.h"

#include <charconv>
#include <string_view>
#include <utility>

#include "core/command_line.h"
#include "core/error.h"
#include "model/hub_cache.h"
#include "server/args/command_words.h"

namespace switchyard {
namespace {

constexpr const char* kModel = "Model";
constexpr const char* kCluster = "Cluster";
constexpr const char* kLoad = "Load";
constexpr const char* kOutput = "Output";
constexpr const char* kCpuExperts = "Experts on a GPU and CPUs";

void AddModel(CommandLine& app, PlanArgs& a) {
  EngineConfig& e = a.engine;
  app.Option("--model-path,--model", e.model_path,
             "config.json, a checkpoint's directory, a GGUF file, or a Hugging Face id in the hub "
             "cache. No weights are read")
      .Group(kModel)
      .Required();
  app.Flag("--revision", a.revision, kModel, "Branch, tag or commit, if --model-path is a hub id");
  app.Flag("--json-model-override-args", e.model_override_args, kModel,
           "JSON object whose keys replace config.json's");
  app.Flag("--dtype", e.dtype, kModel, "Same as for serve");
  app.Flag("--kv-cache-dtype", e.kv_cache_dtype, kModel, "Same as for serve");
  app.Flag("--quantization", e.quantization.method, kModel, "Same as for serve");
  app.Flag("--quantization-config", e.quantization.rules, kModel, "Same as for serve");
  app.Flag("--cpu-weight-layout", e.quantization.layout, kModel, "Same as for serve")
      .OneOf({"auto", "panels", "stored"});
  app.Flag("--context-length", e.context_length, kModel, "Same as for serve").NonNegative();
  app.Flag("--mem-fraction-static", e.mem_fraction_static, kModel, "Same as for serve")
      .Range(0.01, 1.0);
  app.Flag("--page-size", e.page_size, kModel, "Same as for serve").Range(1, 1024);
  app.Flag("--max-running-requests", e.max_running_requests, kModel,
           "Same as for serve; 0: 256 for each attention group, at most 4096")
      .NonNegative();
  app.Flag("--chunked-prefill-size", e.chunked_prefill_size, kModel, "Same as for serve");
}

void AddCluster(CommandLine& app, PlanArgs& a, std::vector<std::string>& gpus, std::string& nics,
                bool& cpu) {
  app.List("--gpus", gpus, kCluster,
           "GPUs of a node: 8xh200. Cards: h100, h200 (measured kernels); h800, h20, a100, b200, "
           "l40s, rtx4090 (data sheets); any other name with --cost-table");
  app.Flag("--nodes", a.nodes, kCluster, "Number of nodes").Range(1, 4096);
  app.Flag("--nics", nics, kCluster,
           "NICs per node with their Gbit/s: 8x400; needed for 2 nodes or more");
  app.Switch("--cpu", cpu, kCluster, "Ranks on the CPUs of this host");
  app.Flag("--cpus", a.cpus, kCluster, "Number of CPUs of the planned host; 0: that of this host")
      .NonNegative();
  app.Flag("--memory", a.memory_gib, kCluster,
           "Memory in GiB of each GPU, or of the host with --cpu; 0: that of the card, or of this "
           "host")
      .NonNegative();
  app.Flag("--cost-table", a.cost_table, kCluster,
           "JSON of `switchyard bench calibrate`, instead of the shipped table");
}

void AddStages(CommandLine& app, PlanArgs& a) {
  app.Flag(
         "--pp-size,--pp,--pipeline-parallel-size", a.stages, kCluster,
         "Pipeline stages of the layouts; 0: any number on CPUs, and 1 on GPUs, where the times of "
         "stages were not measured")
      .Range(0, 1024);
  app.Flag("--pp-layer-partition", a.engine.pp_layer_partition, kCluster,
           "Same as for serve; needs --pp-size");
}

void AddWorkers(CommandLine& app, PlanArgs& a) {
  app.Switch("--disaggregate", a.disaggregate, kCluster,
             "Plan separate workers for prefill and decode (serve --disaggregation-mode): layouts "
             "and numbers of both, and the transfer of the cache. With --cpu, each worker has one "
             "of --nodes hosts");
  app.Flag("--prefill-workers", a.prefill_workers, kCluster,
           "Number of prefill workers; 0: chosen by the rates of both kinds")
      .Range(0, 4096);
  app.Flag("--decode-workers", a.decode_workers, kCluster,
           "Number of decode workers; 0: chosen by the rates of both kinds")
      .Range(0, 4096);
}

void CheckWorkers(const PlanArgs& a) {
  if (a.disaggregate) {
    if (a.stages > 1) throw Invalid("--pp-size {} and --disaggregate exclude each other", a.stages);
    if (!a.svg.empty()) throw Invalid("--svg {}: not drawn with --disaggregate", a.svg);
    return;
  }
  for (const auto& [flag, number] :
       {std::pair("--prefill-workers", a.prefill_workers), {"--decode-workers", a.decode_workers}})
    if (number > 0) throw Invalid("{} {}: --disaggregate is missing", flag, number);
  if (a.nodes > 1 && a.card.empty())
    throw Invalid(
        "--nodes {}: --cpu plans a single host; want --nodes 1, or --disaggregate with "
        "a worker on each host",
        a.nodes);
}

void AddCpuExperts(CommandLine& app, PlanArgs& a) {
  app.Switch("--cpu-experts", a.cpu_experts, kCpuExperts,
             "Plan one GPU and the CPUs of its host: the most popular experts of each layer are on "
             "the GPU, the others on the CPUs. Prints what each side holds, the flags of serve, "
             "and the predicted speed");
  app.Flag("--host-memory", a.host_memory_gib, kCpuExperts,
           "Memory of the host in GiB; 0: that of this host")
      .NonNegative();
  app.Flag("--link-gbs", a.link_gbs, kCpuExperts, "Rate of the link between GPU and host, in GB/s")
      .Positive();
  app.Flag("--cache-tokens", a.cache_tokens, kCpuExperts,
           "Tokens in the KV cache, as --max-total-tokens of serve")
      .Positive();
  app.Flag("--expert-loads", a.expert_loads, kCpuExperts,
           "Experts that tokens choose: uniform, or zipf:EXPONENT (a few experts are popular)");
  app.Flag("--cpu-cost-table", a.cpu_cost_table, kCpuExperts,
           "JSON of `switchyard bench calibrate` for the CPUs; default: rates of Zen 4 threads");
}

void CheckCpuExperts(const CommandLine& app, const PlanArgs& a) {
  if (!a.cpu_experts) {
    for (const char* flag :
         {"--host-memory", "--link-gbs", "--cache-tokens", "--expert-loads", "--cpu-cost-table"})
      if (app.Given(flag)) throw Invalid("{}: --cpu-experts is missing", flag);
    return;
  }
  if (a.card.empty() || a.per_node != 1 || a.nodes != 1)
    throw Invalid("--cpu-experts: plans one GPU; want --gpus 1xCARD");
  for (const char* flag : {"--disaggregate", "--explain", "--svg", "--json", "--rate", "--batch",
                           "--slo-ttft", "--slo-itl", "--pp-size", "--token-correlation"})
    if (app.Given(flag)) throw Invalid("{}: not supported with --cpu-experts", flag);
}

void AddLoad(CommandLine& app, PlanArgs& a) {
  app.Flag("--input-len", a.input, kLoad, "Prompt tokens of a request").Positive();
  app.Flag("--output-len", a.output, kLoad, "Output tokens of a request").Positive();
  app.Flag("--rate", a.rate, kLoad, "Requests per second of the whole cluster").NonNegative();
  app.Flag("--batch", a.batch, kLoad, "Concurrent requests of the whole cluster").NonNegative();
  app.Flag("--slo-ttft", a.max_ttft_ms, kLoad, "Longest time to the first token, in ms; 0: none")
      .NonNegative();
  app.Flag("--slo-itl", a.max_itl_ms, kLoad, "Longest time between tokens, in ms; 0: none")
      .NonNegative();
  app.Flag("--imbalance", a.imbalance, kLoad,
           "Expert rows of the most loaded EP rank divided by the mean, in addition to random "
           "variation")
      .Range(1.0, 64.0);
  app.Flag("--token-correlation", a.correlation, kLoad,
           "Correlation of the experts of two tokens of a prompt; 0: tokens are independent")
      .Range(0.0, 0.99);
  app.Flag("--price", a.price, kLoad, "Price per hour of a GPU (or host), in any currency")
      .NonNegative();
}

void AddOutput(CommandLine& app, PlanArgs& a) {
  app.Flag(
      "--explain", a.explain, kOutput,
      "Layout to explain, like tp8-ep8-dp8-dense1-deepep: prints its figures for each question "
      "of the decision tree (docs/planning.md). Prefill and decode workers are written as "
      "2xtp4/1xtp8-ep8");
  app.Flag("--svg", a.svg, kOutput, "Write the Pareto picture to this file");
  app.Switch("--json", a.json, kOutput, "Print all layouts as JSON");
  app.Flag("--top", a.rows, kOutput, "Rows of the table").Positive();
}

// Splits a value such as "8x400" into the number and the text after x. Returns false for another
// form.
bool SplitCount(std::string_view text, int* count, std::string* rest) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *count);
  if (error != std::errc() || end == text.data() + text.size() || *end != 'x') return false;
  *rest = std::string(end + 1, text.data() + text.size());
  return *count > 0 && !rest->empty();
}

void SetGpus(const std::vector<std::string>& words, PlanArgs& a) {
  std::string text;
  for (const std::string& word : words) text += word;
  if (SplitCount(text, &a.per_node, &a.card)) {
    if (a.per_node > 1024) throw Invalid("--gpus {}: want at most 1024 GPUs of a node", text);
    return;
  }
  a.per_node = 1;
  a.card = text;
  if (text.empty() || (text[0] >= '0' && text[0] <= '9'))
    throw Invalid("--gpus {}: want a number and a card, like 8xh200", text);
}

void SetNics(const std::string& text, PlanArgs& a) {
  if (text.empty()) return;
  std::string rate;
  const bool split = SplitCount(text, &a.nics, &rate);
  const auto [end, error] = std::from_chars(rate.data(), rate.data() + rate.size(), a.nic_gbit);
  if (!split || error != std::errc() || end != rate.data() + rate.size() || !(a.nic_gbit > 0) ||
      a.nics > 1024)
    throw Invalid("--nics {}: want a number of NICs and their Gbit/s, like 8x400", text);
}

// Flag values as given, which are parsed after the command line (--gpus, --nics, --cpu).
struct RawFlags {
  std::vector<std::string> gpus;
  std::string nics;
  bool cpu = false;
};

void Settle(const RawFlags& raw, PlanArgs& a) {
  if (raw.gpus.empty() == !raw.cpu)
    throw Invalid("plan: want either --gpus, like 8xh200, or --cpu");
  if (!raw.cpu) SetGpus(raw.gpus, a);
  SetNics(raw.nics, a);
  if (a.nodes > 1 && a.nics == 0)
    throw Invalid("--nodes {}: --nics is missing; set it, for example --nics 8x400", a.nodes);
  if (a.rate > 0 && a.batch > 0)
    throw Invalid("--rate and --batch exclude each other; set only one of them");
  const std::filesystem::path named = a.engine.model_path;
  if (!std::filesystem::is_regular_file(named))
    a.engine.model_path = ResolveCheckpoint(named, a.revision);
}

}  // namespace

std::optional<PlanArgs> ParsePlan(const std::vector<std::string>& args) {
  PlanArgs a;
  RawFlags raw;
  CommandLine app(
      "Rank the layouts of a model on GPUs or CPUs, from config.json alone. Prints memory, times "
      "and throughput of the layouts, and the command line of the best one",
      "switchyard plan");
  AddModel(app, a);
  AddCluster(app, a, raw.gpus, raw.nics, raw.cpu);
  AddStages(app, a);
  AddWorkers(app, a);
  AddLoad(app, a);
  AddCpuExperts(app, a);
  AddOutput(app, a);
  app.Footer(
      "A layout is a choice of tp, pp, ep, dp attention, dense layers, exchange, redundant experts "
      "and two-batch overlap.\nWith --disaggregate, prefill and decode have separate workers.\nIf "
      "a layout needs only a part of the GPUs, "
      "the other GPUs run replicas of the engine. docs/planning.md explains the figures.");
  if (!ParseWords(app, args)) return std::nullopt;
  Settle(raw, a);
  CheckWorkers(a);
  CheckCpuExperts(app, a);
  if (!a.engine.pp_layer_partition.empty() && a.stages < 2)
    throw Invalid("--pp-layer-partition {}: --pp-size is missing; set it to the number of stages",
                  a.engine.pp_layer_partition);
  return a;
}

namespace {

constexpr const char* kExperts = "Expert loads";
constexpr const char* kFailures = "Failures";
constexpr const char* kStages = "Pipeline stages";

void AddExpertLoads(CommandLine& app, SimulateArgs& a) {
  EplbOptions& eplb = a.plan.engine.eplb;
  app.Flag("--expert-loads", a.expert_loads, kExperts,
           "Experts that tokens choose: uniform, zipf:EXPONENT (a few experts are popular), or a "
           "file with recorded loads (logical_count), as --init-expert-location of serve reads it; "
           "empty: equal ranks, with --imbalance and --token-correlation");
  app.Flag("--expert-drift", a.drift_seconds, kExperts,
           "With zipf: seconds in which each expert exchanges its popularity with another one, on "
           "average; 0: never")
      .NonNegative();
  app.Flag("--ep-num-redundant-experts", a.redundant, kExperts,
           "Same as for serve; 0: redN of --layout")
      .NonNegative();
  app.Flag("--ep-dispatch-algorithm", eplb.dispatch, kExperts, "Same as for serve")
      .OneOf({"static", "dynamic", "fake", "balanced", "lp"});
  app.Switch("--enable-eplb", eplb.enable, kExperts,
             "Rebalances experts with the planners of serve; steps wait for the migration");
  app.Flag("--eplb-algorithm", eplb.algorithm, kExperts, "Same as for serve")
      .OneOf({"auto", "deepseek", "deepseek_hierarchical", "elasticity_aware", "yard"});
  app.Flag("--eplb-rebalance-num-iterations", eplb.num_iterations, kExperts, "Same as for serve")
      .Positive();
  app.Flag("--eplb-rebalance-layers-per-chunk", eplb.layers_per_chunk, kExperts,
           "Same as for serve");
  app.Flag("--eplb-min-rebalancing-utilization-threshold", eplb.min_utilization, kExperts,
           "Same as for serve")
      .Range(0.0, 1.0);
}

void AddFailures(CommandLine& app, SimulateArgs& a) {
  app.List("--fail", a.fail, kFailures,
           "RANK@SECONDS ...: the processes of these ranks end. The ranks of an engine have "
           "consecutive numbers");
  app.Flag("--fail-rate", a.fail_rate, kFailures,
           "Number of times that each rank ends per day, at random times of --seed")
      .NonNegative();
  app.Flag("--restart-seconds", a.restart_seconds, kFailures,
           "Seconds from the end of a rank until a new one has loaded; 0: its start, and its "
           "weights at 2 GB/s")
      .NonNegative();
  app.Flag("--elastic-ep-backend", a.plan.engine.elastic_ep_backend, kFailures,
           "Same as for serve: none | mooncake, on CPUs")
      .OneOf({"none", "mooncake"});
}

void AddSimulatedStages(CommandLine& app, PlanArgs& a) {
  EngineConfig& e = a.engine;
  app.Flag("--pp-size,--pp,--pipeline-parallel-size", a.stages, kStages,
           "Pipeline stages of the layout; 0: those of --layout, or 1 for the best layout")
      .Range(0, 1024);
  app.Flag("--pp-layer-partition", e.pp_layer_partition, kStages,
           "Same as for serve, as the other flags here: they need a layout with stages");
  app.Flag("--pp-max-micro-batch-size", e.pp_max_micro_batch_size, kStages,
           "Maximum decoding requests in one pass; 0: an equal part for each pass in flight")
      .NonNegative();
  app.Flag("--pp-async-batch-depth", e.pp_async_batch_depth, kStages,
           "Passes in flight in addition to one for each stage")
      .NonNegative();
  app.Switch("--enable-dynamic-chunking", e.dynamic_chunking, kStages,
             "Shorten the later chunks of long prompts, so that chunks take equal time");
}

// Flags that have no effect without another one.
void CheckSimulate(const CommandLine& app, const SimulateArgs& a) {
  const auto needs = [&](std::initializer_list<const char*> flags, bool given, const char* other) {
    for (const char* flag : flags)
      if (!given && app.Given(flag))
        throw Invalid("{} has no effect without {}; set both", flag, other);
  };
  needs({"--expert-drift", "--ep-dispatch-algorithm", "--enable-eplb"}, !a.expert_loads.empty(),
        "--expert-loads");
  needs({"--eplb-algorithm", "--eplb-rebalance-num-iterations", "--eplb-rebalance-layers-per-chunk",
         "--eplb-min-rebalancing-utilization-threshold"},
        a.plan.engine.eplb.enable, "--enable-eplb");
  needs({"--restart-seconds", "--elastic-ep-backend"}, !a.fail.empty() || a.fail_rate > 0,
        "--fail or --fail-rate");
  needs({"--ep-num-redundant-experts"}, !a.layout.empty(), "--layout");
  for (const auto& [flag, value] :
       {std::pair("--imbalance", a.plan.imbalance), {"--token-correlation", a.plan.correlation}})
    if (!a.expert_loads.empty() && app.Given(flag))
      throw Invalid("{} {} and --expert-loads exclude each other; set only one of them", flag,
                    value);
  if (!a.trace.empty() && app.Given("--seconds"))
    throw Invalid("--seconds {} and --trace exclude each other; set only one of them", a.seconds);
}

}  // namespace

std::optional<SimulateArgs> ParseSimulate(const std::vector<std::string>& args) {
  SimulateArgs a;
  RawFlags raw;
  constexpr const char* kSimulation = "Simulation";
  CommandLine app("Simulate requests on a layout of a cluster: latencies, use, imbalance",
                  "switchyard simulate");
  AddModel(app, a.plan);
  AddCluster(app, a.plan, raw.gpus, raw.nics, raw.cpu);
  AddLoad(app, a.plan);
  app.Flag("--layout", a.layout, kSimulation,
           "Layout, named as in the output of `switchyard plan`; default: the best layout");
  app.Flag(
      "--trace", a.trace, kSimulation,
      "Arrivals: Mooncake's JSON lines, or Azure's CSV; default: Poisson arrivals with --rate");
  app.Flag("--seconds", a.seconds, kSimulation, "Seconds of Poisson arrivals").Range(0.001, 1e7);
  app.Flag("--seed", a.seed, kSimulation,
           "Seed of Poisson arrivals, of the popularity of experts, and of failures");
  app.Flag("--fidelity", a.fidelity, kSimulation,
           "step: the time of a step is computed once for each shape, for days of a large cluster. "
           "operation: every operation of every rank is simulated, with the links that ranks "
           "share, for seconds")
      .OneOf({"step", "operation"});
  app.Flag("--chrome-trace", a.chrome_trace, kSimulation,
           "Write the steps of the first engine to this file, and with --fidelity operation the "
           "operations of its first steps");
  app.Flag("--svg", a.plan.svg, kSimulation, "Write a timeline of the first engine to this file");
  AddSimulatedStages(app, a.plan);
  AddExpertLoads(app, a);
  AddFailures(app, a);
  app.Footer(
      "Each attention group has the engine's scheduler and prefix cache. docs/planning.md explains "
      "the figures and what they assume.");
  if (!ParseWords(app, args)) return std::nullopt;
  CheckSimulate(app, a);
  Settle(raw, a.plan);
  CheckWorkers(a.plan);
  if (a.trace.empty() && a.plan.rate <= 0)
    throw Invalid(
        "simulate: the arrivals are missing; set --rate (requests per second) or --trace");
  if (a.plan.batch > 0)
    throw Invalid("--batch {} is a flag of plan only; set --rate or --trace for simulate",
                  a.plan.batch);
  return a;
}

}  // namespace switchyard
