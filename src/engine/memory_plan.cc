#include "engine/memory_plan.h"

#include <algorithm>
#include <vector>

#include "core/format.h"
#include "core/gguf_files.h"
#include "engine/kv_cache/state_slots.h"
#include "engine/pipeline/stage_links.h"
#include "engine/rank_engine.h"
#include "engine/speculative/draft_model.h"
#include "eplb/manager.h"
#include "model/weights/source.h"
#include "moe/placement/placement.h"

namespace switchyard {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;

// Adds the memory of a draft model to that of its target.
void Add(const RankMemory& draft, RankMemory* memory) {
  WeightBytes& w = memory->weights;
  w.embedding += draft.weights.embedding;
  w.attention += draft.weights.attention;
  w.dense += draft.weights.dense;
  w.router += draft.weights.router;
  w.experts += draft.weights.experts;
  w.shared += draft.weights.shared;
  w.norms += draft.weights.norms;
  w.head += draft.weights.head;
  memory->kv_per_token += draft.kv_per_token;
  memory->activations += draft.activations;
  memory->moe += draft.moe;
  memory->logits += draft.logits;
  memory->tables += draft.tables;
  memory->scratch += draft.scratch;  // a draft model has a device of its own
  memory->exchange += draft.exchange;
}

std::string DescribeStates(const EngineConfig& config, const RankMemory& memory,
                           const EnginePlan& plan) {
  if (plan.num_states == 0) return "";
  const double slot = memory.states / kMiB / static_cast<double>(plan.num_states);
  const int64_t own = StateSlots::ForEach(plan.drafts.most);
  const bool sends = config.disaggregated(), caches = !config.disable_radix_cache;
  const char* const others = sends && caches
                                 ? ", the others for prompts in transfer and cached prefixes"
                             : sends  ? ", the others for prompts in transfer"
                             : caches ? ", the others for cached prefixes"
                                      : "";
  return fmt::format(
      "recurrent states {:.1f} ({} slots of {:.2f}, {} for each running request: {:.2f}{}), ",
      memory.states / kMiB, plan.num_states, slot, own, static_cast<double>(own) * slot, others);
}

}  // namespace

RankMemory PlanRankMemory(const EngineConfig& config, const EnginePlan& plan) {
  const ModelConfig& model = plan.model;
  int64_t logit_rows = plan.max_running_requests + std::max(1, plan.state_chunk());
  // Logit rows of prompts: for prompt logprobs, which are counted on GPUs only, or for mean
  // pooling.
  if (plan.cuda || (model.pooling && model.pooling->type == Pooling::kMean))
    logit_rows =
        std::max(logit_rows, std::min(MaxLogitRows(model.output_width()), plan.max_batch_tokens));
  if (plan.drafts.most > 0)
    logit_rows =
        std::max(logit_rows, std::min(MaxLogitRows(model.output_width()),
                                      int64_t{plan.max_running_requests} * plan.drafts.rows()));
  const RankMemoryShape shape{
      .logit_rows = logit_rows, .kv_dtype = plan.kv_dtype, .states = plan.num_states};
  const ModelOptions options = MakeModelOptions(config, plan);
  RankMemory memory = MemoryOfRank(model, options, config.mesh, shape);
  if (plan.draft) {
    RankMemoryShape of_draft = shape;  // a level of a tree has logits of all its rows
    of_draft.logit_rows =
        std::max(logit_rows, int64_t{plan.max_running_requests} * plan.drafts.width);
    Add(MemoryOfRank(*plan.draft, MakeDraftOptions(options, plan.draft_experts), config.mesh,
                     of_draft),
        &memory);
    if (plan.draft->takes_hidden()) {  // hidden rows of the target and of the draft layer
      const int64_t width = plan.draft->target_row_width() + plan.draft->hidden_row_width();
      memory.activations += static_cast<double>(plan.max_batch_tokens * width) * sizeof(float);
    }
  }
  if (!plan.cuda)  // on GPUs, the rows of stages are part of GpuBytesPerRank
    memory.exchange +=
        static_cast<double>(StageLinks::BytesPerRank(StageLinkSizesOf(config, plan)));
  if (config.eplb.enable && !plan.cuda)
    memory.exchange += static_cast<double>(EplbManager::BytesPerRank(config.mesh));
  return memory;
}

