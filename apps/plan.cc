// `switchyard plan` ranks the layouts of a model on a cluster; `switchyard simulate` simulates
// requests on one of them.
#include "apps/plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <tuple>
#include <utility>

#include "core/cpus.h"
#include "core/error.h"
#include "core/gguf_files.h"
#include "core/json.h"
#include "engine/host_memory.h"
#include "kernels/ops.h"
#include "plan/heat_layout.h"
#include "plan/report.h"
#include "plan/search.h"
#include "plan/simulate.h"
#include "plan/worker_split.h"

namespace switchyard {
namespace {

using nlohmann::json;

// --model-path is a config.json file, not the directory of a checkpoint.
ModelConfig ReadConfigFile(const EngineConfig& config) {
  std::ifstream in(config.model_path);
  std::ostringstream text;
  text << in.rdbuf();
  if (config.model_override_args.empty())
    return ParseModelConfig(text.str(), {}, config.quantization);
  json document = json::parse(text.str(), nullptr, false);
  const json overrides = json::parse(config.model_override_args, nullptr, false);
  if (!overrides.is_object()) throw Invalid("--json-model-override-args: want a JSON object");
  if (!document.is_object()) throw Invalid("{}: not a JSON object", config.model_path.string());
  document.update(overrides);
  return ParseModelConfig(document.dump(), {}, config.quantization);
}

ModelConfig ReadModel(const PlanArgs& args) {
  const std::filesystem::path& path = args.engine.model_path;
  const bool file = std::filesystem::is_regular_file(path) && !FindGguf(path);
  ModelConfig model = file ? ReadConfigFile(args.engine) : ReadModelConfig(args.engine);
  const bool bfloat16 = args.engine.dtype == "auto" || args.engine.dtype == "bfloat16";
  if (!args.card.empty()) {
    model.quantization.bfloat16_rows = false;  // only CPU kernels use these formats
    model.quantization.int8_group_rows = false;
    model.quantization.fp8_bfloat16_rows = false;
  } else if (bfloat16) {
    const kernels::Isa isa = kernels::ActiveIsa();
    if (kernels::HasBFloat16Products(isa)) model.quantization.bfloat16_rows = true;
    if (kernels::HasFourBitProducts(isa)) model.quantization.int8_group_rows = true;
    if (kernels::HasFp8Products(isa)) model.quantization.fp8_bfloat16_rows = true;
  }
  return model;
}

// `flag`: that of args.cost_table.
plan::CostTable TableOf(const PlanArgs& args, int cpus, const char* flag = "--cost-table") {
  if (!args.cost_table.empty()) {
    plan::CostTable table = plan::ReadCostTable(args.cost_table);
    if (table.cuda == args.card.empty())
      throw Invalid("{} {}: measured for {}, but the plan is for {}", flag, args.cost_table,
                    table.cuda ? "a GPU" : "CPUs", args.card.empty() ? "CPUs" : "GPUs");
    return table;
  }
  return args.card.empty() ? plan::CpuDefaults(cpus) : plan::ShippedTable(args.card);
}

plan::Question QuestionOf(const PlanArgs& args) {
  plan::Question q{.config = args.engine, .model = ReadModel(args)};
  plan::Cluster& c = q.cluster;
  c.cuda = !args.card.empty();
  c.cpus = args.cpus > 0 ? args.cpus : AllowedCpuCount();
  q.table = TableOf(args, c.cpus);
  c.card = c.cuda ? args.card : "host";
  c.per_node = c.cuda ? args.per_node : c.cpus;
  c.nodes = args.nodes;
  c.nics = args.nics;
  c.nic_gbit = args.nic_gbit;
  c.memory = args.memory_gib > 0 ? args.memory_gib * (int64_t{1} << 30)
             : c.cuda            ? q.table.memory_bytes
                                 : static_cast<double>(ReadHostMemory().available);
  if (c.memory <= 0)
    throw Invalid("--cost-table {}: the file has no memory_bytes; add --memory GIB",
                  args.cost_table);
  q.load = {.input = args.input,
            .output = args.output,
            .rate = args.rate,
            .batch = args.batch,
            .max_ttft = args.max_ttft_ms * 1e-3,
            .max_itl = args.max_itl_ms * 1e-3,
            .imbalance = args.imbalance,
            .correlation = args.correlation,
            .price = args.price};
  q.stages = args.stages;
  if (args.input + args.output > q.model.longest_context())
    throw Invalid(
        "--input-len {} and --output-len {}: the sum exceeds the model's context length of {} "
        "tokens",
        args.input, args.output, q.model.longest_context());
  return q;
}

// The layout `name`, the value of `flag`, with --pp-size if the name has no stages.
plan::Layout LayoutWithStages(const PlanArgs& args, const char* flag, const std::string& name) {
  plan::Layout layout = plan::ParseLayout(name);
  if (args.stages > 0 && layout.mesh.pp > 1 && layout.mesh.pp != args.stages)
    throw Invalid("{} {}: --pp-size {} is another number of stages", flag, name, args.stages);
  if (args.stages > 0) layout.mesh.pp = args.stages;
  return layout;
}

// Prefill and decode workers.
int RunSplits(const PlanArgs& args, const plan::Question& q) {
  plan::SplitLayout numbers;
  if (!args.explain.empty()) numbers = plan::ParseSplitLayout(args.explain);
  for (const auto& [flag, given, number] :
       {std::tuple("--prefill-workers", args.prefill_workers, &numbers.prefill_workers),
        {"--decode-workers", args.decode_workers, &numbers.decode_workers}}) {
    if (given > 0 && *number > 0 && given != *number)
      throw Invalid("{} {}: --explain {} has another number", flag, given, args.explain);
    if (given > 0) *number = given;
  }
  if (!args.explain.empty()) {
    fmt::print("{}", plan::ExplainSplit(q, numbers));
    return 0;
  }
  const std::vector<plan::Split> ranked = plan::SearchSplits(q, numbers);
  fmt::print("{}",
             args.json ? plan::SplitJson(q, ranked) : plan::SplitReport(q, ranked, args.rows));
  return 0;
}

// One GPU and the CPUs of its host.
int RunCpuExperts(const PlanArgs& args, const plan::Question& q) {
  plan::HeatQuestion heat{.config = q.config,
                          .model = q.model,
                          .gpu = q.table,
                          .packs_experts = args.card.starts_with("h"),
                          .gpu_memory = q.cluster.memory,
                          .expert_loads = args.expert_loads,
                          .cache_tokens = args.cache_tokens};
  PlanArgs on_cpus = args;
  on_cpus.card.clear();
  on_cpus.cost_table = args.cpu_cost_table;
  heat.cpu_model = ReadModel(on_cpus);
  heat.cpu = TableOf(on_cpus, q.cluster.cpus, "--cpu-cost-table");
  heat.host_memory = args.host_memory_gib > 0 ? args.host_memory_gib * (int64_t{1} << 30)
                                              : static_cast<double>(ReadHostMemory().available);
  heat.link.rate = args.link_gbs * 1e9;
  fmt::print("{}", plan::HeatReport(plan::HeatLayout(std::move(heat))));
  return 0;
}

plan::Layout LayoutOf(const SimulateArgs& args) {
  plan::Layout layout = LayoutWithStages(args.plan, "--layout", args.layout);
  if (args.redundant > 0 && layout.redundant > 0 && layout.redundant != args.redundant)
    throw Invalid("--ep-num-redundant-experts {}: --layout {} has {}", args.redundant, args.layout,
                  layout.redundant);
  if (args.redundant > 0) layout.redundant = args.redundant;
  return layout;
}

plan::SimulationOptions OptionsOf(const SimulateArgs& args) {
  plan::SimulationOptions options{.fidelity = plan::ParseFidelity(args.fidelity),
                                  .expert_loads = {.source = args.expert_loads,
                                                   .drift_seconds = args.drift_seconds,
                                                   .seed = args.seed},
                                  .failures = {.listed = {},
                                               .per_day = args.fail_rate,
                                               .seed = args.seed,
                                               .restart_seconds = args.restart_seconds}};
  for (const std::string& text : args.fail)
    options.failures.listed.push_back(plan::ParseFailure(text));
  return options;
}

}  // namespace

int RunPlan(const PlanArgs& args, const std::shared_ptr<const MoeBackends>& backends) {
  plan::Question q = QuestionOf(args);
  q.config.backends = backends;
  if (args.cpu_experts) return RunCpuExperts(args, q);
  if (args.disaggregate) return RunSplits(args, q);
  if (plan::IsSplitName(args.explain))
    throw Invalid("--explain {}: --disaggregate is missing", args.explain);
  if (!args.explain.empty()) {
    fmt::print("{}", plan::Explain(q, LayoutWithStages(args, "--explain", args.explain)));
    return 0;
  }
  const std::vector<plan::Evaluation> ranked = plan::Search(q);
  if (!args.svg.empty()) {
    std::ofstream out(args.svg);
    if (!(out << plan::Picture(q, ranked))) throw Resource("--svg {}: cannot be written", args.svg);
  }
  fmt::print("{}", args.json ? plan::ReportJson(q, ranked) : plan::Report(q, ranked, args.rows));
  return 0;
}

int RunSimulate(const SimulateArgs& args, const std::shared_ptr<const MoeBackends>& backends) {
  plan::Question q = QuestionOf(args.plan);
  q.config.backends = backends;
  q.stages = std::max(1, args.plan.stages);
  const double rate = args.plan.rate;
  const std::vector<plan::Arrival> arrivals =
      args.trace.empty() ? plan::PoissonArrivals(q.load, rate, args.seconds, args.seed)
                         : plan::ReadArrivals(args.trace);
  const plan::Evaluation layout =
      args.layout.empty() ? plan::Search(q).front() : plan::Evaluate(q, LayoutOf(args));
  const plan::Simulation simulation = plan::Simulate(q, layout, arrivals, OptionsOf(args));
  if (!args.chrome_trace.empty()) {
    std::ofstream out(args.chrome_trace);
    if (!(out << plan::SimulationTrace(simulation)))
      throw Resource("--chrome-trace {}: cannot be written", args.chrome_trace);
  }
  if (!args.plan.svg.empty()) {
    std::ofstream out(args.plan.svg);
    if (!(out << plan::SimulationPicture(layout, simulation)))
      throw Resource("--svg {}: cannot be written", args.plan.svg);
  }
  fmt::print("costs: {}: {}\n{}", q.table.name, q.table.source,
             plan::SimulationText(layout, simulation));
  return 0;
}

}  // namespace switchyard
