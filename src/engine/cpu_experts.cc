#include "engine/cpu_experts.h"

#include <algorithm>
#include <optional>

#include "core/error.h"
#include "core/format.h"
#include "engine/host_memory.h"

namespace switchyard {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
constexpr int32_t kShortChunk = 2048;        // the default on CPUs, and on GPUs with little memory
constexpr int32_t kRequestsWithStates = 32;  // each has slots of recurrent states
constexpr int64_t kSmallCache = 2048;        // tokens; enough if a flag asks for more
constexpr int32_t kMostRunningRequests = 256;  // without --max-running-requests
// Times of a row and of reading an expert, on a GPU and on CPUs, in any unit. Their ratios are
// rough: as long as the GPU is much faster, the placement does not depend on them.
constexpr const char* kRankCosts = "1:40,20:900";

// Memory that holds anything, so that a plan has the sizes that the options ask for.
HostMemory Unlimited() {
  constexpr int64_t kBytes = int64_t{1} << 50;
  return {.total = kBytes, .available = kBytes};
}

EnginePlan PlanOfSizes(Machine machine, const ModelConfig& model, const EngineConfig& config) {
  machine.memory = machine.host = Unlimited();
  return MakePlanOn(machine, model, config, config.mesh.world());
}

// One rank on a GPU, with short chunks unless a flag sets their length.
EngineConfig WithShortChunks(EngineConfig config, const ModelConfig& model) {
  if (config.chunked_prefill_size == 0) config.chunked_prefill_size = kShortChunk;
  if (config.max_running_requests == 0 && model.has_states())
    config.max_running_requests = kRequestsWithStates;
  return config;
}

EngineConfig WithCpuRank(EngineConfig config) {
  config.device = "cuda,cpu";
  config.mesh = {.tp = 2, .ep = 2, .dp = 2, .dense_tp = 1, .expert_ranks = 1};
  if (config.moe.a2a_backend == "none") config.moe.a2a_backend = "deepep";
  config.eplb.enable = true;
  if (config.eplb.rank_costs.empty()) config.eplb.rank_costs = kRankCosts;
  return config;
}

void SetGpuBytes(const EnginePlan& plan, ExpertSplit* split) {
  const EngineConfig& config = split->config;
  const RankMemory memory = PlanRankMemory(config, plan);
  const int64_t pages = (split->cache_tokens + config.page_size - 1) / config.page_size;
  split->gpu = memory.weights;
  split->cache = static_cast<double>(pages * config.page_size) * memory.kv_per_token;
  split->passes = memory.passes() + memory.scratch + memory.exchange + memory.states;
}

// All experts on the GPU. Flags of EPLB and streams, which one rank does not have, are for the
// division.
ExpertSplit Whole(const Machine& machine, const ModelConfig& model, EngineConfig config,
                  int64_t cache_tokens) {
  config.eplb.enable = false;
  config.eplb.rank_costs.clear();
  config.moe.stream_experts = "off";
  ExpertSplit whole{.config = config, .on_gpu = model.moe->router.num_experts};
  const EnginePlan plan = PlanOfSizes(machine, model, config);
  const int64_t requests =
      config.max_running_requests > 0 ? config.max_running_requests : kMostRunningRequests;
  whole.cache_tokens = std::min(cache_tokens, requests * plan.context_length);
  whole.gpu_budget = static_cast<double>(MemoryBudget(machine.memory, config, /*cuda=*/true));
  whole.host_budget = static_cast<double>(MemoryBudget(machine.host, config, /*cuda=*/false));
  SetGpuBytes(plan, &whole);
  return whole;
}

// "GPU: ..." and "host: ...", with the bytes of each side.
std::string DescribeGpu(const ExpertSplit& split) {
  return fmt::format(
      "GPU: {} of {} experts of each layer {:.2f} GiB, other weights {:.2f}, cache of {} tokens "
      "{:.2f}, passes and buffers {:.2f}: {:.2f} of {:.2f} GiB",
      split.on_gpu, split.on_gpu + split.on_cpus, split.gpu.experts / kGiB,
      (split.gpu.total() - split.gpu.experts) / kGiB, split.cache_tokens, split.cache / kGiB,
      split.passes / kGiB, split.gpu_total() / kGiB, split.gpu_budget / kGiB);
}

std::string DescribeHost(const ExpertSplit& split) {
  const double streams = split.host.streams;
  return fmt::format(
      "host: {} experts of each layer {:.2f} GiB, their rows and exchange buffers {:.2f}{}: {:.2f} "
      "of {:.2f} GiB",
      split.on_cpus, split.host.weights / kGiB, (split.host.rows + split.host.arena) / kGiB,
      streams > 0 ? fmt::format(", copies for --stream-experts {:.2f}", streams / kGiB) : "",
      split.host.total() / kGiB, split.host_budget / kGiB);
}

// `whole`: on an empty GPU.
std::string DescribeLack(const Machine& machine, const ExpertSplit& whole) {
  return fmt::format(
      "the model does not fit the GPU: it needs {:.2f} GiB (experts {:.2f}, other weights {:.2f}, "
      "cache of {} tokens {:.2f}, passes and buffers {:.2f}), an empty GPU has {:.2f} GiB "
      "(--mem-fraction-static {} of {:.2f} GiB, of which {:.2f} GiB are free now)",
      whole.gpu_total() / kGiB, whole.gpu.experts / kGiB,
      (whole.gpu.total() - whole.gpu.experts) / kGiB, whole.cache_tokens, whole.cache / kGiB,
      whole.passes / kGiB, whole.gpu_budget / kGiB, whole.config.mem_fraction_static,
      machine.memory.total / kGiB, machine.memory.available / kGiB);
}

// The result of `f`, or nothing if it throws Error kInvalid.
template <typename F>
std::optional<ExpertSplit> Supported(const F& f) {
  try {
    return f();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kInvalid) throw;
    return std::nullopt;
  }
}

