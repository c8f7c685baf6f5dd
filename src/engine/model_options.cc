// ReadModelConfig and MakeModelOptions: what the model needs of the engine's flags and plan.
#include <algorithm>
#include <string>

#include "core/duration.h"
#include "core/error.h"
#include "core/format.h"
#include "core/gguf_files.h"
#include "engine/config.h"
#include "engine/expert_services.h"
#include "engine/memory_plan.h"
#include "engine/pipeline/stage_links.h"
#include "eplb/manager.h"
#include "kernels/ops.h"
#include "model/complete_options.h"
#include "model/weights.h"
#include "moe/stream_experts.h"

namespace switchyard {

ModelConfig ReadModelConfig(const EngineConfig& config) {
  ModelConfig model = LoadModelConfig(config.model_path, config.model_override_args,
                                      config.quantization, config.pooling);
  // Rows are not rounded if a flag requests a more exact type.
  const bool may_round = config.quantization.activations == "auto" &&
                         (config.dtype == "auto" || config.dtype == "bfloat16");
  if (may_round && kernels::HasBFloat16Products(kernels::IsaOf(config.cpu_isa)))
    model.quantization.bfloat16_rows = true;
  if (may_round && kernels::HasFourBitProducts(kernels::IsaOf(config.cpu_isa)))
    model.quantization.int8_group_rows = true;
  model.quantization.fp8_bfloat16_rows =
      may_round && kernels::HasFp8Products(kernels::IsaOf(config.cpu_isa));
  model.quantization.cache_scales = ParseDType(config.kv_cache_dtype) == DType::kF8E4M3;
  if (model.quantization.cache_scales && !model.quantization.other_cache.empty())
    throw Invalid(
        "--kv-cache-dtype fp8_e4m3: {}; want scales for float of 8 bits, or --kv-cache-dtype auto",
        model.quantization.other_cache);
  const bool takes_over = config.elastic_ep_backend != "none" || config.spare_ranks > 0;
  // Weights of GGUF files are packed in any case.
  if (config.quantization.layout == "auto" && takes_over && !FindGguf(config.model_path))
    model.quantization.stored_layout = true;
  return model;
}

namespace {

Observed ObservedBy(const EngineConfig& config) {
  if (config.recorder.mode == "per_token") return Observed::kTokens;
  return config.recorder.any() || config.eplb.enable ? Observed::kCounts : Observed::kNothing;
}

// The planner that computes the initial placement from a recorded distribution.
std::string InitialPlanner(const EngineConfig& config, const EnginePlan& plan) {
  if (!plan.model.has_moe()) return config.eplb.algorithm;
  const RankTopology topology{
      .ranks = config.mesh.ep, .slots = config.mesh.expert_slots, .costs = RankCostsOf(config)};
  return PlannerFor(config.eplb,
                    plan.model.moe->router.num_experts + config.moe.num_redundant_experts,
                    config.mesh.ep, topology.EqualRanks());
}

// Each of two micro-batches reads the weights of the experts. On a GPU the second read takes as
// much time as the products, unless each expert has many rows.
int64_t MinTokensOfTwoBatches(const EngineConfig& config, const EnginePlan& plan) {
  constexpr int64_t kRowsPerExpert = 256;
  if (config.tbo_min_tokens >= 0) return config.tbo_min_tokens;
  if (!plan.cuda || !plan.model.moe) return 2;
  const RouterConfig& router = plan.model.moe->router;
  return 2 * kRowsPerExpert * router.num_experts / router.top_k;
}

}  // namespace

ModelConfig EnginePlan::ModelOf(const MeshShape& mesh, int rank) const {
  ModelConfig of_rank = model;
  if (host_experts && !OnGpu(mesh, rank)) {
    of_rank.quantization.int8_group_rows = host_int8_rows;
    of_rank.quantization.fp8_bfloat16_rows = host_bfloat16_rows;
  }
  return of_rank;
}

namespace {

// MakeModelOptions without the number of tokens from which on passes stream experts.
ModelOptions OptionsWithoutStreams(const EngineConfig& config, const EnginePlan& plan, int rank) {
  ModelOptions options{.dtype = plan.dtype,
                       .max_tokens = plan.max_batch_tokens,
                       .context_length = plan.context_length,
                       .moe = config.moe,
                       .backends = config.backends,
                       .observed = ObservedBy(config),
                       .movable_experts = config.eplb.enable,
                       .movable_layers = config.eplb.layers_per_chunk,
                       .two_batch_overlap = config.two_batch_overlap,
                       .tbo_threshold = config.tbo_threshold,
                       .tbo_min_tokens = MinTokensOfTwoBatches(config, plan),
                       .eplb_algorithm = InitialPlanner(config, plan),
                       .rank_costs = RankCostsOf(config),
                       .page_size = config.page_size};
  options.moe.nodes = NumExpertNodes(config, plan);
  if (plan.host_experts) {
    options.moe.host_experts = true;
    // The exchange of GPUs with CPUs has one mode, and a combine in each round.
    options.moe.deepep_mode = "normal";
    options.moe.combine_long_seq = true;
  }
  if (plan.OnGpu(config.mesh, rank)) {
    // Maximum rows of a decode batch that is recorded as a CUDA graph. Each row may be a sequence.
    const int64_t recorded =
        std::min<int64_t>(config.cuda_graph_max_bs > 0 ? config.cuda_graph_max_bs : 256,
                          int64_t{plan.max_running_requests} * plan.drafts.rows());
    // Each row of a tree may be a branch, which is a sequence of its own.
    const int64_t sequences =
        int64_t{plan.max_running_requests} * (plan.drafts.trees() ? plan.drafts.rows() : 1);
    // One for each request, and one for the rows that pad a recorded pass.
    const int64_t page_tables = plan.drafts.trees() ? int64_t{plan.max_running_requests} + 1 : 0;
    options.gpu =
        GpuOptions{.index = config.base_gpu_id + rank % plan.ranks_of_host * config.gpu_id_step,
                   .custom_all_reduce = !config.disable_custom_all_reduce,
                   .graphs = !config.disable_cuda_graph,
                   .packs_experts = plan.packs_experts,
                   .graph_max_tokens = recorded,
                   .max_sequences = std::max(sequences, recorded) + 1,
                   .max_branch = plan.drafts.trees() ? plan.drafts.depth : 0,
                   .max_page_tables = page_tables,
                   .timeout = Milliseconds(config.dist_timeout_seconds),
                   .ranks_per_host = std::min(plan.ranks_of_host, config.mesh.tp),
                   .stage_passes = PassesInFlight(config)};
  }
  options.load.load_format = config.load_format;
  options.load.dummy_seed = config.random_seed;
  return options;
}

// The number of tokens from which on streams are faster, by rough rates: half of what a thread
// reaches in products of bfloat16 with AVX-512, and PCIe 4. If experts are placed by heat, the GPU
// has the hottest ones, and routing is assumed to be Zipf-like, as in `switchyard plan`.
int64_t AutoStreamTokens(const EngineConfig& config, const EnginePlan& plan) {
  constexpr double kFlopsOfThread = 80e9, kLink = 25e9, kExponent = 0.8;
  const ModelConfig& model = plan.model;
  const RouterConfig& router = model.moe->router;
  const Range held =
      ExpertsOfRank(router.num_experts + config.moe.num_redundant_experts, Mesh(config.mesh, 0));
  const int on_gpu = std::min(router.num_experts, static_cast<int>(held.size()));
  const bool by_heat = config.eplb.enable || config.moe.init_expert_location != "trivial";
  // An expert's bytes do not depend on the placement, so the file of the placement is not read.
  const LoadOptions load = PlacedFormats(OptionsWithoutStreams(config, plan, 0));
  const double weights = 3.0 * static_cast<double>(model.expert_row_width()) *
                         static_cast<double>(model.moe->intermediate);
  return BreakEvenTokens(
      {.top_k = router.top_k,
       .uploaded = std::max(1, router.num_experts - on_gpu),
       .cpu_share = ShareOfColdExperts(router.num_experts, on_gpu, by_heat ? kExponent : 0),
       .expert_bytes = static_cast<double>(ExpertBytes(model, Mesh(config.mesh, 0), load)),
       .flops_of_row = 2 * weights,
       .cpu_flops = kFlopsOfThread * plan.threads_per_rank * config.mesh.expert_ranks,
       .link_bandwidth = kLink});
}

// MoeOptions::stream_tokens. Equal on all ranks.
int64_t StreamTokens(const EngineConfig& config, const EnginePlan& plan) {
  const int64_t tokens = ParseStreamExperts(config.moe.stream_experts);
  if (tokens == 0 || !plan.host_experts || !plan.model.has_moe()) return 0;
  // Without a round of so many tokens, the copies would never be used.
  const int64_t of_round = config.moe.long_seq_per_round_tokens;
  if (plan.max_batch_tokens > 0 && tokens > plan.max_batch_tokens)
    throw Invalid(
        "--stream-experts {}: a pass has at most {} tokens; want a smaller number, or a larger "
        "--chunked-prefill-size",
        tokens, plan.max_batch_tokens);
  if (tokens > of_round)
    throw Invalid(
        "--stream-experts {}: each round of a pass uploads the experts, and has at most {} tokens; "
        "want a smaller number, or a larger --deepep-normal-long-seq-per-round-tokens",
        tokens, of_round);
  if (tokens > 0) return tokens;
  const int64_t most =
      plan.max_batch_tokens > 0 ? std::min(plan.max_batch_tokens, of_round) : of_round;
  const int64_t break_even = AutoStreamTokens(config, plan);
  return break_even <= most ? break_even : 0;
}

}  // namespace

ModelOptions MakeModelOptions(const EngineConfig& config, const EnginePlan& plan, int rank) {
  ModelOptions options = OptionsWithoutStreams(config, plan, rank);
  options.moe.stream_tokens = StreamTokens(config, plan);
  return options;
}

}  // namespace switchyard
