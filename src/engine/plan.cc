// MakePlan: derives sizes from flags, config.json and this machine.
#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "core/cpus.h"
#include "core/error.h"
#include "core/log.h"
#include "engine/active_layout.h"
#include "engine/checks/checks.h"
#include "engine/config.h"
#include "engine/cpu_binding.h"
#include "engine/gpu_memory.h"
#include "engine/host_memory.h"
#include "engine/kv_cache/state_slots.h"
#include "engine/load_wait.h"
#include "engine/machine.h"
#include "engine/memory_plan.h"
#include "engine/pipeline/stage_links.h"
#include "engine/rank_engine.h"
#include "engine/speculative/draft_model.h"
#include "eplb/manager.h"
#include "model/weights/source.h"
#include "moe/rows.h"

namespace switchyard {

namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
// Default cache size of a host without --max-total-tokens: a larger cache only delays startup.
constexpr int64_t kDefaultKvBytes = int64_t{8} << 30;
constexpr int32_t kDefaultRunningRequests = 256;  // over all attention groups
constexpr int32_t kDefaultChunk = 2048;           // over all attention groups

// The type that a flag selects. `automatic`: for "auto".
DType Chosen(const std::string& value, DType automatic) {
  return value == "auto" ? automatic : ParseDType(value).value();
}

// One attention group's share of a total over all groups.
int32_t PerGroup(int32_t total, int dp) { return std::max(1, total / dp); }

int64_t MaxBatchTokens(const EngineConfig& config, const EnginePlan& plan) {
  return MaxPromptRows(plan.chunked_prefill_size, config.max_prefill_tokens, plan.context_length) +
         plan.max_running_requests * plan.drafts.rows();
}

// The number of ranks that share a GPU, and thus its memory (--gpu-id-step 0).
int64_t RanksOfGpu(const EngineConfig& config, const EnginePlan& plan) {
  return config.gpu_id_step == 0 ? GpuRanksOfHost(config, plan.ranks_of_host) : 1;
}

// Of `count` ranks of a stage that share memory, those with attention. A GPU has no others.
int AttendingOf(const EngineConfig& config, const EnginePlan& plan, int count) {
  return plan.host_experts ? count : count - config.mesh.expert_ranks;
}

// Sets the prefill chunk, and from it the maximum rows of a pass.
void SetChunk(int32_t chunk, const EngineConfig& config, EnginePlan& plan) {
  plan.chunked_prefill_size = chunk < 0 ? -1 : PerGroup(chunk, config.mesh.attention_groups());
  plan.max_batch_tokens = MaxBatchTokens(config, plan);
}

// A rank's share of its GPU's memory.
HostMemory GpuMemory(const EngineConfig& config, const EnginePlan& plan) {
  const GpuInfo gpu = SmallestGpu(config, plan.ranks_of_host);
  const int64_t sharing = RanksOfGpu(config, plan);
  return {.total = gpu.total_bytes / sharing, .available = gpu.free_bytes / sharing};
}

// Bytes that activations and exchange of a rank on a GPU may take by default: a sixth of what
// weights and an explicitly requested cache leave.
double MaxPassBytes(const Machine& machine, const EngineConfig& config, double weights,
                    double page_bytes) {
  const double room = static_cast<double>(MemoryBudget(machine.memory, config, true)) - weights;
  const double pages = std::ceil(static_cast<double>(config.max_total_tokens) / config.page_size);
  return std::min(room / 6, room - pages * page_bytes);
}

// The memory of the first rank of each pipeline stage.
std::vector<RankMemory> StageMemories(const EngineConfig& config, const EnginePlan& plan) {
  std::vector<RankMemory> memories;
  memories.reserve(config.mesh.pp);
  for (int stage = 0; stage < config.mesh.pp; ++stage)
    memories.push_back(PlanRankMemory(config, StagePlanOf(config, plan, stage)));
  return memories;
}

void ChooseChunk(const Machine& machine, const EngineConfig& config, EnginePlan& plan) {
  SetChunk(config.chunked_prefill_size == 0 ? kDefaultChunk : config.chunked_prefill_size, config,
           plan);
  if (config.chunked_prefill_size != 0 || !plan.cuda) return;
  double weights = 0, page_bytes = 0;
  for (const RankMemory& stage : StageMemories(config, plan)) {
    weights = std::max(weights, stage.weights.total());
    page_bytes = std::max(page_bytes, stage.kv_per_token * config.page_size);
  }
  const auto bytes_of = [&](int32_t chunk) {
    SetChunk(chunk, config, plan);
    try {
      double most = 0;
      for (const RankMemory& stage : StageMemories(config, plan))
        most = std::max(most, stage.passes() + stage.exchange);
      return most;
    } catch (const Error&) {  // the rows need more rounds than the exchange allows
      return std::numeric_limits<double>::infinity();
    }
  };
  SetChunk(DefaultGpuChunk(MaxPassBytes(machine, config, weights, page_bytes), bytes_of), config,
           plan);
}

// For each host, the number of its ranks in each pipeline stage. Consecutive ranks share a host. On
// GPUs, whose memory ranks do not share: one rank of each stage.
std::vector<std::vector<int>> RanksOfHosts(const EngineConfig& config, const EnginePlan& plan) {
  std::vector<std::vector<int>> hosts;
  if (plan.cuda) {
    for (int stage = 0; stage < config.mesh.pp; ++stage)
      hosts.emplace_back(config.mesh.pp, 0)[stage] = 1;
    return hosts;
  }
  for (int rank = 0; rank < config.mesh.world(); ++rank) {
    if (rank % plan.ranks_of_host == 0) hosts.emplace_back(config.mesh.pp, 0);
    ++hosts.back()[rank / config.mesh.tp];
  }
  return hosts;
}

// Required bytes. On CPUs: of all ranks of a host. On GPUs: of one rank.
struct Need {
  double weights = 0, states = 0, activations = 0, symmetric = 0;
  double fixed() const { return weights + states + activations + symmetric; }
};

// `stages`: the memory of a rank of each pipeline stage. `counts`: the number of ranks of each
// stage. Ranks with experts only have rows of experts, but no cache and no other rows of a pass.
Need FixedNeed(const EngineConfig& config, const EnginePlan& plan,
               std::span<const RankMemory> stages, std::span<const int> counts) {
  Need need;
  int ranks = 0;
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    const RankMemory& rank = stages[stage];
    const int attending = AttendingOf(config, plan, counts[stage]);
    need.weights += WeightsOfRanks(config, plan, rank, counts[stage]);
    need.states += rank.states * attending;
    need.activations +=
        (rank.passes() + rank.scratch) * attending + rank.moe * (counts[stage] - attending);
    need.symmetric += rank.exchange * counts[stage];
    ranks += counts[stage];
  }
  // Without a rank, the others load its experts, while its new process loads all of its weights.
  if (config.elastic_ep_backend != "none" && CopiesWeights(config, plan))
    need.weights += stages[0].weights.experts;
  // Spares hold what all ranks hold equally: at most the weights without experts, or with one rank
  // all weights.
  if (CopiesWeights(config, plan))
    need.weights += config.spare_ranks *
                    (stages[0].weights.total() - (ranks > 1 ? stages[0].weights.experts : 0));
  // Ranks map the checkpoint's files, so weights that several ranks read are in memory once.
  if (!CopiesWeights(config, plan)) {
    auto bytes = static_cast<double>(WeightBytesPerRank(plan.model, Mesh()));
    if (plan.draft) {
      const QuantizationConfig& q = plan.draft->quantization;
      const auto is_packed = [](const SchemeRule& rule) {
        return rule.scheme.packing == Packing::kWhileLoading;
      };
      const bool packs = std::ranges::any_of(q.rules, is_packed) ||
                         std::ranges::any_of(q.chosen, is_packed) || !q.stored.empty() ||
                         PacksStoredWeights(q);
      bytes += static_cast<double>(WeightBytesPerRank(*plan.draft, Mesh())) * (packs ? ranks : 1);
    }
    need.weights = std::min(need.weights, bytes);
  }
  return need;
}

