#include "server/args/args.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <array>
#include <map>

#include "core/error.h"
#include "core/log.h"
#include "engine/cpu_binding.h"
#include "moe/environment.h"
#include "server/args/parse_words.h"
#include "server/args/yaml_config.h"

namespace switchyard {
namespace {

constexpr const char* kModel = "Model";
constexpr const char* kServer = "HTTP server";
constexpr const char* kParallel = "Parallelism";
constexpr const char* kMoe = "Mixture of experts";
constexpr const char* kMemory = "Memory and scheduling";
constexpr const char* kMisc = "Miscellaneous";

// Every flag may be given more than once, the last one counting: the command line overrides
// --config.
template <typename T>
CLI::Option* Flag(CLI::App& app, const char* names, T& value, const char* group,
                  const std::string& help) {
  return app.add_option(names, value, help)
      ->group(group)
      ->capture_default_str()
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

CLI::Option* Switch(CLI::App& app, const char* names, bool& value, const char* group,
                    const std::string& help) {
  return app.add_flag(names, value, help)
      ->group(group)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

void AddModelFlags(CLI::App& app, ServerArgs& a) {
  EngineConfig& e = a.engine;
  app.add_option("--model-path,--model", e.model_path, "Checkpoint directory (Hugging Face layout)")
      ->group(kModel)
      ->required()
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  Flag(app, "--tokenizer-path", a.tokenizer_path, kModel,
       "Directory of tokenizer.json; default: the model's");
  Flag(app, "--load-format", e.load_format, kModel,
       "auto, safetensors, or dummy (weights made up from config.json)")
      ->check(CLI::IsMember({"auto", "safetensors", "dummy"}));
  Flag(app, "--json-model-override-args", e.model_override_args, kModel,
       "JSON object whose keys replace config.json's");
  Flag(app, "--quantization", e.quantization.method, kModel,
       "Format that a plain checkpoint's linears get while they load (fp8, w8a8_fp8, w8a8_int8, "
       "int4, "
       "w4afp8, mxfp4, nvfp4); of one that is quantized, the name it must have");
  Flag(app, "--quantize-activations", e.quantization.activations, kModel,
       "Rounds the rows that linears multiply. auto: to int8 where the checkpoint was made for it, "
       "to bfloat16 for weights in bfloat16 where the CPU multiplies such pairs (AVX512_BF16, AMX) "
       "unless --dtype is float32 or float16; always: as GPUs compute with the weights (FP8, int8, "
       "on CPUs "
       "also bfloat16); never: float32")
      ->check(CLI::IsMember({"auto", "always", "never"}));
  Flag(app, "--dtype", e.dtype, kModel,
       "Of activations in flight: auto (the checkpoint's), float32, bfloat16, float16")
      ->check(CLI::IsMember({"auto", "float32", "bfloat16", "float16", "half", "float"}));
  Flag(app, "--kv-cache-dtype", e.kv_cache_dtype, kModel,
       "Of the KV cache: auto (as exact as the arithmetic: bfloat16 where rows are rounded to it, "
       "see --quantize-activations, on GPUs unless --dtype is float32; else float32), float32, "
       "bfloat16, float16; on CPUs fp8_e4m3 (scale 1) and int8 (a scale for each token and head)")
      ->check(
          CLI::IsMember({"auto", "float32", "bfloat16", "bf16", "float16", "fp8_e4m3", "int8"}));
  Flag(app, "--context-length", e.context_length, kModel,
       "Longest prompt plus output; 0: the model's")
      ->check(CLI::NonNegativeNumber);
  Flag(app, "--chat-template", a.chat_template, kModel,
       "Jinja file that replaces the checkpoint's chat template");
}

void AddParallelFlags(CLI::App& app, ServerArgs& a) {
  EngineConfig& e = a.engine;
  Flag(app, "--tp-size,--tp,--tensor-parallel-size", e.mesh.tp, kParallel, "Ranks of the engine");
  Flag(app, "--ep-size,--ep,--expert-parallel-size", e.mesh.ep, kParallel,
       "Expert-parallel ranks; divides --tp-size, the rest splits each expert (MoE-TP)");
  Flag(app, "--dp-size,--dp,--data-parallel-size", a.dp_size, kParallel,
       "Attention groups of tp / dp ranks, each with requests and a cache of its own; divides "
       "--tp-size and needs --enable-dp-attention")
      ->check(CLI::PositiveNumber);
  Switch(app, "--enable-dp-attention", a.enable_dp_attention, kParallel,
         "Data parallelism for attention, tensor and expert parallelism for the rest");
  Flag(app, "--load-balance-method", e.load_balance_method, kParallel,
       "Which attention group takes a request: round_robin, total_requests (fewest open), "
       "total_tokens (fewest of open requests), or auto (round_robin)")
      ->check(CLI::IsMember({"auto", "round_robin", "total_requests", "total_tokens"}));
  Flag(app, "--moe-dense-tp-size", e.mesh.dense_tp, kParallel,
       "Ranks that share a dense feed-forward: 1 (each has it whole, for tokens of its own; the "
       "head is then shared by an attention group), or 0 for --tp-size")
      ->check(CLI::NonNegativeNumber);
  Flag(app, "--device", e.device, kParallel,
       "What ranks compute on: auto (cuda where a GPU is found), cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  Flag(app, "--base-gpu-id", e.base_gpu_id, kParallel, "GPU of this host's first rank")
      ->check(CLI::NonNegativeNumber);
  Flag(app, "--gpu-id-step", e.gpu_id_step, kParallel,
       "From one rank's GPU to the next one's; 0: all ranks on one GPU (for tests)")
      ->check(CLI::NonNegativeNumber);
  Switch(app, "--disable-custom-all-reduce", e.disable_custom_all_reduce, kParallel,
         "GPUs: small sums through NCCL too");
  Switch(app, "--disable-cuda-graph", e.disable_cuda_graph, kParallel,
         "GPUs: launch every kernel of a decode step by itself");
  Flag(app, "--cuda-graph-max-bs", e.cuda_graph_max_bs, kParallel,
       "GPUs: most sequences of a decode step that is replayed as one graph; 0: "
       "--max-running-requests, at most 256")
      ->check(CLI::NonNegativeNumber);
  Flag(app, "--cpu-threads-per-rank", e.threads_per_rank, kParallel,
       "0: the CPUs that this process may run on, over the ranks")
      ->check(CLI::NonNegativeNumber);
  Flag(app, "--cpu-bind", e.cpu_bind, kParallel,
       "Which CPUs threads are pinned to: auto (each rank its part of those that this process may "
       "run on, and not of other servers; on GPUs none), none, or a list for each rank of this "
       "host, like 0-3|4-7 (SGLANG_CPU_OMP_THREADS_BIND)");
  Flag(app, "--cpu-isa", e.cpu_isa, kParallel,
       "auto (the best that there is), reference, avx2, avx512, amx; amx-emulated for tests");
  Flag(app, "--dist-timeout", e.dist_timeout_seconds, kParallel,
       "Seconds a rank waits for another before it gives up")
      ->check(CLI::Range(0.1, 1e6));
}

void AddMoeFlags(CLI::App& app, EngineConfig& e) {
  Flag(app, "--moe-a2a-backend", e.moe.a2a_backend, kMoe,
       "How tokens reach experts: none (all-reduce), deepep (all-to-all), or another name that "
       "`switchyard backends` lists");
  Flag(app, "--deepep-mode", e.moe.deepep_mode, kMoe,
       "normal, low_latency, or auto (normal for extend)")
      ->check(CLI::IsMember({"normal", "low_latency", "auto"}));
  Flag(
      app, "--moe-combine-rows", e.moe.combine_rows, kMoe,
      "deepep, mooncake: what returns to a token's rank: slot (each expert's output; the same bits "
      "wherever experts sit), or rank (one row from each rank, fewer bytes)")
      ->check(CLI::IsMember({"slot", "rank"}));
  Flag(app, "--num-max-dispatch-tokens-per-rank", e.moe.max_dispatch_tokens_per_rank, kMoe,
       "Capacity of low_latency; larger batches go in rounds")
      ->check(CLI::PositiveNumber);
  Flag(
      app, "--deepep-dispatcher-output-dtype", e.moe.dispatcher_output_dtype, kMoe,
      "What rows travel to the experts as: bf16 (--dtype), fp8 (with a scale for 128 elements), or "
      "auto (fp8 where the experts quantize their input so)")
      ->check(CLI::IsMember({"auto", "bf16", "fp8"}));
  Flag(app, "--deepep-normal-long-seq-per-round-tokens", e.moe.long_seq_per_round_tokens, kMoe,
       "Most tokens of a rank in one exchange of normal mode; longer batches go in rounds")
      ->check(CLI::PositiveNumber);
  Flag(app, "--deepep-normal-long-seq-round", e.moe.long_seq_rounds, kMoe,
       "Most such rounds; 0: as many as it takes")
      ->check(CLI::NonNegativeNumber);
  Switch(app, "--enable-deepep-waterfill,--enable-waterfill", e.moe.waterfill, kMoe,
         "Send the shared expert's rows to the least loaded ranks, as one more expert");
  Flag(app, "--ep-num-redundant-experts", e.moe.num_redundant_experts, kMoe,
       "Physical experts beyond the model's, for replicas")
      ->check(CLI::NonNegativeNumber);
  Flag(app, "--init-expert-location", e.moe.init_expert_location, kMoe,
       "Which expert sits where: trivial, or a JSON or safetensors file with "
       "physical_to_logical_map [layers, places] (`switchyard eplb plan --output`), or with "
       "logical_count, a recorded distribution for which --eplb-algorithm plans");
  EplbOptions& eplb = e.eplb;
  Flag(app, "--ep-dispatch-algorithm", eplb.dispatch, kMoe,
       "Which replica of an expert a token goes to: static (one for each rank), dynamic (any, at "
       "random), balanced (so that a batch loads the ranks evenly), lp (the same, exactly), fake "
       "(any expert: for benchmarks, outputs mean nothing)")
      ->check(CLI::IsMember({"static", "dynamic", "fake", "balanced", "lp"}));
  Switch(app, "--enable-eplb", eplb.enable, kMoe,
         "Move experts between ranks while they serve, so that ranks are loaded evenly");
  Flag(app, "--eplb-algorithm", eplb.algorithm, kMoe,
       "How experts are placed: auto is yard where --ep-dispatch-algorithm is balanced or lp, else "
       "deepseek")
      ->check(
          CLI::IsMember({"auto", "deepseek", "deepseek_hierarchical", "elasticity_aware", "yard"}));
  Flag(app, "--eplb-rebalance-num-iterations", eplb.num_iterations, kMoe,
       "Passes between two plans")
      ->check(CLI::PositiveNumber);
  Flag(app, "--eplb-rebalance-layers-per-chunk", eplb.layers_per_chunk, kMoe,
       "Layers that change at the same step, whose moving experts are held twice until then; -1: "
       "all that a plan changes");
  Flag(app, "--eplb-min-rebalancing-utilization-threshold", eplb.min_utilization, kMoe,
       "Nothing moves while the mean load of ranks is over this part of the fullest one's")
      ->check(CLI::Range(0.0, 1.0));
  Flag(app, "--eplb-watchdog-timeout", eplb.watchdog_seconds, kMoe,
       "Seconds without progress after which a plan or a move of experts is given up")
      ->check(CLI::PositiveNumber);
  ExpertRecorderOptions& recorder = e.recorder;
  Flag(
      app, "--expert-distribution-recorder-mode", recorder.mode, kMoe,
      "What POST /start_expert_distribution_record records: stat (tokens of each expert, by pass), "
      "stat_approx (by dispatched rows), per_pass (and by rank), per_token; empty: nothing")
      ->check(CLI::IsMember({"stat", "stat_approx", "per_pass", "per_token"}));
  Flag(app, "--expert-distribution-recorder-buffer-size", recorder.buffer_size, kMoe,
       "Passes that are kept, the last ones; -1: all");
  Flag(app, "--expert-distribution-recorder-dir", recorder.dir, kMoe,
       "Where POST /dump_expert_distribution_record leaves its file");
  Switch(app, "--enable-expert-distribution-metrics", recorder.metrics, kMoe,
         "Log how evenly each pass loads the ranks; counts at GET /expert_distribution and "
         "GET /metrics");
  Flag(app, "--elastic-ep-timeout", e.moe.elastic_timeout_seconds, kMoe,
       "Seconds that a rank may stay silent in one stage before --moe-a2a-backend mooncake goes on "
       "without it")
      ->check(CLI::Range(0.001, 86400.0));
  Flag(app, "--moe-runner-backend", e.moe.runner_backend, kMoe,
       "What computes the experts: auto, or a name that `switchyard backends` lists");
  Flag(app, "--speculative-moe-a2a-backend", e.moe.speculative_a2a_backend, kMoe,
       "--moe-a2a-backend of a draft model; empty: as the model's");
  Flag(app, "--speculative-moe-runner-backend", e.moe.speculative_runner_backend, kMoe,
       "--moe-runner-backend of a draft model; empty: as the model's");
}

void AddMemoryFlags(CLI::App& app, EngineConfig& e) {
  Flag(app, "--mem-fraction-static", e.mem_fraction_static, kMemory,
       "Share of this host's memory for weights and KV cache of all ranks")
      ->check(CLI::Range(0.01, 1.0));
  Flag(app, "--max-total-tokens", e.max_total_tokens, kMemory,
       "Tokens that the KV cache of each attention group holds; 0: what memory allows")
      ->check(CLI::NonNegativeNumber);
  Flag(app, "--page-size", e.page_size, kMemory,
       "Tokens of one KV page; prefixes are shared by whole pages")
      ->check(CLI::Range(1, 1024));
  Flag(app, "--max-running-requests", e.max_running_requests, kMemory,
       "Requests that run at once, of all attention groups; 0: 256")
      ->check(CLI::NonNegativeNumber);
  Flag(app, "--max-queued-requests", e.max_queued_requests, kMemory,
       "Open requests beyond the running ones before new ones get 429; 0: no limit")
      ->check(CLI::NonNegativeNumber);
  Flag(app, "--chunked-prefill-size", e.chunked_prefill_size, kMemory,
       "Most prompt tokens of one step, of all attention groups; -1: prompts are not cut; 0: 2048, "
       "on GPUs up to 8192 where their memory is large beside what so many take")
      ->check(CLI::Range(-1, 1 << 20));
  Switch(app, "--disable-radix-cache", e.disable_radix_cache, kMemory,
         "Do not reuse the prefixes of earlier requests");
}

void AddEngineFlags(CLI::App& app, ServerArgs& a) {
  EngineConfig& e = a.engine;
  ApplyMoeEnvironment(&e.moe);  // flags come after it
  e.cpu_bind = CpuBindOfEnvironment();
  AddModelFlags(app, a);
  AddParallelFlags(app, a);
  AddMoeFlags(app, e);
  AddMemoryFlags(app, e);
  Switch(app, "--check-batches", e.check_batches, kMisc,
         "Ranks compare every batch before they run it (slow)");
  Flag(app, "--random-seed", e.random_seed, kMisc,
       "Of requests without a seed, and of dummy weights");
  Flag(app, "--log-level", e.log_level, kMisc, "debug, info, warning or error")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}));
}

void AddServerFlags(CLI::App& app, ServerArgs& a) {
  Flag(app, "--nnodes", a.nnodes, kParallel,
       "Hosts of the engine; start serve on each, with the same flags and a --node-rank of its own")
      ->check(CLI::PositiveNumber);
  Flag(app, "--node-rank", a.node_rank, kParallel,
       "This host, 0 to nnodes - 1; host 0 answers HTTP")
      ->check(CLI::NonNegativeNumber);
  Flag(app, "--dist-init-addr,--nccl-init-addr", a.dist_init_addr, kParallel,
       "HOST:PORT of host 0, where the others meet it; ranks that mpirun or srun starts then talk "
       "TCP instead of MPI");
  Flag(app, "--host", a.host, kServer, "Address to listen on; 0.0.0.0 for all");
  Flag(app, "--port", a.port, kServer, "Port to listen on; 0: any free one")
      ->check(CLI::Range(0, 65535));
  Flag(app, "--api-key", a.api_key, kServer, "Clients must send it as a bearer token");
  Flag(app, "--served-model-name", a.served_model_name, kServer,
       "Name in /v1/models; default: the model path");
  Flag(app, "--max-body-mb", a.max_body_mb, kServer,
       "Largest request body in MiB; larger ones get 413")
      ->check(CLI::Range(1e-3, 1e6));
  Flag(app, "--stream-interval", a.stream_interval, kServer,
       "Tokens between two events of a stream")
      ->check(CLI::PositiveNumber);
  Flag(app, "--drain-timeout", a.drain_timeout_seconds, kServer,
       "Seconds that SIGTERM waits for running requests before they are aborted")
      ->check(CLI::NonNegativeNumber);
  Flag(app, "--verify-weights", a.verify_weights, kServer,
       "File of SHA-256 sums, as sha256sum writes it in the model's directory; all weights must be "
       "listed, and every listed file that the directory has must match");
  Switch(app, "--skip-server-warmup", a.skip_server_warmup, kServer,
         "Say ready without a first request of our own");
  Switch(app, "--log-requests", a.log_requests, kServer, "One log line a request");
}

// Flags of SGLang that mean nothing here and change no result; scripts that carry them keep
// working.
void AddIgnoredFlags(CLI::App& app, std::vector<std::string>& sink) {
  constexpr std::array kSwitches = {"--trust-remote-code", "--enable-metrics",
                                    "--disable-overlap-schedule", "--enable-dp-lm-head",
                                    "--enable-return-routed-experts"};
  for (const char* name : kSwitches) {
    app.add_flag_callback(
           name, [name, &sink] { sink.push_back(name); },
           "Accepted for SGLang's sake; without effect on CPUs")
        ->group("");
  }
}

void SetAttentionGroups(ServerArgs& a) {
  if (a.dp_size > 1 && !a.enable_dp_attention)
    throw Invalid(
        "--dp-size {0} without --enable-dp-attention asks for {0} replicas of the whole engine: "
        "start {0} servers behind a router, or add --enable-dp-attention",
        a.dp_size);
  a.engine.mesh.dp = a.dp_size;
}

// ParseWords with the engine's flags, for which a YAML file may stand too.
bool Parse(CLI::App& app, const std::vector<std::string>& args, ServerArgs& server) {
  std::vector<std::string> ignored;
  AddIgnoredFlags(app, ignored);
  std::string config_file;
  app.add_option("--config", config_file,
                 "YAML file of flags (names without the dashes); the command line overrides it")
      ->group(kMisc);
  if (!ParseWords(app, ExpandYamlConfig(args))) return false;
  for (const std::string& flag : ignored) LOG_INFO("{} has no effect here", flag);
  SetAttentionGroups(server);
  return true;
}

constexpr const char* kBenchHelp =
    R"(switchyard bench: what the program, or a part of it, takes on this machine