// The error of a layout that does not fit either. `lack`: why there is a choice.
std::optional<Error> WhyItDoesNotFit(const std::string& lack, const ExpertSplit& split) {
  if (!split.fits_gpu())
    return Error(ErrorKind::kResource,
                 fmt::format("{}. With most experts on CPUs it does not fit either: {}", lack,
                             DescribeGpu(split)),
                 "lower --max-total-tokens, --chunked-prefill-size or --max-running-requests, "
                 "raise --mem-fraction-static, or use --device cpu");
  if (!split.fits_host())
    return Error(ErrorKind::kResource,
                 fmt::format("{}. The other experts do not fit the host: {}; {}", lack,
                             DescribeGpu(split), DescribeHost(split)),
                 "lower --max-total-tokens or --chunked-prefill-size, so that the GPU holds more "
                 "experts, raise --mem-fraction-static, or use a host with more memory");
  return std::nullopt;
}

bool MayChoose(const EngineConfig& config) {
  return config.device == "auto" && config.mesh.world() == 1 && config.mesh.expert_slots.empty();
}

}  // namespace

ExpertSplit SplitExperts(const Machine& machine, const ModelConfig& model,
                         const EngineConfig& given, int64_t cache_tokens) {
  const EngineConfig config = WithShortChunks(given, model);
  ExpertSplit split = Whole(machine, model, config, cache_tokens);
  if (split.fits_gpu()) {
    split.config = given;
    return split;
  }
  if (const int redundant = config.moe.num_redundant_experts; redundant > 0)
    throw Invalid(
        "--ep-num-redundant-experts {}: the numbers of experts on a GPU and on CPUs are chosen "
        "without replicas; want 0, or --device cuda,cpu with --expert-ranks and --expert-slots",
        redundant);
  split.config = WithCpuRank(config);
  const int experts = split.on_gpu;
  const auto set = [&](int on_gpu) {
    split.on_gpu = on_gpu;
    split.on_cpus = experts - on_gpu;
    split.config.mesh.expert_slots = {split.on_gpu, split.on_cpus};
  };
  if (experts < 2) throw Invalid("{} has one expert, which cannot be divided", model.architecture);
  set(1);
  // The sizes of passes and requests are equal for all numbers of experts.
  const EnginePlan sizes = PlanOfSizes(machine, model, split.config);
  int most = 1, too_many = experts;
  while (too_many - most > 1) {
    const int on_gpu = (most + too_many) / 2;
    set(on_gpu);
    SetGpuBytes(sizes, &split);
    (split.fits_gpu() ? most : too_many) = on_gpu;
  }
  set(most);
  const EnginePlan plan = PlanOfSizes(machine, model, split.config);
  SetGpuBytes(plan, &split);
  split.host = PlanHostExperts(split.config, plan);
  return split;
}