// Slots of recurrent states (StateSlots::TotalFor). Without --max-running-requests, they take at
// most a quarter of the memory that weights and passes leave, unless there are few requests. On
// GPUs: of the memory of one.
void ChooseStates(const Machine& machine, const EngineConfig& config, EnginePlan& plan) {
  if (!plan.model.has_states()) return;
  if (config.max_running_requests == 0) {
    const std::vector<RankMemory> stages = StageMemories(config, plan);
    const int64_t slots = StateSlots::ForEach(plan.drafts.most) + (config.disaggregated() ? 1 : 0);
    const auto of_request = static_cast<double>(config.disable_radix_cache ? slots : slots + 2);
    auto most = static_cast<double>(plan.max_running_requests);
    for (const std::vector<int>& counts : RanksOfHosts(config, plan)) {
      const double room = static_cast<double>(MemoryBudget(machine.memory, config, plan.cuda)) -
                          FixedNeed(config, plan, stages, counts).fixed();
      double request = 0;
      for (int stage = 0; stage < config.mesh.pp; ++stage)
        request += of_request * counts[stage] *
                   static_cast<double>(StateStorage::BytesPerSlot(
                       StagePlanOf(config, plan, stage).model, Mesh(config.mesh, 0)));
      if (request > 0) most = std::min(most, room / 4 / request);
    }
    plan.max_running_requests = static_cast<int32_t>(std::max(1.0, most));
    plan.max_batch_tokens = MaxBatchTokens(config, plan);
  }
  plan.num_states = StateSlots::TotalFor(plan.max_running_requests, !config.disable_radix_cache,
                                         plan.drafts.most, plan.held_states(config));
}