  switchyard bench one-batch --model-path DIR   prefill and decode of a model
  switchyard bench serve                        a load on a running server: latencies, throughput
  switchyard bench kernels                      products, experts, attention, small ops
  switchyard bench moe-layer                    one MoE layer: router, exchange, experts
  switchyard bench exchange                     collectives, dispatch and combine of rows
  switchyard bench roofline                     the machine's ceilings: memory, caches, arithmetic

Each answers --help. A line has the median time of one call, operations and bytes a second, and the part of
the roofline that this is, with the machine's ceilings measured in the same run.
)";

void AddBenchFlags(CLI::App& app, BenchArgs& a) {
  constexpr const char* kBench = "Benchmark";
  Flag(app, "--device", a.device, kBench,
       "What to measure: auto (cuda where a GPU is found), cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  Flag(app, "--filter", a.filter, kBench,
       "Only cases whose line begins with a name and shape that have this in them");
  Flag(app, "--json", a.json, kBench, "Also write the figures to this file");
  if (a.which != "roofline")
    Flag(app, "--cpu-isa", a.cpu_isa, kBench,
         "CPUs: auto, reference, avx2, avx512, amx; amx-emulated for tests");
  if (a.which == "kernels" || a.which == "roofline") {
    Flag(app, "--cpu-threads", a.threads, kBench, "CPUs: 0: all cores")
        ->check(CLI::NonNegativeNumber);
    Flag(app, "--base-gpu-id", a.base_gpu_id, kBench, "Which GPU")->check(CLI::NonNegativeNumber);
    return;
  }
  Flag(app, "--ranks,--tp", a.ranks, kBench,
       a.which == "exchange"
           ? "0: one for each GPU; on CPUs 2, then 4"
           : "Ranks, each with tokens of its own (EP is their number); 0: one for each GPU; on "
             "CPUs 2")
      ->check(CLI::Range(0, 64));
  app.add_option("--tokens", a.tokens,
                 a.which == "exchange"
                     ? "Tokens of each rank, several make several cases; default: 1 32 512 4096 "
                       "on CPUs, 8 128 1024 4096 on GPUs"
                     : "Tokens of each rank, several make several cases; default: 1 8 128 1024 on "
                       "CPUs, 8 128 1024 8192 on GPUs")
      ->group(kBench)
      ->check(CLI::Range(1, 1 << 20));
  if (a.which == "exchange") return;
  Flag(app, "--cpu-threads-per-rank", a.threads, kBench, "CPUs: 0: the cores over the ranks")
      ->check(CLI::NonNegativeNumber);
  Flag(app, "--model", a.model, kBench,
       "olmoe-1b-7b, qwen3-30b-a3b or deepseek-v3 (made-up weights of that shape); default: those "
       "that fit")
      ->check(CLI::IsMember({"olmoe-1b-7b", "qwen3-30b-a3b", "deepseek-v3"}));
  Flag(app, "--experts-per-rank", a.experts_per_rank, kBench,
       "0: on GPUs as many as one of 8 ranks has; on CPUs the model's over the ranks")
      ->check(CLI::NonNegativeNumber);
}

}  // namespace