double WeightsOfRanks(const EngineConfig& config, const EnginePlan& plan, const RankMemory& rank,
                      int count) {
  const MeshShape& mesh = config.mesh;
  const bool equal = mesh.expert_ranks == 0 && mesh.expert_slots.empty();
  if (equal || plan.host_experts) return rank.weights.total() * count;
  const ModelOptions options = MakeModelOptions(config, plan);
  double bytes = 0;
  for (int i = 0; i < mesh.tp; ++i)
    bytes += static_cast<double>(WeightBytesPerRank(plan.model, options, Mesh(mesh, i)));
  return bytes;
}

bool CopiesWeights(const EngineConfig& config, const EnginePlan& plan) {
  const std::string& method = plan.model.quantization.method;
  return plan.cuda || config.load_format == "dummy" || !config.quantization.method.empty() ||
         !config.quantization.rules.empty() || method == "gptq" || method == "awq" ||
         PacksStoredWeights(plan.model.quantization) ||
         (!method.empty() && FindGguf(config.model_path));
}

int64_t MemoryBudget(const HostMemory& memory, const EngineConfig& config, bool cuda) {
  const auto share =
      static_cast<int64_t>(static_cast<double>(memory.total) * config.mem_fraction_static);
  if (!cuda) return std::min(memory.available, share);
  // A former spare leaves the GPUs of other ranks after its first epoch, when other spares run.
  const int64_t spares = config.spare_ranks * (config.mesh.world() > 1 ? 2 : 1);
  const int64_t contexts = spares + (config.disaggregated() ? 1 : 0);
  return memory.available - (memory.total - share) - contexts * kGpuContextBytes;
}

HostExpertBytes PlanHostExperts(const EngineConfig& config, const EnginePlan& plan) {
  const MeshShape& mesh = config.mesh;
  HostExpertBytes bytes;
  for (int rank = mesh.token_ranks(); rank < mesh.tp; ++rank)
    bytes.weights += static_cast<double>(WeightBytesPerRank(
        plan.ModelOf(mesh, rank), MakeModelOptions(config, plan, rank), Mesh(mesh, rank)));
  const RankMemory of_rank = MemoryOfRank(plan.ModelOf(mesh, mesh.tp - 1),
                                          MakeModelOptions(config, plan, mesh.tp - 1), mesh, {});
  bytes.rows = of_rank.moe * mesh.expert_ranks;
  bytes.arena = static_cast<double>(plan.symmetric_bytes_per_rank) * mesh.tp;
  const ModelOptions of_gpu = MakeModelOptions(config, plan, 0);
  if (of_gpu.moe.stream_tokens > 0) {
    const int num_experts = plan.model.moe->router.num_experts;
    const double held = MemoryOfRank(plan.model, of_gpu, mesh, {}).weights.experts;
    const Range slots =
        ExpertsOfRank(num_experts + config.moe.num_redundant_experts, Mesh(mesh, 0));
    bytes.streams = held / static_cast<double>(slots.size()) * num_experts;
  }
  return bytes;
}

std::string DescribeMemory(const EngineConfig& config, const EnginePlan& plan) {
  const RankMemory memory = PlanRankMemory(config, plan);
  const auto cache = static_cast<double>(plan.kv_bytes_per_rank);
  std::vector<std::string> modules;
  for (const auto& [name, bytes] : memory.weights.Parts())
    if (bytes > 0) modules.push_back(fmt::format("{} {:.1f}", name, bytes / kMiB));
  return fmt::format(
      "memory of a rank in full use: {:.1f} MiB: weights {:.1f} ({}), cache {:.1f}, {}activations "
      "{:.1f}, experts' rows {:.1f}, logits {:.1f}, rope table {:.1f}, {}exchange buffers {:.1f}",
      (memory.fixed() + cache) / kMiB, memory.weights.total() / kMiB, Joined(modules, ", "),
      cache / kMiB, DescribeStates(config, memory, plan), memory.activations / kMiB,
      memory.moe / kMiB, memory.logits / kMiB, memory.tables / kMiB,
      plan.cuda ? fmt::format("scratch of kernels {:.1f}, ", memory.scratch / kMiB) : "",
      memory.exchange / kMiB);
}

}  // namespace switchyard