[[noreturn]] void ThrowTooLittleMemory(const EngineConfig& config, const HostMemory& memory,
                                       const Need& need, int64_t kv_bytes, int64_t budget,
                                       const std::string& hint) {
  throw Error(
      ErrorKind::kResource,
      fmt::format(
          "not enough memory: needed {:.2f} GiB (weights {:.2f}, cache {:.2f}, {}activations "
          "{:.2f}, exchange buffers {:.2f}), available {:.2f} GiB "
          "(--mem-fraction-static {} of {:.2f} GiB, of which {:.2f} GiB are free now)",
          (need.fixed() + kv_bytes) / kGiB, need.weights / kGiB, kv_bytes / kGiB,
          need.states > 0 ? fmt::format("recurrent states {:.2f}, ", need.states / kGiB)
                          : std::string(),
          need.activations / kGiB, need.symmetric / kGiB, budget / kGiB, config.mem_fraction_static,
          memory.total / kGiB, memory.available / kGiB),
      need.states > 0 ? "lower --max-running-requests, " + hint : hint);
}

// The memory for the pages and everything else: the memory of the host for all its ranks, or a
// rank's share of its GPU's memory.
struct PageMemory {
  HostMemory memory;
  Need need;
  int64_t bytes_per_page = 0;
  int64_t default_bytes = 0;  // size of the cache without --max-total-tokens
};

// Of the host, or GPU, that has `counts` ranks of each stage.
PageMemory PageMemoryOf(const Machine& machine, const EngineConfig& config, const EnginePlan& plan,
                        std::span<const RankMemory> stages, std::span<const int> counts) {
  int64_t page_bytes = 0;
  for (size_t stage = 0; stage < stages.size(); ++stage)
    page_bytes += static_cast<int64_t>(stages[stage].kv_per_token) * config.page_size *
                  AttendingOf(config, plan, counts[stage]);
  return {.memory = machine.memory,
          .need = FixedNeed(config, plan, stages, counts),
          // A stage may have layers with recurrent states only.
          .bytes_per_page = std::max<int64_t>(1, page_bytes),
          .default_bytes =
              plan.cuda ? machine.memory.total * RanksOfGpu(config, plan) : kDefaultKvBytes};
}

// For a GPU that is too small.
std::string AdviceOnExperts(const EngineConfig& config, const EnginePlan& plan) {
  if (!plan.cuda || !plan.model.has_moe()) return "";
  if (plan.host_experts) return "give the GPU fewer experts (--expert-slots), ";
  const std::string flags = Joined(FlagsAgainstHostExperts(config), " and ");
  return fmt::format("put experts on CPUs (--device cuda,cpu{}), ",
                     flags.empty() ? "" : " without " + flags);
}

std::string AdviceOnDrafts(const EngineConfig& config, const EnginePlan& plan) {
  if (!plan.draft) return "";
  return fmt::format(
      "leave out --speculative-algorithm {} (the weights of the draft model are counted too), ",
      config.speculative.algorithm);
}

