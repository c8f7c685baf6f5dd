
#include <algorithm>
#include <iterator>
#include <map>
#include <vector>

#include "comm/device/communicator.h"
#include "core/error.h"
#include "moe/backends.h"
#include "moe/check_options.h"
#include "moe/dispatchers/builtin.h"
#include "moe/dispatchers/fused_tiles.h"
#include "moe/runners/grouped_mlp.h"
#include "moe/runners/runner_names.h"

namespace switchyard {

MoeBackends BuiltinMoeBackends() {
  MoeBackends b;
  b.dispatchers.Add("none", NoneBackend());
  b.dispatchers.Add("deepep", DeepEpBackend());
  b.dispatchers.Add("flashinfer", FlashInferBackend());
  b.dispatchers.Add("mooncake", MooncakeBackend());
  b.fused.Add("fused", FusedTilesBackend());

  b.runners.Add("grouped_mlp", {.make = [] { return std::make_unique<GroupedMlpRunner>(); },
                                .summary = "one contiguous grouped GEMM over exact counts"});
  b.runners.Add("masked_mlp", {.make = [] { return std::make_unique<MaskedMlpRunner>(); },
                               .summary = "one masked GEMM per expert over a fixed capacity"});

  b.permutes.Add(DispatchLayout::kStandard, RunnerLayout::kContiguous, SortRowsByExpert());
  b.permutes.Add(DispatchLayout::kNormal, RunnerLayout::kContiguous, SortRowsByExpert());
  b.permutes.Add(DispatchLayout::kLowLatency, RunnerLayout::kContiguous, CompactPlaces());
  b.permutes.Add(DispatchLayout::kStandard, RunnerLayout::kMasked, GroupRowsMasked());
  b.permutes.Add(DispatchLayout::kNormal, RunnerLayout::kMasked, GroupRowsMasked());
  b.permutes.Add(DispatchLayout::kLowLatency, RunnerLayout::kMasked, CompactPlacesMasked());

  b.gpus = BuiltinGpuBackends();
  return b;
}

namespace {

constexpr WeightFormat kFormats[] = {
    WeightFormat::kF32,       WeightFormat::kBF16,       WeightFormat::kF16,
    WeightFormat::kFp8Block,  WeightFormat::kFp8Channel, WeightFormat::kInt8Channel,
    WeightFormat::kInt4Group, WeightFormat::kMxfp4,      WeightFormat::kNvfp4};

struct RunnerFacts {
  RunnerLayout layout = RunnerLayout::kContiguous;
  std::vector<WeightFormat> takes;
};

template <typename Part>
std::vector<WeightFormat> FormatsOf(const Part& part) {
  std::vector<WeightFormat> formats;
  std::ranges::copy_if(kFormats, std::back_inserter(formats),
                       [&](WeightFormat format) { return part.Supports(format); });
  return formats;
}

// Properties that only constructed backends have.
struct Facts {
  std::map<std::string, std::vector<DispatchLayout>> delivers;  // layouts by name of dispatcher
  // Formats by name of fused operator.
  std::map<std::string, std::vector<WeightFormat>> fused_takes;
  std::map<std::string, RunnerFacts> runners;
};

// Calls visit(context) on one rank with minimal sizes and buffers for the backend `a2a`.
template <typename Visit>
void WithContext(MoeOptions options, const std::string& a2a, const MoeBackends& backends,
                 const Visit& visit) {
  options.a2a_backend = a2a;
  const MoeShape shape{
      .hidden = 128, .intermediate = 128, .num_experts = 1, .top_k = 1, .max_tokens = 1};
  const MeshShape mesh;
  CheckMoeValues(options, shape, mesh);
  const size_t bytes =
      RankComm::BytesPerRank(mesh) + MoeSymmetricBytes(options, shape, mesh, &backends);
  RunRankThreads(1, bytes, [&](int, std::shared_ptr<SharedArena> arena) {
    const auto comm = RankComm::Create(std::move(arena), mesh, 0);
    ThreadPool pool(1);
    const ExchangeShape exchange = ExchangeShapeOf(options, shape, mesh);
    const ExpertMap experts(exchange.num_experts, 1, /*shared_dispatched=*/false);
    visit(DispatcherContext{options, exchange, experts, *comm, pool});
  });
}

// Without the flags that only some backends or sizes support.
MoeOptions Plain(MoeOptions options) {
  options.num_redundant_experts = 0;
  options.waterfill = false;
  options.combine_rows = "slot";
  options.runner_backend = "auto";
  return options;
}

Facts CollectFacts(MoeOptions options, const MoeBackends& backends) {
  options = Plain(options);
  Facts facts;
  for (const auto& entry : backends.dispatchers.all())
    WithContext(options, entry.first, backends, [&](const DispatcherContext& context) {
      facts.delivers[entry.first] = entry.second.make(context)->layouts();
    });
  for (const auto& entry : backends.fused.all())
    WithContext(options, entry.first, backends, [&](const DispatcherContext& context) {
      facts.fused_takes[entry.first] = FormatsOf(*entry.second.make(context));
    });
  for (const auto& [name, backend] : backends.runners.all()) {
    const auto runner = backend.make();
    facts.runners[name] = {runner->layout(), FormatsOf(*runner)};
  }
  return facts;
}

template <typename Value>
std::string Listed(const std::vector<Value>& values) {
  std::vector<std::string_view> names;
  names.reserve(values.size());
  for (const Value value : values) names.push_back(Name(value));
  return Joined(names, ", ");
}

// For example "normal → contiguous, low-latency → contiguous". Empty if any of the layouts has no
// permute.
std::string PermutePath(const std::vector<DispatchLayout>& from, RunnerLayout to,
                        const PermuteTable& permutes) {
  std::vector<std::string> steps;
  for (const DispatchLayout layout : from) {
    if (!permutes.Find(layout, to)) return "";
    steps.push_back(fmt::format("{} → {}", Name(layout), Name(to)));
  }
  return Joined(steps, ", ");
}

using Lines = std::back_insert_iterator<std::string>;

void PrintA2a(const Facts& facts, const MoeBackends& backends, Lines out) {
  fmt::format_to(out, "--moe-a2a-backend\n");
  for (const auto& [name, backend] : backends.dispatchers.all()) {
    fmt::format_to(out, "  {:<14} {}\n  {:<14} delivers {}\n", name, backend.summary, "",
                   Listed(facts.delivers.at(name)));
    if (backend.combines_by_rank)
      fmt::format_to(out, "  {:<14} combines by --moe-combine-rows slot (each output) or rank\n",
                     "");
  }
  for (const auto& [name, backend] : backends.fused.all())
    fmt::format_to(out, "  {:<14} {}\n  {:<14} computes the experts itself: {}\n", name,
                   backend.summary, "", Listed(facts.fused_takes.at(name)));
}

void PrintRunners(const Facts& facts, const MoeBackends& backends, Lines out) {
  fmt::format_to(out, "\n--moe-runner-backend (auto is {})\n", backends.auto_runner);
  for (const auto& [name, backend] : backends.runners.all())
    fmt::format_to(out, "  {:<14} {}\n  {:<14} layout {}; takes {}\n", name, backend.summary, "",
                   Name(facts.runners.at(name).layout), Listed(facts.runners.at(name).takes));
}

void PrintPairs(const Facts& facts, const MoeBackends& backends, Lines out) {
  fmt::format_to(out, "\nPairs and their permutes\n");
  for (const auto& [a2a, layouts] : facts.delivers) {
    for (const auto& [name, runner] : facts.runners) {
      const std::string way = PermutePath(layouts, runner.layout, backends.permutes);
      fmt::format_to(out, "  {:<30} {}\n", fmt::format("{} + {}", a2a, name),
                     way.empty() ? "no permute" : way);
    }
  }
  for (const auto& entry : facts.fused_takes)
    fmt::format_to(out, "  {:<30} one operator\n", entry.first);
}

void PrintGpus(const GpuMoeBackends& gpus, Lines out) {
  const auto print = [&](std::string_view flag, const auto& registry) {
    for (const auto& [name, backend] : registry.all())
      fmt::format_to(out, "  {} {}: {}\n", flag, name, backend.summary);
  };
  fmt::format_to(out, "\nOn GPUs (permutes {})\n", gpus.permutes.Pairs());
  print("--moe-a2a-backend", gpus.exchanges);
  print("--moe-runner-backend", gpus.runners);
}

void PrintForeign(std::string_view flag, std::span<const SglangBackendName> names, Lines out) {
  std::map<std::string_view, std::vector<std::string_view>> served;
  for (const SglangBackendName& foreign : names)
    if (foreign.needs.empty()) served[foreign.nearest].push_back(foreign.name);
  for (const auto& [nearest, all] : served)
    fmt::format_to(out, "  {} {}: mapped to {}\n", flag, Joined(all, ", "), nearest);
  for (const SglangBackendName& foreign : names)
    if (!foreign.needs.empty())
      fmt::format_to(out, "  {} {}: needs {}; the nearest supported one is {}\n", flag,
                     foreign.name, foreign.needs, foreign.nearest);
}

// Returns the names of the `formats` that are not in `taken`. Skips panel formats, which all
// runners on CPUs support.
std::vector<std::string_view> Unsupported(const std::vector<WeightFormat>& formats,
                                          const std::vector<WeightFormat>& taken) {
  std::vector<std::string_view> names;
  for (const WeightFormat format : formats)
    if (!HasPanels(format) && std::ranges::find(taken, format) == taken.end())
      names.push_back(Name(format));
  return names;
}

}  // namespace

std::string BackendTable(const MoeOptions& options, const MoeBackends& backends) {
  const Facts facts = CollectFacts(options, backends);
  std::string text;
  const Lines out(text);
  fmt::format_to(out, "Ranks on CPUs; their kernels use {}.\n\n",
                 kernels::Name(kernels::ActiveIsa()));
  PrintA2a(facts, backends, out);
  PrintRunners(facts, backends, out);
  PrintPairs(facts, backends, out);
  PrintGpus(backends.gpus, out);
  fmt::format_to(out, "\nSGLang names\n");
  PrintForeign("--moe-runner-backend", ForeignRunnerNames(), out);
  PrintForeign("--moe-a2a-backend", ForeignA2aNames(), out);
  return text;
}

std::string ExplainChoice(const MoeOptions& options, const std::vector<WeightFormat>& formats,
                          const MoeBackends& backends) {
  CheckA2aName(options.a2a_backend, backends);
  const Facts facts = CollectFacts(options, backends);
  const std::string experts = Listed(formats) + " experts";
  if (const auto fused = facts.fused_takes.find(options.a2a_backend);
      fused != facts.fused_takes.end()) {
    const auto untaken = Unsupported(formats, fused->second);
    return untaken.empty()
               ? fmt::format("--moe-a2a-backend {} computes {} itself\n", fused->first, experts)
               : fmt::format("--moe-a2a-backend {} does not support {}\n", fused->first,
                             Joined(untaken, ", "));
  }
  const std::string name = ResolveRunner(options.runner_backend, backends);
  const RunnerFacts& runner = facts.runners.at(name);
  const std::string flag = fmt::format("--moe-runner-backend {}", options.runner_backend);
  const std::string who =
      name == options.runner_backend ? flag : fmt::format("{} is {}", flag, name);
  if (const auto untaken = Unsupported(formats, runner.takes); !untaken.empty())
    return fmt::format("{}: does not support {}\n", who, Joined(untaken, ", "));
  const std::string way =
      PermutePath(facts.delivers.at(options.a2a_backend), runner.layout, backends.permutes);
  if (way.empty())
    return fmt::format("{}: no permute pairs it with --moe-a2a-backend {}\n", who,
                       options.a2a_backend);
  return fmt::format(
      "{}: reads {} in their stored format; paired with --moe-a2a-backend {} by {}\n", who, experts,
      options.a2a_backend, way);
}

void CheckMoePair(const MoeOptions& options, const std::vector<WeightFormat>& formats,
                  const MoeBackends& backends) {
  const std::string& a2a = options.a2a_backend;
  const auto refuse = [&](const char* flag, const std::string& name, const auto& part) {
    if (const auto untaken = Unsupported(formats, FormatsOf(part)); !untaken.empty())
      throw Invalid("{} {} does not support {} experts", flag, name, Joined(untaken, ", "));
  };
  if (const FusedBackend* fused = backends.fused.FindIf(a2a))
    return WithContext(Plain(options), a2a, backends, [&](const DispatcherContext& context) {
      refuse("--moe-a2a-backend", a2a, *fused->make(context));
    });
  const auto runner = backends.runners.Find(ResolveRunner(options.runner_backend, backends)).make();
  refuse("--moe-runner-backend", options.runner_backend, *runner);
  std::vector<DispatchLayout> delivered;
  WithContext(Plain(options), a2a, backends, [&](const DispatcherContext& context) {
    delivered = backends.dispatchers.Find(a2a).make(context)->layouts();
  });
  for (const DispatchLayout from : delivered)
    if (!backends.permutes.Find(from, runner->layout()))
      throw Invalid(
          "--moe-a2a-backend {} delivers layout {}, which no permute converts to layout {} of "
          "--moe-runner-backend {}; available permutes: {}",
          a2a, Name(from), Name(runner->layout()), options.runner_backend,
          backends.permutes.Pairs());
}

}  // namespace switchyard
