#include "server/args/args.h"

#include "core/command_line.h"
#include "core/error.h"
#include "core/log.h"
#include "engine/cpu_binding.h"
#include "grammar/source.h"
#include "moe/dispatchers/environment.h"
#include "server/args/command_words.h"
#include "server/args/elastic_args.h"
#include "server/args/feature_args.h"
#include "server/args/settle_args.h"

namespace switchyard {
namespace {

constexpr const char* kModel = "Model";
constexpr const char* kServer = "HTTP server";
constexpr const char* kParallel = "Parallelism";
constexpr const char* kMoe = "Mixture of experts";
constexpr const char* kMemory = "Memory and scheduling";
constexpr const char* kMisc = "Miscellaneous";

void AddModelFlags(CommandLine& app, ServerArgs& a) {
  EngineConfig& e = a.engine;
  app.Option("--model-path,--model", e.model_path,
             "Hugging Face checkpoint directory or id in the hub cache, or GGUF file")
      .Group(kModel)
      .Required()
      .TakeLast();
  app.Flag("--tokenizer-path", a.tokenizer_path, kModel,
           "Directory or GGUF file of the tokenizer; default: --model-path");
  app.Flag("--revision", a.revision, kModel, "Branch, tag or commit, if --model-path is a hub id");
  app.Flag("--download-dir", a.download_dir, kModel,
           "Hub cache; default: HF_HUB_CACHE, or HF_HOME/hub");
  app.Flag("--load-format", e.load_format, kModel,
           "auto, safetensors, or dummy (random weights in the shapes of config.json)")
      .OneOf({"auto", "safetensors", "dummy"});
  app.Flag("--json-model-override-args", e.model_override_args, kModel,
           "JSON object whose keys replace config.json's");
  app.Flag("--quantization", e.quantization.method, kModel,
           "Quantizes the linear layers of an unquantized checkpoint during loading: fp8, "
           "w8a8_fp8, w8a8_int8, int4, w4afp8, mxfp4 or nvfp4. If the checkpoint is already "
           "quantized, the name must match its format");
  app.Flag("--quantization-config", e.quantization.rules, kModel,
           "JSON text or file: formats by module name, which override --quantization; CPUs only");
  app.Flag("--quantize-activations", e.quantization.activations, kModel,
           "Format of activations in matrix products. never: float32. always: rounded as on GPUs "
           "(FP8, int8, bfloat16). auto: int8 if the checkpoint has int8 activations; on CPUs with "
           "--dtype auto or bfloat16, int8 for 4-bit weights, and bfloat16 for bfloat16 weights if "
           "the CPU has AVX512_BF16 or AMX, and for FP8 weights on AMD's with AVX512_BF16; float32 "
           "in all other cases")
      .OneOf({"auto", "always", "never"});
  app.Flag(
         "--cpu-weight-layout", e.quantization.layout, kModel,
         "Layout of weights that a safetensors checkpoint stores in 4 bits, on CPUs. panels: each "
         "rank packs a copy in the order in which kernels read it. stored: the mapped files, "
         "which ranks share. auto: panels if activations are int8, but stored with "
         "--elastic-ep-backend or --spare-ranks")
      .OneOf({"auto", "panels", "stored"});
  app.Flag(
         "--dtype", e.dtype, kModel,
         "Format of token rows between ranks: auto (the checkpoint's), float32, bfloat16, float16")
      .OneOf({"auto", "float32", "bfloat16", "float16", "half", "float"});
  app.Flag("--kv-cache-dtype", e.kv_cache_dtype, kModel,
           "Format of the KV cache. auto: bfloat16 if activations are rounded to bfloat16, else "
           "float32. GPUs round them unless --dtype is float32. fp8_e4m3: with the checkpoint's "
           "k_scale and v_scale, else scale 1. int8, on CPUs only: one scale per token and head")
      .OneOf({"auto", "float32", "bfloat16", "bf16", "float16", "fp8_e4m3", "int8"});
  app.Flag("--context-length", e.context_length, kModel,
           "Maximum number of prompt and output tokens; 0: the model's")
      .NonNegative();
  app.Switch("--is-embedding", e.pooling.is_embedding, kModel,
             "Serves embeddings instead of text. Set automatically for checkpoints with "
             "sentence-transformers' modules.json, and for architectures ...Model; classifiers "
             "(...ForSequenceClassification) need no flag");
  app.Flag("--pooler-config,--override-pooler-config", e.pooling.pooler_config, kModel,
           "JSON object that overrides the checkpoint's pooling: pooling_type LAST or MEAN, and "
           "normalize true or false (vLLM)");
  app.Flag("--chat-template", a.chat_template, kModel,
           "Jinja file that replaces the checkpoint's chat template");
}

void AddParallelFlags(CommandLine& app, ServerArgs& a) {
  EngineConfig& e = a.engine;
  app.Flag("--tp-size,--tp,--tensor-parallel-size", e.mesh.tp, kParallel,
           "Number of ranks (with --pp-size: of each pipeline stage)");
  app.Flag("--ep-size,--ep,--expert-parallel-size", e.mesh.ep, kParallel,
           "Expert-parallel ranks, a divisor of --tp-size; each expert is sharded over tp / ep "
           "ranks (MoE-TP)");
  app.Flag("--dp-size,--dp,--data-parallel-size", a.dp_size, kParallel,
           "Attention groups of tp / dp ranks, each with its own requests and KV cache; a divisor "
           "of --tp-size; needs --enable-dp-attention")
      .Positive();
  app.Switch("--enable-dp-attention", a.enable_dp_attention, kParallel,
             "Data parallelism for attention; tensor and expert parallelism for the other layers");
  AddPipelineFlags(app, e, kParallel);
  app.Flag("--load-balance-method", e.load_balance_method, kParallel,
           "Selects the attention group of a request: cache_aware (has computed the longest prefix "
           "of the prompt, unless it has too many open requests), round_robin, total_requests "
           "(fewest open requests), total_tokens (fewest tokens of open requests), or auto "
           "(cache_aware; with --disable-radix-cache, round_robin)")
      .OneOf({"auto", "cache_aware", "round_robin", "total_requests", "total_tokens"});
  app.Flag("--moe-dense-tp-size", e.mesh.dense_tp, kParallel,
           "Number of ranks that shard a dense feed-forward layer. 1: each rank holds the whole "
           "layer and computes its own tokens; each attention group shards the head. 0: --tp-size")
      .NonNegative();
  AddExpertRankFlags(app, a, kParallel);
  app.Flag("--device", e.device, kParallel,
           "Device of the ranks: auto (cuda if there is a GPU), cpu, cuda or cuda,cpu (experts on "
           "CPUs)")
      .OneOf({"auto", "cpu", "cuda", "cuda,cpu"});
  app.Flag("--base-gpu-id", e.base_gpu_id, kParallel, "GPU of the first rank on this host")
      .NonNegative();
  app.Flag("--gpu-id-step", e.gpu_id_step, kParallel,
           "GPU index difference between consecutive ranks; 0: all ranks on one GPU (for tests)")
      .NonNegative();
  app.Switch("--disable-custom-all-reduce", e.disable_custom_all_reduce, kParallel,
             "GPUs: use NCCL for small all-reduces too");
  app.Switch("--disable-cuda-graph", e.disable_cuda_graph, kParallel,
             "GPUs: launch each kernel of a decode step separately");
  app.Flag("--cuda-graph-max-bs", e.cuda_graph_max_bs, kParallel,
           "GPUs: maximum number of sequences in a decode step that runs as a CUDA graph; 0: "
           "--max-running-requests, at most 256")
      .NonNegative();
  app.Flag("--cpu-threads-per-rank", e.threads_per_rank, kParallel,
           "Compute threads per rank; 0: the CPUs available to this process, divided by the ranks")
      .NonNegative();
  app.Flag("--cpu-bind", e.cpu_bind, kParallel,
           "CPU pinning of threads. auto: each rank gets a part of this process's CPUs, except "
           "those that another server has claimed; no pinning on GPUs. none: no pinning. Or one "
           "list per rank of this host, like 0-3|4-7 (SGLANG_CPU_OMP_THREADS_BIND)");
  app.Flag("--cpu-isa", e.cpu_isa, kParallel,
           "Instruction set: auto (the best of this CPU), reference, avx2, avx512, amx; "
           "amx-emulated for tests");
  app.Flag("--dist-timeout", e.dist_timeout_seconds, kParallel,
           "Timeout in seconds of a rank that waits for another rank. Also limits the time without "
           "progress of a rank that loads while others serve (--elastic-ep-backend)")
      .Range(0.1, 1e6);
  app.Flag("--watchdog-timeout", e.watchdog_timeout_seconds, kParallel,
           "Seconds without a heartbeat after which a rank is killed. Then the ranks restart. With "
           "--disable-elastic-ep, --pp-size or several nodes, the server instead ends with an "
           "error that names the rank. /health returns 503 after half of that time, at most 20 s")
      .Range(3.0, 1e6);
}

void AddMoeFlags(CommandLine& app, EngineConfig& e) {
  app.Flag("--moe-a2a-backend", e.moe.a2a_backend, kMoe,
           "Exchange of token rows with the experts: none (all-reduce), deepep (all-to-all), or "
           "another name from `switchyard backends`");
  app.Flag("--deepep-mode", e.moe.deepep_mode, kMoe,
           "normal, low_latency, or auto (normal for prefill, low_latency for decode)")
      .OneOf({"normal", "low_latency", "auto"});
  app.Flag("--moe-combine-rows", e.moe.combine_rows, kMoe,
           "deepep and mooncake: rows that return to a token's rank. slot: one per expert, bitwise "
           "independent of placement. rank: one per rank, fewer bytes")
      .OneOf({"slot", "rank"});
  app.Flag("--num-max-dispatch-tokens-per-rank", e.moe.max_dispatch_tokens_per_rank, kMoe,
           "Capacity of low_latency in tokens; larger batches take several rounds")
      .Positive();
  app.Flag("--deepep-dispatcher-output-dtype", e.moe.dispatcher_output_dtype, kMoe,
           "Format of dispatched rows: bf16 (--dtype), fp8 (one scale per 128 elements), or auto "
           "(fp8 if the experts quantize their input to FP8)")
      .OneOf({"auto", "bf16", "fp8"});
  app.Flag("--deepep-normal-long-seq-per-round-tokens", e.moe.long_seq_per_round_tokens, kMoe,
           "Maximum tokens per rank in one exchange of normal mode; longer batches take several "
           "rounds")
      .Positive();
  app.Flag("--deepep-normal-long-seq-round", e.moe.long_seq_rounds, kMoe,
           "Maximum number of rounds of --deepep-normal-long-seq-per-round-tokens; 0: no limit")
      .NonNegative();
  app.Switch(
      "--enable-deepep-waterfill,--enable-waterfill", e.moe.waterfill, kMoe,
      "Dispatches the shared expert's rows to the least loaded ranks, as one more routed expert");
  app.Switch("--enable-two-batch-overlap,--enable-tbo", e.two_batch_overlap, kMoe,
             "Two-batch overlap: each batch runs as two micro-batches, which hide each other's "
             "exchange of token rows. Outputs stay bitwise equal");
  app.Flag("--tbo-min-tokens", e.tbo_min_tokens, kMoe,
           "Two-batch overlap: minimum tokens of a batch, summed over attention groups; smaller "
           "batches are not split. -1: 2 on CPUs; on GPUs the number that gives each expert 256 "
           "tokens per micro-batch. With fewer tokens, reading weights takes most of the time, and "
           "two micro-batches read the weights twice")
      .Range(-1, 1 << 30);
  app.Switch(
      "--enable-single-batch-overlap", e.moe.single_batch_overlap, kMoe,
      "Single-batch overlap: outputs of some experts return while the down projection of "
      "others is computed, with deepep, flashinfer and mooncake. Outputs stay bitwise equal");
  app.Flag("--tbo-token-distribution-threshold", e.tbo_threshold, kMoe,
           "Splits a prefill batch between two requests if both parts have at least this fraction "
           "of the tokens, else within a request; 0.5 or more: always at the middle")
      .Range(0.0, 1.0);
  app.Flag("--ep-num-redundant-experts", e.moe.num_redundant_experts, kMoe,
           "Number of expert replicas in addition to the model's experts")
      .NonNegative();
  app.Flag(
      "--init-expert-location", e.moe.init_expert_location, kMoe,
      "Placement of experts at startup: trivial, or JSON text, or a JSON, safetensors or PyTorch "
      "(.pt) file. It contains either a placement (physical_to_logical_map [layers, slots]), or "
      "recorded loads (logical_count), from which --eplb-algorithm plans a placement");
  EplbOptions& eplb = e.eplb;
  app.Flag("--ep-dispatch-algorithm", eplb.dispatch, kMoe,
           "Selects an expert's replica for a token: static (fixed per rank), dynamic (random), "
           "balanced (balances each batch over ranks), lp (balances optimally), fake (a random "
           "expert, for benchmarks only)")
      .OneOf({"static", "dynamic", "fake", "balanced", "lp"});
  app.Switch("--enable-eplb", eplb.enable, kMoe, "Rebalances experts over ranks while serving");
  app.Flag("--eplb-algorithm", eplb.algorithm, kMoe,
           "Placement algorithm. auto: yard if --ep-dispatch-algorithm is balanced or lp, or if "
           "ranks have unequal slots or costs; else deepseek")
      .OneOf({"auto", "deepseek", "deepseek_hierarchical", "elasticity_aware", "yard"});
  app.Flag("--eplb-rebalance-num-iterations", eplb.num_iterations, kMoe,
           "Forward passes between two rebalances")
      .Positive();
  app.Flag("--eplb-rebalance-layers-per-chunk", eplb.layers_per_chunk, kMoe,
           "Number of layers that switch to the new placement in the same step. Until then, ranks "
           "hold the old and the new experts of these layers. -1: all layers of the plan");
  app.Flag("--eplb-min-rebalancing-utilization-threshold", eplb.min_utilization, kMoe,
           "Skips a rebalance if the mean load of the ranks divided by the maximum exceeds this")
      .Range(0.0, 1.0);
  app.Flag("--eplb-watchdog-timeout", eplb.watchdog_seconds, kMoe,
           "Seconds without progress after which a plan or a migration is abandoned")
      .Positive();
  ExpertRecorderOptions& recorder = e.recorder;
  app.Flag("--expert-distribution-recorder-mode", recorder.mode, kMoe,
           "Data that POST /start_expert_distribution_record records: stat (tokens per expert and "
           "pass), stat_approx (from dispatched rows), per_pass (also per rank), per_token; empty: "
           "none")
      .OneOf({"stat", "stat_approx", "per_pass", "per_token"});
  app.Flag("--expert-distribution-recorder-buffer-size", recorder.buffer_size, kMoe,
           "Number of most recent passes to keep; -1: all");
  app.Flag("--expert-distribution-recorder-dir", recorder.dir, kMoe,
           "Directory of the files that POST /dump_expert_distribution_record writes");
  app.Switch(
      "--enable-expert-distribution-metrics", recorder.metrics, kMoe,
      "Logs the balancedness of each pass; adds counts to GET /expert_distribution and /metrics");
  app.Flag("--elastic-ep-timeout", e.moe.elastic_timeout_seconds, kMoe,
           "Timeout in seconds of one exchange stage, after which mooncake continues without the "
           "missing rank")
      .Range(0.001, 86400.0);
  app.Flag("--moe-runner-backend", e.moe.runner_backend, kMoe,
           "Computation of the experts: auto, or a name from `switchyard backends`");
}

void AddMemoryFlags(CommandLine& app, EngineConfig& e) {
  app.Flag(
         "--mem-fraction-static", e.mem_fraction_static, kMemory,
         "Fraction of this host's memory, or of each GPU's, for weights and KV cache of its ranks")
      .Range(0.01, 1.0);
  app.Flag("--max-total-tokens", e.max_total_tokens, kMemory,
           "Token capacity of the KV cache of each attention group; 0: from the available memory")
      .NonNegative();
  app.Flag("--page-size", e.page_size, kMemory,
           "Tokens per KV page; prefixes are shared in whole pages")
      .Range(1, 1024);
  app.Flag("--max-running-requests", e.max_running_requests, kMemory,
           "Maximum number of concurrently running requests of all attention groups; 0: 256")
      .NonNegative();
  app.Flag("--max-queued-requests", e.max_queued_requests, kMemory,
           "Maximum number of waiting requests; further requests get status 429. 0: no limit; -1: "
           "16 times the maximum number of running requests")
      .Range(-1, 1 << 30);
  app.Flag("--chunked-prefill-size", e.chunked_prefill_size, kMemory,
           "Maximum prompt tokens per step of all attention groups; -1: no chunking; 0: 2048, or "
           "up to 8192 on GPUs with enough free memory")
      .Range(-1, 1 << 20);
  app.Flag("--max-prefill-tokens", e.max_prefill_tokens, kMemory,
           "Additional limit on the prompt tokens of a step; 0: none. With --chunked-prefill-size "
           "-1, several prompts run in one step up to this number of tokens")
      .Range(0, 1 << 20);
  app.Flag("--schedule-policy", e.schedule_policy, kMemory,
           "Order of waiting requests: fcfs (arrival), lpm (longest cached prefix), dfs-weight "
           "(depth-first in the prefix tree, heaviest subtree first), lof (largest "
           "max_new_tokens), random")
      .OneOf({"fcfs", "lpm", "dfs-weight", "lof", "random"});
  app.Flag(
         "--schedule-conservativeness", e.schedule_conservativeness, kMemory,
         "Factor on the cache space that admission reserves for future tokens of running requests")
      .Range(0.0, 1e3);
  app.Flag("--target-step-ms", e.target_step_ms, kMemory,
           "Target time in milliseconds of a step with decoding requests; prompt chunks are "
           "shortened to fit. -1: the time of 8 decode steps, limited to the range 25 to 50 ms, "
           "but at least the time of 2 decode steps; no target with --pp-size. 0: no target");
  app.Switch("--enable-priority-scheduling", e.priority_scheduling, kMemory,
             "Admits requests of higher `priority` first, and preempts running requests of lower "
             "priority");
  app.Flag(
      "--priority-scheduling-preemption-threshold", e.preemption_threshold, kMemory,
      "A waiting request preempts a running one only if its priority is higher by more than this");
  app.Switch("--disable-overlap-schedule", e.disable_overlap_schedule, kMemory,
             "Plans a step only after the previous step has ended. By default a GPU computes a "
             "step while the next step is planned and outputs are sent");
  app.Switch("--disable-radix-cache", e.disable_radix_cache, kMemory,
             "Disables the reuse of cached prefixes");
}

void AddEngineFlags(CommandLine& app, ServerArgs& a) {
  EngineConfig& e = a.engine;
  ApplyMoeEnvironment(&e.moe);  // flags override the environment
  e.cpu_bind = CpuBindOfEnvironment();
  AddModelFlags(app, a);
  AddParallelFlags(app, a);
  AddMoeFlags(app, e);
  AddSpeculativeFlags(app, e);
  AddMemoryFlags(app, e);
  app.Switch("--check-batches", e.check_batches, kMisc,
             "Compares the batches of all ranks before each step (slow)");
  app.Flag("--decode-log-interval", e.decode_log_interval, kMisc,
           "Decode steps between log lines about load and throughput; 0: no log lines")
      .NonNegative();
  app.Flag("--random-seed", e.random_seed, kMisc,
           "Seed of requests without a seed, and of dummy weights");
  app.Flag("--log-level", e.log_level, kMisc, "debug, info, warning or error")
      .OneOf({"debug", "info", "warning", "error"});
}

void AddServerFlags(CommandLine& app, ServerArgs& a) {
  app.Flag("--nnodes", a.nnodes, kParallel,
           "Number of hosts; start serve on each with the same flags and its --node-rank")
      .Positive();
  app.Flag("--node-rank", a.node_rank, kParallel,
           "Index of this host, 0 to nnodes - 1; host 0 serves HTTP")
      .NonNegative();
  app.Flag("--dist-init-addr,--nccl-init-addr", a.dist_init_addr, kParallel,
           "HOST:PORT of host 0 for the rendezvous. Ranks started by mpirun or srun then use TCP "
           "instead of MPI");
  app.Flag(
      "--dist-secret-file", a.dist_secret_file, kParallel,
      "File with a secret of at least 16 bytes, equal on all hosts, for mutual authentication. "
      "Without it, any host that reaches --dist-init-addr can join or end the engine");
  app.Switch("--require-dist-secret", a.require_dist_secret, kParallel,
             "Refuses to start on several hosts without --dist-secret-file");
  AddElasticFlags(app, a, kParallel);
  AddCpuExpertsFlag(app, a, kParallel);
  AddDisaggregationFlags(app, a);
  app.Flag("--host", a.host, kServer, "Address to listen on; 0.0.0.0 for all");
  app.Flag("--port", a.port, kServer, "Port to listen on; 0: any free port").Range(0, 65535);
  AddHttpFlags(app, a.http);
  app.Flag("--served-model-name", a.served_model_name, kServer,
           "Model name in /v1/models; default: --model-path");
  AddParserFlags(app, a, kServer);
  app.Flag("--max-body-mb", a.max_body_mb, kServer,
           "Maximum request body in MiB; larger ones get 413")
      .Range(1e-3, 1e6);
  app.Flag("--stream-interval", a.stream_interval, kServer, "Tokens between two events of a stream")
      .Positive();
  app.Flag("--drain-timeout", a.drain_timeout_seconds, kServer,
           "Seconds after SIGTERM until running requests are aborted")
      .NonNegative();
  app.Switch("--stream-output,--incremental-streaming-output", a.stream_output, kServer,
             "/generate streams send only new output in each event, not the whole output so far");
  app.Flag("--grammar-backend", a.grammar_backend, kServer,
           "Library that constrains outputs to grammars (response_format, json_schema, regex, "
           "ebnf, …): xgrammar, or none to refuse such requests")
      .OneOf({"xgrammar", "none"});
  app.Flag("--constrained-json-whitespace-pattern", a.json_whitespace, kServer,
           "White space in constrained JSON: \"[ \\n\\r\\t]*\" (any), or \"\" (none)");
  app.Switch(
      "--constrained-json-disable-any-whitespace", a.json_disable_any_whitespace, kServer,
      "Constrained JSON has \", \" and \": \" as Python writes them, and no other white space");
  app.Flag("--weight-version", a.weight_version, kServer,
           "Name of the weights, returned by /generate and /model_info");
  app.Switch("--schedule-low-priority-values-first", a.low_priority_values_first, kMemory,
             "Lower values of `priority` first (needs --enable-priority-scheduling)");
  app.Flag("--verify-weights", a.verify_weights, kServer,
           "File of SHA-256 sums in the format of sha256sum, with paths relative to the model's "
           "directory. All weight files must be listed; all listed files that exist must match");
  app.Switch("--skip-server-warmup", a.skip_server_warmup, kServer,
             "Skips the warm-up request before the server is ready");
  AddObserveFlags(app, a.observe);
  app.Switch("--print-schedule", a.print_schedule, kMisc,
             "Prints the operations of a prefill step and of a decode step, and exits");
  app.Switch("--dry-run", a.dry_run, kMisc,
             "Checks flags, checkpoint and memory of this host, prints the layout, and exits. "
             "--device cuda needs no GPU then, but GPU memory is checked only if there is one");
}

// Adds alternative and older names of SGLang's flags.
void AddSglangSpellings(CommandLine& app, ServerArgs& a) {
  app.Switch("--enable-ep-moe", a.enable_ep_moe, "", "Older form of --ep-size equal to --tp-size");
  app.Switch("--enable-deepep-moe", a.enable_deepep_moe, "",
             "Older form of --moe-a2a-backend deepep with --ep-size equal to --tp-size");
}

// Parses the engine's flags with ParseWords, from the command line and a YAML file.
bool Parse(CommandLine& app, const std::vector<std::string>& args, ServerArgs& server) {
  TakenFlags taken;
  AddSglangFlags(app, &taken);
  AddSglangSpellings(app, server);
  std::string config_file;
  app.Option("--config", config_file,
             "YAML file of flags (names without the dashes); the command line overrides it")
      .Group(kMisc);
  std::vector<std::string> words = ExpandYamlConfig(args);
  std::vector<std::string> from_file(words.begin(), words.end() - std::ssize(args));
  CompleteFlags(app, &from_file);
  RefuseUnknownFlags(app, ConfigPath(args), from_file, {});
  const bool older = HasMaxMicroBatchSize(words);
  if (!ParseWords(app, std::move(words))) return false;
  if (older) SettleMaxMicroBatchSize(server.engine, &taken);
  SettleArgs(app, &server);
  if (server.low_priority_values_first && !server.engine.priority_scheduling)
    throw Invalid("--schedule-low-priority-values-first needs --enable-priority-scheduling");
  NoteWithoutEffect(server.engine.moe, &taken);
  for (const std::string& line : taken.without_effect) LOG_INFO("{}", line);
  server.without_effect = std::move(taken.without_effect);
  return true;
}

}  // namespace

std::optional<ServerArgs> ParseServe(const std::vector<std::string>& args) {
  ServerArgs a;
  CommandLine app("Serve a checkpoint over HTTP: OpenAI's API and SGLang's native one",
                  "switchyard serve");
  AddEngineFlags(app, a);
  AddServerFlags(app, a);
  if (!Parse(app, args, a)) return std::nullopt;
  CheckDisaggregationFlags(app, a);
  CheckObserveFlags(app, a.observe);
  for (const char* flag : {"--enable-elastic-ep", "--elastic-ep-backend", "--spare-ranks",
                           "--max-rank-deaths", "--rank-stall-timeout"}) {
    if (app.Given(flag)) a.restart_flags.emplace_back(flag);
  }
  DeathLimit::Parse(a.max_rank_deaths);
  if (!JsonSpaceOfPattern(a.json_whitespace))
    throw Invalid("--constrained-json-whitespace-pattern {} is not supported: want \"{}\" or \"\"",
                  a.json_whitespace, kAnyJsonSpace);
  return a;
}

std::optional<GenerateArgs> ParseGenerate(const std::vector<std::string>& args) {
  GenerateArgs a;
  constexpr const char* kGenerate = "Generation";
  CommandLine app("Generate text without a server and print it while it is generated",
                  "switchyard generate");
  app.Option("--prompt", a.prompts, "Text to continue; may be repeated; - reads standard input")
      .Group(kGenerate)
      .Required();
  app.Switch("--chat", a.chat, kGenerate,
             "Treats each prompt as a user message and applies the chat template");
  app.Flag("--max-new-tokens", a.max_new_tokens, kGenerate, "Maximum number of tokens to generate")
      .Positive();
  app.Flag("--temperature", a.temperature, kGenerate, "Sampling temperature; 0: greedy")
      .NonNegative();
  app.Flag("--top-p", a.top_p, kGenerate, "Cumulative probability of nucleus sampling")
      .Range(0.0, 1.0);
  app.Flag("--top-k", a.top_k, kGenerate, "Number of most probable tokens to sample from; -1: all");
  app.Option("--seed", a.seed, "Sampling seed; equal seeds give equal tokens").Group(kGenerate);
  app.Switch("--ignore-eos", a.ignore_eos, kGenerate, "Continues after the end-of-sequence token");
  AddEngineFlags(app, a.server);
  if (!Parse(app, args, a.server)) return std::nullopt;
  return a;
}

std::optional<BackendsArgs> ParseBackends(const std::vector<std::string>& args) {
  BackendsArgs a;
  CommandLine app(
      "Print which MoE backends can be combined on this machine. With --model-path, also print "
      "which ones the flags select for that checkpoint, and why",
      "switchyard backends");
  app.Switch("--markdown", a.markdown, kMisc,
             "Print instead the table of docs/features.md: features by device and hosts");
  app.Switch("--models", a.models, kMisc,
             "Print instead the table of docs/models.md: families of models and their support");
  AddEngineFlags(app, a.server);
  app.SetRequired("--model-path", false);
  if (!Parse(app, args, a.server)) return std::nullopt;
  return a;
}

std::optional<OneBatchArgs> ParseOneBatch(const std::vector<std::string>& args) {
  OneBatchArgs a;
  CommandLine app("Time steps of one batch of equal requests", "switchyard bench one-batch");
  AddOneBatchFlags(app, a);
  AddEngineFlags(app, a.server);
  if (!Parse(app, args, a.server)) return std::nullopt;
  a.profile = app.Given("--profile");
  return a;
}

}  // namespace switchyard