int64_t ChoosePages(const EngineConfig& config, const EnginePlan& plan, const PageMemory& where) {
  const HostMemory& memory = where.memory;
  const Need& need = where.need;
  const int64_t bytes_per_page = where.bytes_per_page;
  const int64_t budget = MemoryBudget(memory, config, plan.cuda);
  // Limited to -1, because all negative values mean that nothing is left.
  const auto left =
      static_cast<int64_t>(std::max(static_cast<double>(budget) - need.fixed(), -1.0));
  // What helps if not even one page fits.
  const std::string for_a_page = "raise --mem-fraction-static, lower --chunked-prefill-size, " +
                                 AdviceOnExperts(config, plan) + AdviceOnDrafts(config, plan) +
                                 "or take a smaller model";
  if (config.max_total_tokens > 0) {
    const int64_t pages = (config.max_total_tokens - 1) / config.page_size + 1;
    // Compares before it multiplies, because the flag may have an absurd value.
    if (pages > left / bytes_per_page || left < 0)
      ThrowTooLittleMemory(config, memory, need, pages * bytes_per_page, budget,
                           left < bytes_per_page
                               ? "lower --max-total-tokens, " + for_a_page
                               : "lower --max-total-tokens or raise --mem-fraction-static");
    return pages;
  }
  // Pages beyond a full context for every running request would never be used.
  const int64_t useful =
      plan.max_running_requests * ((plan.context_length + config.page_size - 1) / config.page_size);
  const int64_t pages = std::min({left / bytes_per_page, useful,
                                  std::max<int64_t>(1, where.default_bytes / bytes_per_page),
                                  int64_t{std::numeric_limits<int32_t>::max()} / config.page_size});
  if (left < bytes_per_page)
    ThrowTooLittleMemory(config, memory, need, bytes_per_page, budget, for_a_page);
  return pages;
}

}  // namespace

int32_t DefaultGpuChunk(double most_bytes, const std::function<double(int32_t)>& bytes_of) {
  for (const int32_t chunk : {8192, 4096}) {
    if (bytes_of(chunk) <= most_bytes) return chunk;
  }
  return kDefaultChunk;
}

Machine ThisMachine(const EngineConfig& config, int ranks_of_host) {
  Machine machine{.cuda = ChooseGpus(config, ranks_of_host), .cpus = AllowedCpuCount()};
  if (config.host_experts()) machine.host = ReadHostMemory();
  EnginePlan places;
  places.ranks_of_host = ranks_of_host;
  machine.hopper = machine.cuda && SmallestGpu(config, ranks_of_host).hopper;
  machine.memory = machine.cuda ? GpuMemory(config, places) : ReadHostMemory();
  return machine;
}

namespace {

// The host must hold the experts of its ranks on CPUs, their rows, and the arena of all ranks.
void CheckHostExperts(const Machine& machine, const EngineConfig& config, const EnginePlan& plan) {
  if (!plan.host_experts) return;
  const HostExpertBytes need = PlanHostExperts(config, plan);
  const auto budget = static_cast<double>(MemoryBudget(machine.host, config, /*cuda=*/false));
  if (need.total() <= budget) return;
  throw Error(
      ErrorKind::kResource,
      fmt::format("not enough memory of the host for experts on CPUs: needed {:.2f} GiB (weights "
                  "{:.2f}, experts' rows {:.2f}, exchange buffers {:.2f}, copies for "
                  "--stream-experts {:.2f}), available {:.2f} GiB "
                  "(--mem-fraction-static {} of {:.2f} GiB, of which {:.2f} GiB are free now)",
                  need.total() / kGiB, need.weights / kGiB, need.rows / kGiB, need.arena / kGiB,
                  need.streams / kGiB, budget / kGiB, config.mem_fraction_static,
                  machine.host.total / kGiB, machine.host.available / kGiB),
      std::string(need.streams > 0 ? "leave out --stream-experts, " : "") +
          "give the GPU more experts (--expert-slots), lower --chunked-prefill-size, or raise "
          "--mem-fraction-static");
}

// Threads of a rank on CPUs: an equal part of the CPUs. One CPU is left to the host thread of each
// GPU if there is a second one.
int ThreadsPerRank(const Machine& machine, const EngineConfig& config, const EnginePlan& plan) {
  if (!plan.host_experts) return std::max(1, machine.cpus / plan.ranks_of_host);
  return std::max(1, (machine.cpus - config.mesh.token_ranks()) / config.mesh.expert_ranks);
}

// Whether the rows of every linear of a layer are rounded by default, to bfloat16 or int8 groups.
bool RoundsAllRows(const QuantizationConfig& quantization) {
  if (!quantization.bfloat16_rows) return false;
  const auto is_rounded = [&](const LinearScheme& scheme) {
    const bool fp8 =
        (scheme.format == WeightFormat::kFp8Block || scheme.format == WeightFormat::kFp8Channel) &&
        scheme.activation == ActivationFormat::kNone;
    return scheme.packing == Packing::kPlain || (fp8 && quantization.fp8_bfloat16_rows) ||
           (TakesInt8Groups(scheme.format) && !scheme.act_order && quantization.int8_group_rows);
  };
  const auto rounded = [&](const SchemeRule& rule) { return is_rounded(rule.scheme); };
  const auto of_layers = [](const SchemeRule& rule) {
    return !std::ranges::all_of(rule.targets, [](const ModulePattern& target) {
      return target.text == "lm_head" || target.text == "embed_tokens";
    });
  };
  return std::ranges::all_of(quantization.rules, rounded) &&
         std::ranges::all_of(quantization.stored,
                             [&](const auto& linear) {
                               return linear.first == "lm_head" || is_rounded(linear.second);
                             }) &&
         std::ranges::all_of(quantization.chosen, [&](const SchemeRule& rule) {
           return rounded(rule) || !of_layers(rule);
         });
}

// The numbers of all branches of a pass are copied to a GPU at once, in a segment of pinned memory.
void CheckBranches(const EnginePlan& plan) {
  constexpr int64_t kMostBranches = 1 << 18;
  const int64_t rows = plan.drafts.rows();
  if (!plan.cuda || !plan.drafts.trees() || plan.max_running_requests * rows <= kMostBranches)
    return;
  throw Invalid(
      "--max-running-requests {}: on GPUs, at most {} requests of a group can have trees of {} "
      "rows "
      "(--speculative-num-draft-tokens)",
      plan.max_running_requests, kMostBranches / rows, rows);
}

}  // namespace