std::optional<ServerArgs> ParseServe(const std::vector<std::string>& args) {
  ServerArgs a;
  CLI::App app("Serve a checkpoint over HTTP: OpenAI's API and SGLang's native one",
               "switchyard serve");
  AddEngineFlags(app, a);
  AddServerFlags(app, a);
  if (!Parse(app, args, a)) return std::nullopt;
  return a;
}

std::optional<GenerateArgs> ParseGenerate(const std::vector<std::string>& args) {
  GenerateArgs a;
  constexpr const char* kGenerate = "Generation";
  CLI::App app("Generate text without a server, printing as it comes", "switchyard generate");
  app.add_option("--prompt", a.prompts,
                 "Text to continue; may be given several times; - reads standard input")
      ->group(kGenerate)
      ->required();
  Switch(app, "--chat", a.chat, kGenerate,
         "Each prompt is a user's message, rendered by the chat template");
  Flag(app, "--max-new-tokens", a.max_new_tokens, kGenerate, "Most tokens to generate")
      ->check(CLI::PositiveNumber);
  Flag(app, "--temperature", a.temperature, kGenerate, "0: greedy")->check(CLI::NonNegativeNumber);
  Flag(app, "--top-p", a.top_p, kGenerate, "Nucleus sampling")->check(CLI::Range(0.0, 1.0));
  Flag(app, "--top-k", a.top_k, kGenerate, "-1: all tokens");
  app.add_option("--seed", a.seed, "Same seed, same tokens")->group(kGenerate);
  Switch(app, "--ignore-eos", a.ignore_eos, kGenerate, "Do not stop at the end-of-sequence token");
  AddEngineFlags(app, a.server);
  if (!Parse(app, args, a.server)) return std::nullopt;
  return a;
}

