#include "server/args/settle_args.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>

#include "core/command_line.h"
#include "core/error.h"
#include "engine/pipeline/layer_partition.h"
#include "eplb/rank_flags.h"
#include "model/hub_cache.h"
#include "server/args/feature_args.h"

namespace switchyard {
namespace {

constexpr auto kRefused = SglangFlag::Kind::kRefused;
constexpr auto kWithoutEffect = SglangFlag::Kind::kWithoutEffect;

constexpr const char* kOneAttention = "attention has one implementation on each device";
constexpr const char* kNoCompiler = "kernels are compiled ahead of time";
constexpr const char* kGraphs = "--cuda-graph-max-bs alone decides which decode steps use graphs";
constexpr const char* kNoTracing = "such metrics are not supported; see GET /metrics";
constexpr const char* kFixedBuckets = "the buckets of the histograms in GET /metrics are fixed";
constexpr const char* kCacheTiers = "the KV cache has one tier, in the device's memory";
constexpr const char* kNoMultimodal = "models read text only";
constexpr const char* kLibraries = "collectives select their algorithm by message size";
constexpr const char* kNgrams =
    "drafts always come from n-grams of 2 to 5 tokens in the request's own text";
constexpr const char* kNoLora = "adapters (LoRA) are not supported";

constexpr std::array kFlags = {
    SglangFlag{"--trust-remote-code", 0, kWithoutEffect, "code in checkpoints is never executed"},
    SglangFlag{"--enable-metrics", 0, kWithoutEffect, "GET /metrics is always available"},
    SglangFlag{"--enable-return-routed-experts", 0, kWithoutEffect,
               "requests can always set return_routed_experts"},
    SglangFlag{"--enable-dp-lm-head", 0, kWithoutEffect,
               "--moe-dense-tp-size decides which ranks share the head"},
    SglangFlag{"--num-continuous-decode-steps", 1, kWithoutEffect,
               "the scheduler plans each decode step, one step ahead"},
    SglangFlag{"--enable-mixed-chunk", 0, kWithoutEffect,
               "chunks of prompts always share steps with decoding"},
    SglangFlag{"--attention-backend", 1, kWithoutEffect, kOneAttention},
    SglangFlag{"--prefill-attention-backend", 1, kWithoutEffect, kOneAttention},
    SglangFlag{"--decode-attention-backend", 1, kWithoutEffect, kOneAttention},
    SglangFlag{"--mm-attention-backend", 1, kWithoutEffect, kNoMultimodal},
    SglangFlag{"--enable-flashinfer-mla", 0, kWithoutEffect, kOneAttention},
    SglangFlag{"--enable-flashmla", 0, kWithoutEffect, kOneAttention},
    SglangFlag{"--disable-mla", 0, kWithoutEffect, kOneAttention},
    SglangFlag{"--enable-mla", 0, kWithoutEffect, kOneAttention},
    SglangFlag{"--flashinfer-mla-disable-ragged", 0, kWithoutEffect, kOneAttention},
    SglangFlag{"--disable-chunked-prefix-cache", 0, kWithoutEffect, kOneAttention},
    SglangFlag{"--triton-attention-num-kv-splits", 1, kWithoutEffect, kOneAttention},
    SglangFlag{"--triton-attention-reduce-in-fp32", 0, kWithoutEffect, "sums are float32"},
    SglangFlag{"--enable-deterministic-inference", 0, kWithoutEffect,
               "outputs never depend on what else is in the batch"},
    SglangFlag{"--sampling-backend", 1, kWithoutEffect, "sampling has one implementation"},
    SglangFlag{"--enable-torch-compile", 0, kWithoutEffect, kNoCompiler},
    SglangFlag{"--torch-compile-max-bs", 1, kWithoutEffect, kNoCompiler},
    SglangFlag{"--enable-torch-compile-debug-mode", 0, kWithoutEffect, kNoCompiler},
    SglangFlag{"--torchao-config", 1, kRefused, "use --quantization", ""},
    SglangFlag{"--cuda-graph-bs", -1, kWithoutEffect, kGraphs},
    SglangFlag{"--disable-cuda-graph-padding", 0, kWithoutEffect, kGraphs},
    SglangFlag{"--enable-profile-cuda-graph", 0, kWithoutEffect, kGraphs},
    SglangFlag{"--enable-cudagraph-gc", 0, kWithoutEffect, kGraphs},
    SglangFlag{"--enable-piecewise-cuda-graph", 0, kWithoutEffect, kGraphs},
    SglangFlag{"--disable-shared-experts-fusion", 0, kWithoutEffect,
               "only --enable-deepep-waterfill dispatches rows to the shared expert"},
    SglangFlag{"--disable-flashinfer-cutlass-moe-fp4-allgather", 0, kWithoutEffect, kLibraries},
    SglangFlag{"--deepep-config", 1, kWithoutEffect, kLibraries},
    SglangFlag{"--enable-p2p-check", 0, kWithoutEffect, kLibraries},
    SglangFlag{"--enable-nccl-nvls", 0, kWithoutEffect, kLibraries},
    SglangFlag{"--enable-symm-mem", 0, kWithoutEffect, kLibraries},
    SglangFlag{"--enable-torch-symm-mem", 0, kWithoutEffect, kLibraries},
    SglangFlag{"--enable-mscclpp", 0, kWithoutEffect, kLibraries},
    SglangFlag{"--enable-flashinfer-allreduce-fusion", 0, kWithoutEffect, kLibraries},
    SglangFlag{"--disable-outlines-disk-cache", 0, kWithoutEffect,
               "compiled grammars are cached in memory only"},
    SglangFlag{"--disable-tokenizer-batch-decode", 0, kWithoutEffect, "tokens are decoded singly"},
    SglangFlag{"--enable-tokenizer-batch-encode", 0, kWithoutEffect, "prompts are encoded singly"},
    SglangFlag{"--tokenizer-mode", 1, kWithoutEffect, "there is one tokenizer implementation"},
    SglangFlag{"--tokenizer-worker-num", 1, kWithoutEffect, "the front has two I/O threads"},
    SglangFlag{"--skip-tokenizer-init", 0, kWithoutEffect,
               "input_ids and output_ids are also available with a tokenizer"},
    SglangFlag{"--model-loader-extra-config", 1, kWithoutEffect, "weights are mapped, not copied"},
    SglangFlag{"--model-impl", 1, kWithoutEffect, "each architecture has one implementation"},
    SglangFlag{"--weight-loader-disable-mmap", 0, kWithoutEffect, "weights are always mapped"},
    SglangFlag{"--enable-memory-saver", 0, kWithoutEffect, "memory can be released without it"},
    SglangFlag{"--cpu-offload-gb", 1, kWithoutEffect, "weights stay on the device"},
    SglangFlag{"--swa-full-tokens-ratio", 1, kWithoutEffect, kCacheTiers},
    SglangFlag{"--disable-hybrid-swa-memory", 0, kWithoutEffect, kCacheTiers},
    SglangFlag{"--enable-hierarchical-cache", 0, kWithoutEffect, kCacheTiers},
    SglangFlag{"--hicache-ratio", 1, kWithoutEffect, kCacheTiers},
    SglangFlag{"--hicache-size", 1, kWithoutEffect, kCacheTiers},
    SglangFlag{"--hicache-write-policy", 1, kWithoutEffect, kCacheTiers},
    SglangFlag{"--hicache-io-backend", 1, kWithoutEffect, kCacheTiers},
    SglangFlag{"--hicache-mem-layout", 1, kWithoutEffect, kCacheTiers},
    SglangFlag{"--hicache-storage-backend", 1, kWithoutEffect, kCacheTiers},
    SglangFlag{"--enable-lmcache", 0, kWithoutEffect, kCacheTiers},
    SglangFlag{"--radix-eviction-policy", 1, kWithoutEffect,
               "the least recently used prefixes are evicted"},
    SglangFlag{"--log-level-http", 1, kWithoutEffect, "--log-requests logs HTTP requests"},
    SglangFlag{"--log-requests-format", 1, kWithoutEffect, "--log-requests logs lines of text"},
    SglangFlag{"--show-time-cost", 0, kWithoutEffect, kNoTracing},
    SglangFlag{"--bucket-time-to-first-token", -1, kWithoutEffect, kFixedBuckets},
    SglangFlag{"--bucket-e2e-request-latency", -1, kWithoutEffect, kFixedBuckets},
    SglangFlag{"--bucket-inter-token-latency", -1, kWithoutEffect, kFixedBuckets},
    SglangFlag{"--collect-tokens-histogram", 0, kWithoutEffect, kNoTracing},
    SglangFlag{"--enable-request-time-stats-logging", 0, kWithoutEffect, kNoTracing},
    SglangFlag{"--gc-warning-threshold-secs", 1, kWithoutEffect, kNoTracing},
    SglangFlag{"--kv-events-config", 1, kWithoutEffect, kNoTracing},
    SglangFlag{"--sleep-on-idle", 0, kWithoutEffect, "idle ranks always sleep"},
    SglangFlag{"--file-storage-path", 1, kWithoutEffect, "no files are uploaded"},
    SglangFlag{"--enable-cache-report", 0, kWithoutEffect,
               "usage always follows the rules of the API"},
    SglangFlag{"--completion-template", 1, kWithoutEffect,
               "it affects only completions with `suffix`, which are refused"},
    SglangFlag{"--hf-chat-template-name", 1, kRefused, "set --chat-template to a file instead"},
    SglangFlag{"--enable-multimodal", 0, kWithoutEffect, kNoMultimodal},
    SglangFlag{"--limit-mm-data-per-request", 1, kWithoutEffect, kNoMultimodal},
    SglangFlag{"--nccl-port", 1, kWithoutEffect,
               "ranks of one host need no port; see --dist-init-addr"},
    SglangFlag{"--tool-server", 1, kRefused, "the server executes no tools itself"},
    SglangFlag{"--enable-custom-logit-processor", 0, kRefused, "code in requests is not supported"},
    SglangFlag{"--preferred-sampling-params", 1, kRefused,
               "defaults come from generation_config.json", ""},
    SglangFlag{"--enable-lora", 0, kRefused, kNoLora},
    SglangFlag{"--lora-paths", -1, kRefused, kNoLora},
    SglangFlag{"--max-loras-per-batch", 1, kWithoutEffect, kNoLora},
    SglangFlag{"--speculative-attention-mode", 1, kWithoutEffect, kOneAttention},
    SglangFlag{"--speculative-accept-threshold-single", 1, kRefused,
               "drafts are accepted only if they equal the sampled token"},
    SglangFlag{"--speculative-accept-threshold-acc", 1, kRefused,
               "drafts are accepted only if they equal the sampled token"},
    SglangFlag{"--speculative-draft-model-revision", 1, kRefused,
               "--speculative-draft-model-path is a directory"},
    SglangFlag{"--speculative-ngram-min-match-window-size", 1, kWithoutEffect, kNgrams},
    SglangFlag{"--speculative-ngram-max-match-window-size", 1, kWithoutEffect, kNgrams},
    SglangFlag{"--speculative-ngram-min-bfs-breadth", 1, kWithoutEffect, kNgrams},
    SglangFlag{"--speculative-ngram-max-bfs-breadth", 1, kWithoutEffect, kNgrams},
    SglangFlag{"--speculative-ngram-match-type", 1, kWithoutEffect, kNgrams},
    SglangFlag{"--speculative-ngram-branch-length", 1, kWithoutEffect, kNgrams},
    SglangFlag{"--speculative-ngram-capacity", 1, kWithoutEffect, kNgrams},
    SglangFlag{"--disaggregation-ib-device", 1, kWithoutEffect,
               "--disaggregation-transfer-backend is tcp or shm"},
    SglangFlag{"--mooncake-ib-device", 1, kWithoutEffect, kLibraries},
    SglangFlag{"--ssl-ca-certs", 1, kRefused, "client certificates are not supported"},
};

}  // namespace

std::span<const SglangFlag> SglangFlags() { return kFlags; }

void AddSglangFlags(CommandLine& app, TakenFlags* taken) {
  const auto take = [taken](const SglangFlag& flag) {
    const std::string line = fmt::format("{} has no effect here: {}", flag.name, flag.why);
    if (!std::ranges::count(taken->without_effect, line)) taken->without_effect.push_back(line);
  };
  for (const SglangFlag& flag : kFlags) {
    const auto taken_or_refused = [&flag, take](const std::string& value) {
      const bool harmless = flag.harmless != nullptr && value == flag.harmless;
      if (flag.kind == kRefused && !harmless) {
        throw Invalid("{}{}{} is not supported: {}", flag.name, value.empty() ? "" : " ", value,
                      flag.why);
      }
      take(flag);
    };
    app.Hidden(flag.name, flag.values, taken_or_refused);
  }
}

namespace {

void SetExpertParallelism(const CommandLine& app, ServerArgs& a) {
  if (!a.enable_ep_moe && !a.enable_deepep_moe) return;
  if (!app.Given("--ep-size")) a.engine.mesh.ep = a.engine.mesh.tp;
  if (!a.enable_deepep_moe) return;
  std::string& backend = a.engine.moe.a2a_backend;
  if (app.Given("--moe-a2a-backend") && backend != "deepep") {
    throw Invalid("--enable-deepep-moe means --moe-a2a-backend deepep, but {} is given too",
                  backend);
  }
  backend = "deepep";
}

void SetAttentionGroups(ServerArgs& a) {
  if (a.dp_size > 1 && !a.enable_dp_attention)
    throw Invalid(
        "--dp-size {0} without --enable-dp-attention would need {0} replicas of the whole engine: "
        "start {0} servers behind a router, or add --enable-dp-attention",
        a.dp_size);
  a.engine.mesh.dp = a.dp_size;
}

// A rank with experts only counts as an attention group without requests (MeshShape).
void SetExpertRanks(const CommandLine& app, ServerArgs& a) {
  MeshShape& mesh = a.engine.mesh;
  mesh.expert_slots = ParseExpertSlots("--expert-slots", a.expert_slots);
  if (a.cpu_experts == "off" && a.engine.host_experts())
    throw Invalid("--cpu-experts off: --device {} places experts on CPUs; leave one of them out",
                  a.engine.device);
  if (mesh.expert_ranks == 0) return;
  const int groups = mesh.tp - mesh.expert_ranks;
  if (groups < 1)
    throw Invalid("--expert-ranks {}: want less than --tp-size {}, so that a rank has attention",
                  mesh.expert_ranks, mesh.tp);
  if (a.dp_size != groups)
    throw Invalid(
        "--expert-ranks {0}: each of the other {1} ranks is an attention group: want --dp-size {1}"
        "{2}",
        mesh.expert_ranks, groups, groups > 1 ? " and --enable-dp-attention" : "");
  mesh.dp = mesh.tp;
  if (!app.Given("--ep-size")) mesh.ep = mesh.tp;
  if (!app.Given("--moe-dense-tp-size")) mesh.dense_tp = 1;
  if (a.engine.host_experts() && !app.Given("--moe-a2a-backend"))
    a.engine.moe.a2a_backend = "deepep";
}

// Replaces a Hugging Face id by the directory of its local snapshot. The id remains the served
// name.
void ResolveModel(ServerArgs& a) {
  const std::filesystem::path named = a.engine.model_path;
  const std::filesystem::path cache = a.download_dir;
  a.engine.model_path = ResolveCheckpoint(named, a.revision, cache);
  if (a.served_model_name.empty() && a.engine.model_path != named)
    a.served_model_name = named.string();
  if (!a.tokenizer_path.empty())
    a.tokenizer_path = ResolveCheckpoint(a.tokenizer_path, a.revision, cache).string();
}

void NoteDpRank(TakenFlags* taken) {
  const char* rank = std::getenv("SGLANG_DP_RANK");
  if (rank == nullptr || *rank == '\0') return;
  const std::string_view text = rank;
  if (text.size() > 9 || text.find_first_not_of("0123456789") != std::string_view::npos)
    throw Invalid("environment variable SGLANG_DP_RANK={}: want an integer of at least 0", text);
  taken->without_effect.push_back(
      fmt::format("SGLANG_DP_RANK={} has no effect here: each request can select its attention "
                  "group (data_parallel_rank)",
                  text));
}

// Adds log lines for HCCL_BUFFSIZE and DEEPEP_NORMAL_COMBINE_ENABLE_LONG_SEQ if the exchange has no
// rounds.
void NoteRounds(const MoeOptions& moe, TakenFlags* taken) {
  const bool low_latency = moe.deepep_mode == "low_latency" &&
                           (moe.a2a_backend == "deepep" || moe.a2a_backend == "mooncake");
  if (moe.a2a_backend != "none" && !low_latency) return;
  const auto note = [&](const std::string& variable) {
    taken->without_effect.push_back(
        fmt::format("{} has no effect here: exchanges of {} do not run in rounds", variable,
                    low_latency ? "--deepep-mode low_latency" : "--moe-a2a-backend none"));
  };
  if (moe.hccl_buffer_mib != 0) note(fmt::format("HCCL_BUFFSIZE={}", moe.hccl_buffer_mib));
  if (moe.combine_long_seq) note("DEEPEP_NORMAL_COMBINE_ENABLE_LONG_SEQ=1");
}

// Adds a log line for --enable-single-batch-overlap if the exchange returns all outputs in one
// part.
void NoteSingleBatchOverlap(const MoeOptions& moe, TakenFlags* taken) {
  if (!moe.single_batch_overlap || CombinesInParts(moe)) return;
  taken->without_effect.push_back(fmt::format(
      "--enable-single-batch-overlap has no effect here: --moe-a2a-backend {} {}", moe.a2a_backend,
      moe.a2a_backend == "none" ? "sends no rows"
                                : "does not return outputs in parts; want deepep, flashinfer or "
                                  "mooncake"));
}

}  // namespace

void SettleArgs(const CommandLine& app, ServerArgs* args) {
  SetExpertParallelism(app, *args);
  SetAttentionGroups(*args);
  SetExpertRanks(app, *args);
  EngineConfig& engine = args->engine;
  if (engine.mesh.pp > 1 && engine.pp_layer_partition.empty())
    engine.pp_layer_partition = LayerPartitionOfEnvironment();
  ResolveModel(*args);
  CheckParserFlags(*args);
  if (args->grammar_backend == "none") args->engine.disable_jump_forward = true;
}

void NoteWithoutEffect(const MoeOptions& moe, TakenFlags* taken) {
  NoteDpRank(taken);
  NoteRounds(moe, taken);
  NoteSingleBatchOverlap(moe, taken);
}

}  // namespace switchyard