EnginePlan MakePlanOn(const Machine& machine, const ModelConfig& model, const EngineConfig& config,
                      int ranks_of_host) {
  CheckFlags(config);
  EnginePlan plan;
  plan.ranks_of_host = ranks_of_host;
  plan.cuda = machine.cuda;
  plan.host_experts = machine.cuda && config.host_experts();
  plan.model = model;
  if (plan.cuda) {
    plan.host_int8_rows = model.quantization.int8_group_rows;
    plan.host_bfloat16_rows = model.quantization.fp8_bfloat16_rows;
    plan.model.quantization.int8_group_rows = false;
    plan.model.quantization.fp8_bfloat16_rows = false;
  }
  const RankPlaces places = {.gpus = plan.cuda,
                             .host_experts = plan.host_experts,
                             .several_hosts = ranks_of_host < config.mesh.world(),
                             .shared_memory = machine.shared_memory};
  CheckOptions(config, plan, places);
  plan.draft = ReadDraftConfig(config, plan.model, plan.cuda);
  CheckDraft(config, plan.draft, places);
  plan.drafts = DraftLimitsOf(config, plan.draft);
  // GPUs launch steps ahead, before the drafts are known; a pooled model generates nothing.
  // With recurrent states, each draft would need a slot in all passes of all requests. Nor are
  // drafts forced with compressed attention, whose layers usually have such states.
  if (!plan.cuda && !model.pooling && !config.disable_jump_forward && config.mesh.pp == 1 &&
      !model.has_states() && model.attention.kind != AttentionConfig::Kind::kCompressed)
    plan.max_forced = kMostForcedDrafts;
  plan.stages = StagesOf(config, plan.model);
  plan.dtype = Chosen(config.dtype, IsRowDType(plan.model.dtype) ? plan.model.dtype : DType::kBF16);
  // A GPU sends rows of float16 models as bfloat16, and ranks on CPUs must expect these.
  if (plan.host_experts && plan.dtype == DType::kF16) plan.dtype = DType::kBF16;
  // A bfloat16 cache has the precision of the matrix products at half the size of float32. On CPUs,
  // 8-bit weights have float32 rows, so the cache stays float32.
  const bool rounds =
      plan.dtype != DType::kF32 && (plan.cuda || RoundsAllRows(plan.model.quantization));
  plan.kv_dtype = Chosen(config.kv_cache_dtype, rounds ? DType::kBF16 : DType::kF32);
  plan.context_length =
      config.context_length != 0 ? config.context_length : plan.model.max_position;
  plan.max_running_requests =
      PerGroup(config.max_running_requests ? config.max_running_requests : kDefaultRunningRequests,
               config.mesh.attention_groups());
  CheckBranches(plan);
  plan.packs_experts = plan.cuda && machine.hopper;
  ChooseChunk(machine, config, plan);
  ChooseStates(machine, config, plan);
  ParseCpuBind(config.cpu_bind, config.threads_per_rank, plan.ranks_of_host);
  plan.threads_per_rank =
      config.threads_per_rank ? config.threads_per_rank : ThreadsPerRank(machine, config, plan);

  const std::vector<RankMemory> stages = StageMemories(config, plan);
  const ModelOptions options = MakeModelOptions(config, plan);
  // The arena has buffers of rows if any rank computes on CPUs, such as the last one.
  const ModelOptions of_arena = MakeModelOptions(config, plan, config.mesh.tp - 1);
  double kv_per_token = 0;
  for (int stage = 0; stage < config.mesh.pp; ++stage) {
    const RankMemory& memory = stages[stage];
    const ModelConfig model_of_stage = StagePlanOf(config, plan, stage).model;
    kv_per_token = std::max(kv_per_token, memory.kv_per_token);
    plan.weight_bytes_per_rank = std::max(
        plan.weight_bytes_per_rank, static_cast<size_t>(std::llround(memory.weights.total())));
    plan.symmetric_bytes_per_rank =
        std::max(plan.symmetric_bytes_per_rank,
                 SymmetricBytesPerRank(model_of_stage, of_arena, config.mesh));
  }
  // Of unequal ranks, the largest one.
  if (config.mesh.expert_ranks > 0 || !config.mesh.expert_slots.empty())
    for (int rank = 0; rank < config.mesh.tp; ++rank)
      plan.weight_bytes_per_rank = std::max(
          plan.weight_bytes_per_rank,
          WeightBytesPerRank(plan.ModelOf(config.mesh, rank), MakeModelOptions(config, plan, rank),
                             Mesh(config.mesh, rank)));
  plan.symmetric_bytes_per_rank += StageLinks::BytesPerRank(StageLinkSizesOf(config, plan)) +
                                   LoadWait::BytesPerRank(config, plan);
  if (plan.draft)
    plan.symmetric_bytes_per_rank +=
        SymmetricBytesPerRank(*plan.draft, MakeDraftOptions(options), config.mesh);
  if (config.eplb.enable) plan.symmetric_bytes_per_rank += EplbManager::BytesPerRank(config.mesh);
  if (config.elastic_ep_backend != "none")
    plan.symmetric_bytes_per_rank =
        std::max(plan.symmetric_bytes_per_rank, SymmetricBytesWithoutARank(config, plan));
  CheckHostExperts(machine, config, plan);
  plan.num_pages = std::numeric_limits<int64_t>::max();
  for (const std::vector<int>& counts : RanksOfHosts(config, plan))
    plan.num_pages =
        std::min(plan.num_pages,
                 ChoosePages(config, plan, PageMemoryOf(machine, config, plan, stages, counts)));
  plan.kv_bytes_per_rank =
      static_cast<size_t>(plan.num_pages * config.page_size) * static_cast<size_t>(kv_per_token);
  if (config.max_running_requests == 0)  // each request holds at least one page
    plan.max_running_requests =
        static_cast<int32_t>(std::min<int64_t>(plan.max_running_requests, plan.num_pages));
  return plan;
}

EnginePlan MakePlanHere(const EngineConfig& config, int ranks_of_host, bool shared_memory) {
  CheckFlags(config);
  const int ranks = ranks_of_host > 0 ? ranks_of_host : config.mesh.world();
  Machine machine = ThisMachine(config, ranks);
  machine.shared_memory = shared_memory;
  EnginePlan plan = MakePlanOn(machine, ReadModelConfig(config), config, ranks);
  if (!plan.cuda || plan.host_experts) CheckBackends(config, plan);
  if (plan.num_pages * config.page_size < plan.context_length)
    LOG_WARNING("the cache holds {} tokens, less than the context of {}: longer requests end early",
                plan.num_pages * config.page_size, plan.context_length);
  return plan;
}

EnginePlan MakePlan(const EngineConfig& config, int ranks_of_host) {
  return MakePlanHere(config, ranks_of_host, /*shared_memory=*/true);
}

}  // namespace switchyard
