// The order of the checks, and checks of flags with each other and with the model.
#include "engine/checks/checks.h"

#include <cmath>
#include <numeric>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/format.h"
#include "core/gguf_files.h"
#include "engine/checks/features.h"
#include "engine/expert_services.h"
#include "engine/kept_gpu_memory.h"
#include "engine/pipeline/layer_partition.h"
#include "engine/speculative/draft_model.h"
#include "engine/speculative/options.h"
#include "eplb/manager.h"
#include "kernels/compressed.h"
#include "kernels/recurrent.h"
#include "model/stages.h"
#include "model/weights/source.h"
#include "moe/stream_experts.h"

namespace switchyard {
namespace {

void CheckStages(const EngineConfig& c) {
  const int stages = c.mesh.pp;
  if (stages == 1) {
    if (c.pp_async_batch_depth != 0)
      throw Invalid("--pp-async-batch-depth {} has no effect without --pp-size",
                    c.pp_async_batch_depth);
    if (c.dynamic_chunking)
      throw Invalid("--enable-dynamic-chunking has no effect without --pp-size");
    if (c.pp_max_micro_batch_size != 0)
      throw Invalid("--pp-max-micro-batch-size {} has no effect without --pp-size",
                    c.pp_max_micro_batch_size);
    if (const auto sizes = ParseLayerPartition(c.pp_layer_partition); sizes.size() > 1)
      throw Invalid("--pp-layer-partition {} has no effect without --pp-size {}",
                    c.pp_layer_partition, sizes.size());
    return;
  }
  if (c.pp_max_micro_batch_size > 0 && c.pp_max_micro_batch_size < c.mesh.dp)
    throw Invalid(
        "--pp-max-micro-batch-size {}: want at least 1 for each attention group "
        "(--dp-size {})",
        c.pp_max_micro_batch_size, c.mesh.dp);
  if (c.dynamic_chunking && c.chunked_prefill_size < 0)
    throw Invalid("--enable-dynamic-chunking has no effect with --chunked-prefill-size {}",
                  c.chunked_prefill_size);
  const auto refuse = [&](bool given, std::string_view flag) {
    if (given) throw Invalid("{}: not supported with --pp-size {}", flag, stages);
  };
  // The head reads rows of layers of several stages.
  refuse(SourceOf(c.speculative) == DraftSource::kEagle3,
         fmt::format("--speculative-algorithm {}", c.speculative.algorithm));
  refuse(c.speculative.eagle_topk > 1,
         fmt::format("--speculative-eagle-topk {}", c.speculative.eagle_topk));
  refuse(c.target_step_ms > 0, fmt::format("--target-step-ms {}", c.target_step_ms));
  refuse(c.two_batch_overlap, "--enable-two-batch-overlap");
}

void CheckWithoutSpeculation(const SpeculativeOptions& o) {
  const SpeculativeOptions defaults;
  const auto refuse = [](bool given, const char* flag) {
    if (given) throw Invalid("{}: needs --speculative-algorithm", flag);
  };
  refuse(o.num_steps != defaults.num_steps, "--speculative-num-steps");
  refuse(o.eagle_topk != defaults.eagle_topk, "--speculative-eagle-topk");
  refuse(o.num_draft_tokens != 0, "--speculative-num-draft-tokens");
  refuse(!o.draft_model_path.empty(), "--speculative-draft-model-path");
  refuse(!o.draft_quantization.empty(), "--speculative-draft-model-quantization");
  refuse(!o.token_map.empty(), "--speculative-token-map");
  refuse(o.simulate_acceptance >= 0, "--speculative-simulate-acceptance");
}

void CheckSpeculation(const SpeculativeOptions& o) {
  const DraftSource source = SourceOf(o);
  if (source == DraftSource::kNone) return CheckWithoutSpeculation(o);
  if (source == DraftSource::kNgram && !o.draft_quantization.empty())
    throw Invalid(
        "--speculative-draft-model-quantization {}: --speculative-algorithm {} has no draft model; "
        "leave the first flag out",
        o.draft_quantization, o.algorithm);
  if (source == DraftSource::kNgram && !o.token_map.empty())
    throw Invalid(
        "--speculative-token-map {}: --speculative-algorithm {} has no draft model; leave the "
        "first flag out",
        o.token_map, o.algorithm);
  const bool has_checkpoint = HasDraftCheckpoint(source);
  if (has_checkpoint && o.draft_model_path.empty())
    throw Invalid("--speculative-algorithm {}: needs --speculative-draft-model-path", o.algorithm);
  if (!has_checkpoint && !o.draft_model_path.empty())
    throw Invalid(
        "--speculative-draft-model-path {}: --speculative-algorithm {} has no draft model; leave "
        "the first flag out",
        o.draft_model_path, o.algorithm);
  if (o.eagle_topk > 1) {
    if (source == DraftSource::kNgram)
      throw Invalid(
          "--speculative-eagle-topk {}: drafts of --speculative-algorithm {} are chains; want 1",
          o.eagle_topk, o.algorithm);
    return;
  }
  const int32_t rows = LimitsOf({.algorithm = o.algorithm, .num_steps = o.num_steps}).most + 1;
  if (o.num_draft_tokens != 0 && o.num_steps != "auto" && o.num_draft_tokens != rows)
    throw Invalid(
        "--speculative-num-draft-tokens {}: a chain of {} drafts has {} rows (the last token and "
        "the drafts); want {}, or leave one of the flags out",
        o.num_draft_tokens, rows - 1, rows, rows);
}

// What the two workers of a request cannot share.
void CheckDisaggregation(const EngineConfig& c) {
  if (!c.disaggregated()) return;
  const bool ngram = SourceOf(c.speculative) == DraftSource::kNgram;
  if (ngram && c.disaggregation_mode == "prefill")
    throw Invalid(
        "--disaggregation-mode prefill: --speculative-algorithm {} has no effect; want it on the "
        "decode worker only",
        c.speculative.algorithm);
}

// A draft model has its own stream, but the progress of a stage is that of the target's stream.
void CheckDisaggregationOfGpus(const EngineConfig& c, bool gpus) {
  if (c.disaggregated() && gpus && c.mesh.pp > 1)
    throw Invalid("--disaggregation-mode {}: on GPUs not supported with --pp-size {}; want 1",
                  c.disaggregation_mode, c.mesh.pp);
}

// Models that return a vector or classes for each prompt.
void CheckPooling(const EngineConfig& c, const ModelConfig& model) {
  if (!model.pooling) return;
  if (c.disaggregated())
    throw Invalid(
        "--disaggregation-mode {}: a model that returns one vector for each prompt has no "
        "decode phase",
        c.disaggregation_mode);
  if (!c.speculative.algorithm.empty())
    throw Invalid("--speculative-algorithm {}: the model generates no text; leave the flag out",
                  c.speculative.algorithm);
}

// The key of config.json that gives LinearAttentionConfig::key_dim.
const char* KeyWidthName(const LinearAttentionConfig& linear) {
  switch (linear.rule) {
    case kernels::StateRule::kKeyDelta:
      return linear.gate_rank > 0 ? "linear_attn_config.head_dim" : "head_dim";
    case kernels::StateRule::kMamba2:
      return "ssm_state_size";
    case kernels::StateRule::kFixed:
      return "hidden_size / num_kv_heads_for_linear_attn";
    case kernels::StateRule::kDelta:
      break;
  }
  return "linear_key_head_dim";
}

// Drafts for a model with recurrent states, whose passes write the state after each draft, or with
// compressed attention.
void CheckStatesOfDrafts(const EngineConfig& c, const ModelConfig& model, bool gpus) {
  const SpeculativeOptions& options = c.speculative;
  const DraftLimits limits = LimitsOf(options, c.mesh.pp);
  if (limits.most == 0) return;
  const char* const what = model.has_states() ? "recurrent states" : "compressed attention";
  if (gpus)
    throw Invalid(
        "--speculative-algorithm {}: not supported on GPUs for {}, which has {}; leave the flag "
        "out",
        options.algorithm, model.architecture, what);
  if (c.mesh.pp > 1)
    throw Invalid(
        "--speculative-algorithm {}: not supported with --pp-size {} for {}, which has {}",
        options.algorithm, c.mesh.pp, model.architecture, what);
  if (limits.trees())
    throw Invalid("--speculative-eagle-topk {}: not supported for {}, which has {}; want 1",
                  options.eagle_topk, model.architecture, what);
  if (!model.has_states() || limits.most <= kernels::kMaxStateCopies) return;
  const std::string given =
      options.num_draft_tokens > 0
          ? fmt::format("--speculative-num-draft-tokens {}", options.num_draft_tokens)
          : fmt::format("--speculative-num-steps {}", options.num_steps);
  throw Invalid("{}: {} has recurrent states, which allow at most {} drafts", given,
                model.architecture, kernels::kMaxStateCopies);
}

// Compressed attention (docs/notes/deepseek_v4.md).
void CheckEntries(const EngineConfig& c, const ModelConfig& model, bool gpus) {
  if (model.attention.kind != AttentionConfig::Kind::kCompressed) return;
  const auto refuse = [&](bool given, const std::string& flag, std::string_view advice) {
    if (given) throw Invalid("{}: not supported for {}; {}", flag, model.architecture, advice);
  };
  for (const auto& [name, width] : {std::pair("head_dim", model.attention.head_dim),
                                    std::pair("index_head_dim", model.attention.index_head_dim)})
    if (gpus && width > kernels::kMaxGpuEntryWidth)
      throw Invalid("{}={} exceeds the CUDA limit of {}; use --device cpu", name, width,
                    kernels::kMaxGpuEntryWidth);
  CheckStatesOfDrafts(c, model, gpus);
  refuse(c.page_size % kernels::kEntrySlots != 0, fmt::format("--page-size {}", c.page_size),
         fmt::format("want a multiple of {}", kernels::kEntrySlots));
  refuse(c.two_batch_overlap, "--enable-two-batch-overlap", "leave the flag out");
}

// Options that a model with recurrent states does not support, and sizes that its kernels on GPUs
// do not compute.
void CheckStates(const EngineConfig& c, const ModelConfig& model, bool gpus) {
  if (!model.has_states()) return;
  const auto refuse = [&](bool given, const std::string& flag) {
    if (given)
      throw Invalid("{}: not supported for {}, which has recurrent states; leave the flag out",
                    flag, model.architecture);
  };
  CheckStatesOfDrafts(c, model, gpus);
  refuse(c.two_batch_overlap, "--enable-two-batch-overlap");
  if (!model.has_linear()) return;
  if (gpus && kernels::ChunksPrompts(model.linear->rule, model.linear->key_dim)) {
    const auto check = [](int64_t rows, const char* flag) {
      if (rows > 0 && rows < kernels::kDeltaChunk)
        throw Invalid(
            "{} {}: GPUs compute prompts with recurrent states in chunks of {} rows; "
            "want at least {}",
            flag, rows, kernels::kDeltaChunk, kernels::kDeltaChunk);
    };
    check(c.chunked_prefill_size, "--chunked-prefill-size");
    check(c.max_prefill_tokens, "--max-prefill-tokens");
  }
  if (gpus && model.linear->key_dim > kernels::kMaxGpuKeyDim)
    throw Invalid("{}={} exceeds the CUDA limit of {}; use --device cpu",
                  KeyWidthName(*model.linear), model.linear->key_dim, kernels::kMaxGpuKeyDim);
}

// Chunks of equal time have equal numbers of rows if the cost of a row does not grow with its
// position.
void CheckDynamicChunking(const EngineConfig& c, const ModelConfig& model) {
  if (c.dynamic_chunking && std::isinf(KeysOfWeights(model)))
    throw Invalid(
        "--enable-dynamic-chunking has no effect for {}: each layer attends to a limited number of "
        "keys; leave the flag out",
        model.architecture);
}

void CheckContext(const EngineConfig& c, const ModelConfig& model) {
  if (c.context_length == 0) return;
  const int64_t longest = model.longest_context();
  if (c.context_length < 2 || c.context_length > longest)
    throw Invalid("--context-length {}: want 2 to {}, {}", c.context_length, longest,
                  longest > model.max_position
                      ? "the rope scaling's factor times original_max_position_embeddings"
                      : "the model's max_position_embeddings");
}

void CheckRecorder(const EngineConfig& c, const ModelConfig& model) {
  if (!c.recorder.any()) return;
  const char* flag = c.recorder.mode.empty() ? "--enable-expert-distribution-metrics"
                                             : "--expert-distribution-recorder-mode";
  if (!model.has_moe()) throw Invalid("{}: this model has no experts; leave it out", flag);
}

void CheckEplb(const EngineConfig& c, const EnginePlan& plan) {
  const EplbOptions& eplb = c.eplb;
  if (!eplb.enable && eplb.dispatch == "static") return;
  const char* flag = eplb.enable ? "--enable-eplb" : "--ep-dispatch-algorithm";
  if (!plan.model.has_moe()) throw Invalid("{}: this model has no experts; leave it out", flag);
  if (!eplb.enable) return;
  if (c.mesh.ep == 1)
    throw Invalid("--enable-eplb: all experts are on one EP rank; want --ep-size 2 or more");
  try {
    EplbManager::Check(eplb, EplbShapeOf(c, plan), c.mesh.ep);
  } catch (const Error& error) {
    throw Invalid("--enable-eplb, --eplb-algorithm {}: {}", eplb.algorithm, error.what());
  }
}

// A GPU maps the memory of the GPUs with the same place in all stages (cuda::PeerMemory).
void CheckStagesOfGpus(const EngineConfig& c, bool gpus) {
  constexpr int kMost = 16;
  if (gpus && c.mesh.pp > kMost)
    throw Invalid("--pp-size {}: want at most {} stages on GPUs", c.mesh.pp, kMost);
}

// GGUF models run on CPUs only.
void CheckGgufDevice(const EngineConfig& c, bool gpus) {
  if (!gpus) return;
  for (const std::filesystem::path& path : {c.model_path, DraftPath(c)})
    if (FindGguf(path))
      throw Invalid(
          "--device cuda: {} is a GGUF model, which runs on CPUs only; want --device cpu, or a "
          "safetensors checkpoint",
          path.string());
}

// Experts on CPUs beside one GPU (MoeOptions::host_experts). `flag`: --expert-ranks or
// --expert-slots with its value.
void CheckHostExperts(const EngineConfig& c, const EnginePlan& plan, const std::string& flag) {
  if (plan.cuda && !plan.host_experts)
    throw Invalid(
        "{}: supported on CPUs, and on one GPU with experts on CPUs; want --device cpu, or "
        "--device cuda,cpu with --expert-ranks",
        flag);
  if (!plan.host_experts) return;
  const MeshShape& mesh = c.mesh;
  if (mesh.token_ranks() > 1)
    throw Invalid(
        "--device {}: --tp-size {} and --expert-ranks {} leave {} ranks with attention; want one, "
        "on one GPU",
        c.device, mesh.tp, mesh.expert_ranks, mesh.token_ranks());
  const auto refuse = [&](bool given, const std::string& other, const std::string& want) {
    if (given) throw Invalid("--device {}: not supported with {}; want {}", c.device, other, want);
  };
  const MoeOptions& moe = c.moe;
  refuse(moe.a2a_backend != "deepep", fmt::format("--moe-a2a-backend {}", moe.a2a_backend),
         "deepep");
  refuse(moe.deepep_mode == "low_latency", "--deepep-mode low_latency", "normal or auto");
  refuse(moe.combine_rows != "slot", fmt::format("--moe-combine-rows {}", moe.combine_rows),
         "slot");
  refuse(c.two_batch_overlap, "--enable-two-batch-overlap", "to leave it out");
  refuse(moe.single_batch_overlap, "--enable-single-batch-overlap", "to leave it out");
}

void CheckStreamExperts(const EngineConfig& c, const EnginePlan& plan) {
  if (ParseStreamExperts(c.moe.stream_experts) == 0) return;
  const std::string flag = fmt::format("--stream-experts {}", c.moe.stream_experts);
  if (!plan.host_experts)
    throw Invalid(
        "{}: experts on CPUs are streamed to a GPU; want --device cuda,cpu with "
        "--expert-ranks, or off",
        flag);
  if (c.recorder.mode == "stat_approx")
    throw Invalid(
        "{}: not supported with --expert-distribution-recorder-mode stat_approx, which "
        "counts the rows that ranks receive",
        flag);
}

// Ranks with experts only, and ranks with their own numbers of experts.
void CheckUnequalRanks(const EngineConfig& c, const EnginePlan& plan) {
  const MeshShape& mesh = c.mesh;
  if (mesh.expert_ranks == 0 && mesh.expert_slots.empty()) return;
  const std::string flag = mesh.expert_ranks > 0
                               ? fmt::format("--expert-ranks {}", mesh.expert_ranks)
                               : fmt::format("--expert-slots {}", Joined(mesh.expert_slots, ","));
  if (!plan.model.has_moe()) throw Invalid("{}: this model has no experts; leave it out", flag);
  const auto refuse = [&](bool given, const std::string& other) {
    if (given) throw Invalid("{}: not supported with {}", flag, other);
  };
  CheckHostExperts(c, plan, flag);
  refuse(mesh.pp > 1, fmt::format("--pp-size {}", mesh.pp));
  refuse(c.elastic_ep_backend != "none",
         fmt::format("--elastic-ep-backend {}", c.elastic_ep_backend));
  refuse(c.spare_ranks > 0, fmt::format("--spare-ranks {}", c.spare_ranks));
  refuse(c.disaggregated(), fmt::format("--disaggregation-mode {}", c.disaggregation_mode));
  const DraftSource drafts = SourceOf(c.speculative);
  refuse(
      drafts != DraftSource::kNone && drafts != DraftSource::kNgram,
      fmt::format("--speculative-algorithm {}, which has a draft model", c.speculative.algorithm));
  refuse(mesh.expert_ranks > 0 && c.moe.waterfill,
         "--enable-deepep-waterfill: shared experts stay on ranks with attention");
  if (mesh.expert_slots.empty()) return;
  const int64_t slots =
      std::accumulate(mesh.expert_slots.begin(), mesh.expert_slots.end(), int64_t{0});
  const int64_t want = plan.model.moe->router.num_experts + c.moe.num_redundant_experts;
  if (slots != want)
    throw Invalid(
        "--expert-slots {}: {} slots; want {}, the model's experts and --ep-num-redundant-experts",
        Joined(mesh.expert_slots, ","), slots, want);
  for (const int32_t of_rank : mesh.expert_slots)
    if (of_rank > plan.model.moe->router.num_experts)
      throw Invalid(
          "--expert-slots {}: a rank would hold an expert twice; want at most {} for each",
          Joined(mesh.expert_slots, ","), plan.model.moe->router.num_experts);
}

void CheckRankCosts(const EngineConfig& c, const EnginePlan& plan) {
  if (c.eplb.rank_costs.empty()) return;
  if (!plan.model.has_moe())
    throw Invalid("--eplb-rank-costs: this model has no experts; leave it out");
  const auto costs = std::ssize(RankCostsOf(c));
  if (costs != c.mesh.ep)
    throw Invalid("--eplb-rank-costs {}: costs of {} ranks; want those of {} EP ranks (--ep-size)",
                  c.eplb.rank_costs, costs, c.mesh.ep);
  if (c.elastic_ep_backend != "none")
    throw Invalid("--eplb-rank-costs {}: not supported with --elastic-ep-backend {}",
                  c.eplb.rank_costs, c.elastic_ep_backend);
}

// The reason why ranks can serve only together, for --elastic-ep-backend; "" if some can serve
// without the others. They can if each rank has whole attention and dense layers, and outputs do
// not depend on the placement of experts.
std::string WhyRanksServeTogether(const EngineConfig& c, const EnginePlan& plan) {
  const MeshShape& mesh = c.mesh;
  if (plan.cuda) return "ranks on GPUs serve only together";
  if (!plan.model.has_moe()) return "the model has no experts";
  if (mesh.pp > 1 || mesh.tp < 2 || mesh.ep != mesh.tp || mesh.dp != mesh.tp || mesh.dense_tp != 1)
    return "each rank needs whole attention and dense layers: want --tp-size, --ep-size and "
           "--dp-size equal and at least 2, --enable-dp-attention and --moe-dense-tp-size 1";
  if (c.moe.a2a_backend == "none" || c.moe.combine_rows != "slot")
    return "outputs must not depend on the placement of experts: want another "
           "--moe-a2a-backend than none, and --moe-combine-rows slot";
  if (plan.ranks_of_host < mesh.tp) return "all ranks must be on one host";
  if (plan.model.has_states()) return "recurrent states are not supported";
  if (c.disaggregated()) return "--disaggregation-mode is not supported";
  return {};
}

void CheckSpares(const EngineConfig& config, const EnginePlan& plan) {
  if (config.spare_ranks == 0) return;
  if (plan.cuda && !KeepsGpuWeights(config, plan))
    throw Invalid(
        "--spare-ranks {}: on GPUs, not supported with --enable-eplb, draft models, 4-bit, int8 or "
        "GGUF weights, --quantization, --pp-size or --disaggregation-mode; leave the flag out",
        config.spare_ranks);
  if (config.mesh.pp > 1)
    throw Invalid("--spare-ranks {}: ranks of --pp-size {} are not restarted", config.spare_ranks,
                  config.mesh.pp);
  if (plan.ranks_of_host < config.mesh.world())
    throw Invalid("--spare-ranks {}: all ranks must be on one host", config.spare_ranks);
}

// --cpu-weight-layout selects between two layouts, so there must be weights that can have both.
void CheckWeightLayout(const EngineConfig& c, const EnginePlan& plan) {
  const std::string& layout = c.quantization.layout;
  if (layout == "auto" || plan.cuda) return;
  const QuantizationConfig& quantization = plan.model.quantization;
  if (!MayPackStoredWeights(quantization))
    throw Invalid(
        "--cpu-weight-layout {}: the checkpoint stores no weights in 4 bits with groups of 32, 64 "
        "or 128 columns, MXFP4 or NVFP4; leave the flag out",
        layout);
  if (layout == "panels" && !quantization.int8_group_rows)
    throw Invalid(
        "--cpu-weight-layout panels: panels are multiplied with int8 activations; want "
        "--quantize-activations auto, --dtype auto or bfloat16, and a CPU with AVX2");
}

void CheckFlagPairs(const EngineConfig& config) {
  CheckSpeculation(config.speculative);
  CheckDisaggregation(config);
  CheckStages(config);
}

void CheckModelPairs(const EngineConfig& config, const EnginePlan& plan) {
  CheckGgufDevice(config, plan.cuda);
  CheckStagesOfGpus(config, plan.cuda);
  CheckDisaggregationOfGpus(config, plan.cuda);
  CheckPooling(config, plan.model);
  CheckEntries(config, plan.model, plan.cuda);
  if (plan.cuda) CheckGpuCache(config, plan.model);
  CheckStates(config, plan.model, plan.cuda);
  CheckDynamicChunking(config, plan.model);
  CheckContext(config, plan.model);
  CheckRecorder(config, plan.model);
  CheckUnequalRanks(config, plan);
  CheckRankCosts(config, plan);
  CheckStreamExperts(config, plan);
  CheckEplb(config, plan);
  CheckSpares(config, plan);
  CheckWeightLayout(config, plan);
  if (config.elastic_ep_backend == "none") return;
  if (const std::string why = WhyRanksServeTogether(config, plan); !why.empty())
    throw Invalid("--elastic-ep-backend {}: {}", config.elastic_ep_backend, why);
}

}  // namespace

std::vector<std::string> FlagsAgainstHostExperts(const EngineConfig& c) {
  std::vector<std::string> flags;
  const auto add = [&](bool given, const char* flag, const std::string& value) {
    if (given) flags.push_back(value.empty() ? flag : fmt::format("{} {}", flag, value));
  };
  const MoeOptions& moe = c.moe;
  const DraftSource drafts = SourceOf(c.speculative);
  add(moe.a2a_backend != "none" && moe.a2a_backend != "deepep", "--moe-a2a-backend",
      moe.a2a_backend);
  add(moe.deepep_mode == "low_latency", "--deepep-mode", moe.deepep_mode);
  add(moe.combine_rows != "slot", "--moe-combine-rows", moe.combine_rows);
  add(c.two_batch_overlap, "--enable-two-batch-overlap", "");
  add(moe.single_batch_overlap, "--enable-single-batch-overlap", "");
  add(c.spare_ranks > 0, "--spare-ranks", fmt::format("{}", c.spare_ranks));
  add(c.disaggregated(), "--disaggregation-mode", c.disaggregation_mode);
  add(drafts != DraftSource::kNone && drafts != DraftSource::kNgram, "--speculative-algorithm",
      c.speculative.algorithm);
  add(moe.waterfill, "--enable-deepep-waterfill", "");
  return flags;
}

void CheckFlags(const EngineConfig& config) {
  CheckFlagValues(config);
  CheckFlagPairs(config);
}

// The feature table comes before the flags of the MoE path: its errors list the values that work.
void CheckOptions(const EngineConfig& config, const EnginePlan& plan, const RankPlaces& places) {
  CheckModelPairs(config, plan);
  CheckFeatures(config, plan.model, places);
  CheckMoeFlags(config, plan.model, places.gpus);
  if (places.host_experts) CheckMoeFlags(config, plan.model, /*gpus=*/false);
}

}  // namespace switchyard