std::string FlagsOfSplit(const EngineConfig& config, const ExpertSplit& split) {
  const EngineConfig& chosen = split.config;
  if (split.on_cpus == 0) return "";
  std::string flags =
      fmt::format("--device cuda,cpu --tp-size 2 --expert-ranks 1 --expert-slots {}",
                  Joined(chosen.mesh.expert_slots, ","));
  if (config.eplb.rank_costs.empty()) flags += " --eplb-rank-costs " + chosen.eplb.rank_costs;
  if (!config.eplb.enable) flags += " --enable-eplb";
  if (config.chunked_prefill_size == 0)
    flags += fmt::format(" --chunked-prefill-size {}", chosen.chunked_prefill_size);
  if (config.max_running_requests != chosen.max_running_requests)
    flags += fmt::format(" --max-running-requests {}", chosen.max_running_requests);
  return flags;
}

CpuExpertsChoice ChooseCpuExperts(const Machine& machine, const ModelConfig& model,
                                  const EngineConfig& config) {
  CpuExpertsChoice unchanged{.config = config, .lines = {}};
  if (!MayChoose(config) || !machine.cuda || !model.has_moe()) return unchanged;
  // Other processes may use a GPU only now, so they are no reason for a slower layout.
  Machine empty = machine;
  empty.memory.available = empty.memory.total;
  const int64_t asked = config.max_total_tokens;
  EngineConfig least = config;
  if (least.chunked_prefill_size < 0 || least.chunked_prefill_size > kShortChunk)
    least.chunked_prefill_size = kShortChunk;
  if (least.max_running_requests == 0 && model.has_states()) least.max_running_requests = 1;
  least = WithShortChunks(least, model);
  const auto whole_with = [&](int64_t cache_tokens) {
    return Supported([&] { return Whole(empty, model, least, cache_tokens); });
  };
  const int64_t page = config.page_size;  // MakePlan accepts a cache of one page
  const auto whole = whole_with(asked > 0 ? std::min(asked, kSmallCache) : page);
  // MakePlan refuses what is not supported without experts on CPUs either.
  if (!whole || whole->fits_gpu()) return unchanged;
  const auto split = Supported([&] {
    return SplitExperts(machine, model, config, asked > 0 ? asked : kCacheBesideCpuExperts);
  });
  // The flags that exclude experts on CPUs are in the advice of MakePlan.
  if (!split) return unchanged;
  const std::string lack = DescribeLack(machine, *whole);
  const std::optional<Error> refusal = WhyItDoesNotFit(lack, *split);
  if (refusal) {
    const auto with_a_page = whole_with(page);
    if (with_a_page && with_a_page->fits_gpu()) return unchanged;
    throw *refusal;
  }
  static constexpr const char* kRemedy =
      "--cpu-experts off forbids this; --max-total-tokens, --mem-fraction-static, "
      "--chunked-prefill-size and --max-running-requests change what the GPU holds";
  CpuExpertsChoice choice;
  choice.config = split->config;
  choice.lines = {"experts on CPUs: " + lack, DescribeGpu(*split), DescribeHost(*split),
                  fmt::format("same as with {}; the experts with most rows move to the GPU",
                              FlagsOfSplit(config, *split)),
                  kRemedy};
  return choice;
}

CpuExpertsChoice ChooseCpuExpertsHere(const EngineConfig& config) {
  if (!MayChoose(config)) return {.config = config, .lines = {}};
  Machine machine = ThisMachine(config, 1);
  if (!machine.cuda) return {.config = config, .lines = {}};
  machine.host = ReadHostMemory();
  return ChooseCpuExperts(machine, ReadModelConfig(config), config);
}

}  // namespace switchyard