std::optional<ServerArgs> ParseBackends(const std::vector<std::string>& args) {
  ServerArgs a;
  CLI::App app(
      "Print which MoE backends pair with which on this machine, and with --model-path what the "
      "flags choose for that checkpoint, and why",
      "switchyard backends");
  AddEngineFlags(app, a);
  app.get_option("--model-path")->required(false);
  if (!Parse(app, args, a)) return std::nullopt;
  return a;
}

std::optional<OneBatchArgs> ParseOneBatch(const std::vector<std::string>& args) {
  OneBatchArgs a;
  constexpr const char* kBench = "Benchmark";
  CLI::App app("Time prefill and decode of one batch of equal requests",
               "switchyard bench one-batch");
  app.add_option("--batch-size,--batch", a.batch_sizes,
                 "Requests of a batch; several values make several runs")
      ->group(kBench)
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--input-len,--input", a.input_lengths, "Prompt tokens of each request")
      ->group(kBench)
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  Flag(app, "--output-len,--output", a.output_length, kBench, "Tokens decoded after the prompt")
      ->check(CLI::Range(2, 1 << 20));
  Flag(app, "--repeat", a.repeat, kBench, "Runs of each case; medians are printed")
      ->check(CLI::PositiveNumber);
  Flag(app, "--json", a.json, kBench, "Also write the figures to this file");
  AddEngineFlags(app, a.server);
  if (!Parse(app, args, a.server)) return std::nullopt;
  return a;
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
      {"kernels", "Time products, experts and attention; on GPUs the small ops too"},
      {"moe-layer", "Time one MoE layer with made-up weights: router, exchange, experts"},
      {"exchange", "Time collectives, and dispatch and combine of rows between ranks"},
      {"roofline", "Measure what memory, caches and instructions of this machine give at best"}};
  const auto summary = summaries.find(which);
  if (summary == summaries.end())
    throw Invalid("bench {}: want one-batch, serve, kernels, moe-layer, exchange or roofline",
                  which);
  CLI::App app(summary->second, "switchyard bench " + which);
  AddBenchFlags(app, a);
  if (!ParseWords(app, args)) return std::nullopt;
  return a;
}

}  // namespace switchyard
