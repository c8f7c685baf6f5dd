#include "server/args/args.h"

#include "core/command_line.h"
#include "core/error.h"
#include "core/log.h"
#include "engine/cpu_binding.h"
#include "moe/environment.h"
#include "server/args/known_flags.h"
#include "server/args/parse_words.h"
#include "server/args/settle_args.h"
#include "server/args/sglang_flags.h"
#include "server/args/yaml_config.h"

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
             "Checkpoint directory (Hugging Face layout), or the id of one in the hub's cache "
             "(HF_HUB_CACHE, HF_HOME)")
      .Group(kModel)
      .Required()
      .TakeLast();
  app.Flag("--tokenizer-path", a.tokenizer_path, kModel,
           "Directory of tokenizer.json; default: the model's");
  app.Flag("--revision", a.revision, kModel,
           "Branch, tag or commit of a checkpoint that is named by its hub id");
  app.Flag("--download-dir", a.download_dir, kModel,
           "The hub's cache; default: HF_HUB_CACHE, or hub in HF_HOME");
  app.Flag("--load-format", e.load_format, kModel,
           "auto, safetensors, or dummy (weights made up from config.json)")
      .OneOf({"auto", "safetensors", "dummy"});
  app.Flag("--json-model-override-args", e.model_override_args, kModel,
           "JSON object whose keys replace config.json's");
  app.Flag(
      "--quantization", e.quantization.method, kModel,
      "Format that a plain checkpoint's linears get while they load (fp8, w8a8_fp8, w8a8_int8, "
      "int4, "
      "w4afp8, mxfp4, nvfp4); of one that is quantized, the name it must have");
  app.Flag("--quantize-activations", e.quantization.activations, kModel,
           "Rounds the rows that linears multiply. auto: to int8 where the checkpoint was made for "
           "it, "
           "to bfloat16 for weights in bfloat16 where the CPU multiplies such pairs (AVX512_BF16, "
           "AMX) "
           "unless --dtype is float32 or float16; always: as GPUs compute with the weights (FP8, "
           "int8, "
           "on CPUs "
           "also bfloat16); never: float32")
      .OneOf({"auto", "always", "never"});
  app.Flag("--dtype", e.dtype, kModel,
           "Of activations in flight: auto (the checkpoint's), float32, bfloat16, float16")
      .OneOf({"auto", "float32", "bfloat16", "float16", "half", "float"});
  app.Flag(
         "--kv-cache-dtype", e.kv_cache_dtype, kModel,
         "Of the KV cache: auto (as exact as the arithmetic: bfloat16 where rows are rounded to "
         "it, "
         "see --quantize-activations, on GPUs unless --dtype is float32; else float32), float32, "
         "bfloat16, float16; on CPUs fp8_e4m3 (scale 1) and int8 (a scale for each token and head)")
      .OneOf({"auto", "float32", "bfloat16", "bf16", "float16", "fp8_e4m3", "int8"});
  app.Flag("--context-length", e.context_length, kModel,
           "Longest prompt plus output; 0: the model's")
      .NonNegative();
  app.Flag("--chat-template", a.chat_template, kModel,
           "Jinja file that replaces the checkpoint's chat template");
}

void AddParallelFlags(CommandLine& app, ServerArgs& a) {
  EngineConfig& e = a.engine;
  app.Flag("--tp-size,--tp,--tensor-parallel-size", e.mesh.tp, kParallel, "Ranks of the engine");
  app.Flag("--ep-size,--ep,--expert-parallel-size", e.mesh.ep, kParallel,
           "Expert-parallel ranks; divides --tp-size, the rest splits each expert (MoE-TP)");
  app.Flag("--dp-size,--dp,--data-parallel-size", a.dp_size, kParallel,
           "Attention groups of tp / dp ranks, each with requests and a cache of its own; divides "
           "--tp-size and needs --enable-dp-attention")
      .Positive();
  app.Switch("--enable-dp-attention", a.enable_dp_attention, kParallel,
             "Data parallelism for attention, tensor and expert parallelism for the rest");
  app.Flag("--load-balance-method", e.load_balance_method, kParallel,
           "Which attention group takes a request: round_robin, total_requests (fewest open), "
           "total_tokens (fewest of open requests), or auto (round_robin)")
      .OneOf({"auto", "round_robin", "total_requests", "total_tokens"});
  app.Flag(
         "--moe-dense-tp-size", e.mesh.dense_tp, kParallel,
         "Ranks that share a dense feed-forward: 1 (each has it whole, for tokens of its own; the "
         "head is then shared by an attention group), or 0 for --tp-size")
      .NonNegative();
  app.Flag("--device", e.device, kParallel,
           "What ranks compute on: auto (cuda where a GPU is found), cpu or cuda")
      .OneOf({"auto", "cpu", "cuda"});
  app.Flag("--base-gpu-id", e.base_gpu_id, kParallel, "GPU of this host's first rank")
      .NonNegative();
  app.Flag("--gpu-id-step", e.gpu_id_step, kParallel,
           "From one rank's GPU to the next one's; 0: all ranks on one GPU (for tests)")
      .NonNegative();
  app.Switch("--disable-custom-all-reduce", e.disable_custom_all_reduce, kParallel,
             "GPUs: small sums through NCCL too");
  app.Switch("--disable-cuda-graph", e.disable_cuda_graph, kParallel,
             "GPUs: launch every kernel of a decode step by itself");
  app.Flag("--cuda-graph-max-bs", e.cuda_graph_max_bs, kParallel,
           "GPUs: most sequences of a decode step that is replayed as one graph; 0: "
           "--max-running-requests, at most 256")
      .NonNegative();
  app.Flag("--cpu-threads-per-rank", e.threads_per_rank, kParallel,
           "0: the CPUs that this process may run on, over the ranks")
      .NonNegative();
  app.Flag(
      "--cpu-bind", e.cpu_bind, kParallel,
      "Which CPUs threads are pinned to: auto (each rank its part of those that this process may "
      "run on, and not of other servers; on GPUs none), none, or a list for each rank of this "
      "host, like 0-3|4-7 (SGLANG_CPU_OMP_THREADS_BIND)");
  app.Flag("--cpu-isa", e.cpu_isa, kParallel,
           "auto (the best that there is), reference, avx2, avx512, amx; amx-emulated for tests");
  app.Flag("--dist-timeout", e.dist_timeout_seconds, kParallel,
           "Seconds a rank waits for another before it gives up")
      .Range(0.1, 1e6);
  app.Flag("--watchdog-timeout", e.watchdog_timeout_seconds, kParallel,
           "Seconds without a heartbeat of a rank after which the server ends with an error that "
           "names "
           "it; /health is 503 from half of that on, or from 20 s")
      .Range(3.0, 1e6);
}

void AddMoeFlags(CommandLine& app, EngineConfig& e) {
  app.Flag("--moe-a2a-backend", e.moe.a2a_backend, kMoe,
           "How tokens reach experts: none (all-reduce), deepep (all-to-all), or another name that "
           "`switchyard backends` lists");
  app.Flag("--deepep-mode", e.moe.deepep_mode, kMoe,
           "normal, low_latency, or auto (normal for extend)")
      .OneOf({"normal", "low_latency", "auto"});
  app.Flag("--moe-combine-rows", e.moe.combine_rows, kMoe,
           "deepep, mooncake: what returns to a token's rank: slot (each expert's output; the same "
           "bits "
           "wherever experts sit), or rank (one row from each rank, fewer bytes)")
      .OneOf({"slot", "rank"});
  app.Flag("--num-max-dispatch-tokens-per-rank", e.moe.max_dispatch_tokens_per_rank, kMoe,
           "Capacity of low_latency; larger batches go in rounds")
      .Positive();
  app.Flag("--deepep-dispatcher-output-dtype", e.moe.dispatcher_output_dtype, kMoe,
           "What rows travel to the experts as: bf16 (--dtype), fp8 (with a scale for 128 "
           "elements), or "
           "auto (fp8 where the experts quantize their input so)")
      .OneOf({"auto", "bf16", "fp8"});
  app.Flag("--deepep-normal-long-seq-per-round-tokens", e.moe.long_seq_per_round_tokens, kMoe,
           "Most tokens of a rank in one exchange of normal mode; longer batches go in rounds")
      .Positive();
  app.Flag("--deepep-normal-long-seq-round", e.moe.long_seq_rounds, kMoe,
           "Most such rounds; 0: as many as it takes")
      .NonNegative();
  app.Switch("--enable-deepep-waterfill,--enable-waterfill", e.moe.waterfill, kMoe,
             "Send the shared expert's rows to the least loaded ranks, as one more expert");
  app.Flag("--ep-num-redundant-experts", e.moe.num_redundant_experts, kMoe,
           "Physical experts beyond the model's, for replicas")
      .NonNegative();
  app.Flag(
      "--init-expert-location", e.moe.init_expert_location, kMoe,
      "Which expert sits where: trivial, or a JSON, safetensors or PyTorch (.pt) file, or JSON "
      "text, with "
      "physical_to_logical_map [layers, places] (`switchyard eplb plan --output`), or with "
      "logical_count, a recorded distribution for which --eplb-algorithm plans");
  EplbOptions& eplb = e.eplb;
  app.Flag(
         "--ep-dispatch-algorithm", eplb.dispatch, kMoe,
         "Which replica of an expert a token goes to: static (one for each rank), dynamic (any, at "
         "random), balanced (so that a batch loads the ranks evenly), lp (the same, exactly), fake "
         "(any expert: for benchmarks, outputs mean nothing)")
      .OneOf({"static", "dynamic", "fake", "balanced", "lp"});
  app.Switch("--enable-eplb", eplb.enable, kMoe,
             "Move experts between ranks while they serve, so that ranks are loaded evenly");
  app.Flag("--eplb-algorithm", eplb.algorithm, kMoe,
           "How experts are placed: auto is yard where --ep-dispatch-algorithm is balanced or lp, "
           "else "
           "deepseek")
      .OneOf({"auto", "deepseek", "deepseek_hierarchical", "elasticity_aware", "yard"});
  app.Flag("--eplb-rebalance-num-iterations", eplb.num_iterations, kMoe, "Passes between two plans")
      .Positive();
  app.Flag(
      "--eplb-rebalance-layers-per-chunk", eplb.layers_per_chunk, kMoe,
      "Layers that change at the same step, whose moving experts are held twice until then; -1: "
      "all that a plan changes");
  app.Flag("--eplb-min-rebalancing-utilization-threshold", eplb.min_utilization, kMoe,
           "Nothing moves while the mean load of ranks is over this part of the fullest one's")
      .Range(0.0, 1.0);
  app.Flag("--eplb-watchdog-timeout", eplb.watchdog_seconds, kMoe,
           "Seconds without progress after which a plan or a move of experts is given up")
      .Positive();
  ExpertRecorderOptions& recorder = e.recorder;
  app.Flag("--expert-distribution-recorder-mode", recorder.mode, kMoe,
           "What POST /start_expert_distribution_record records: stat (tokens of each expert, by "
           "pass), "
           "stat_approx (by dispatched rows), per_pass (and by rank), per_token; empty: nothing")
      .OneOf({"stat", "stat_approx", "per_pass", "per_token"});
  app.Flag("--expert-distribution-recorder-buffer-size", recorder.buffer_size, kMoe,
           "Passes that are kept, the last ones; -1: all");
  app.Flag("--expert-distribution-recorder-dir", recorder.dir, kMoe,
           "Where POST /dump_expert_distribution_record leaves its file");
  app.Switch("--enable-expert-distribution-metrics", recorder.metrics, kMoe,
             "Log how evenly each pass loads the ranks; counts at GET /expert_distribution and "
             "GET /metrics");
  app.Flag("--elastic-ep-timeout", e.moe.elastic_timeout_seconds, kMoe,
           "Seconds that a rank may stay silent in one stage before --moe-a2a-backend mooncake "
           "goes on "
           "without it")
      .Range(0.001, 86400.0);
  app.Flag("--moe-runner-backend", e.moe.runner_backend, kMoe,
           "What computes the experts: auto, or a name that `switchyard backends` lists");
  app.Flag("--speculative-moe-a2a-backend", e.moe.speculative_a2a_backend, kMoe,
           "--moe-a2a-backend of a draft model (there is none yet)");
  app.Flag("--speculative-moe-runner-backend", e.moe.speculative_runner_backend, kMoe,
           "--moe-runner-backend of a draft model (there is none yet)");
}

void AddMemoryFlags(CommandLine& app, EngineConfig& e) {
  app.Flag("--mem-fraction-static", e.mem_fraction_static, kMemory,
           "Share of this host's memory for weights and KV cache of all ranks")
      .Range(0.01, 1.0);
  app.Flag("--max-total-tokens", e.max_total_tokens, kMemory,
           "Tokens that the KV cache of each attention group holds; 0: what memory allows")
      .NonNegative();
  app.Flag("--page-size", e.page_size, kMemory,
           "Tokens of one KV page; prefixes are shared by whole pages")
      .Range(1, 1024);
  app.Flag("--max-running-requests", e.max_running_requests, kMemory,
           "Requests that run at once, of all attention groups; 0: 256")
      .NonNegative();
  app.Flag(
         "--max-queued-requests", e.max_queued_requests, kMemory,
         "Open requests beyond the running ones before new ones get 429; 0: no limit; -1: 16 times "
         "those that may run")
      .Range(-1, 1 << 30);
  app.Flag("--chunked-prefill-size", e.chunked_prefill_size, kMemory,
           "Most prompt tokens of one step, of all attention groups; -1: prompts are not cut; 0: "
           "2048, "
           "on GPUs up to 8192 where their memory is large beside what so many take")
      .Range(-1, 1 << 20);
  app.Flag("--max-prefill-tokens", e.max_prefill_tokens, kMemory,
           "Most prompt tokens of one step too; 0: --chunked-prefill-size alone. With "
           "--chunked-prefill-size -1 prompts share a step up to so many tokens")
      .Range(0, 1 << 20);
  app.Flag(
         "--schedule-policy", e.schedule_policy, kMemory,
         "Which waiting request runs next: fcfs (the oldest), lpm (the longest prefix in the "
         "cache), "
         "dfs-weight (depth first through the cache, where most wait), lof (most max_new_tokens), "
         "random")
      .OneOf({"fcfs", "lpm", "dfs-weight", "lof", "random"});
  app.Flag("--schedule-conservativeness", e.schedule_conservativeness, kMemory,
           "Factor on the cache that admission keeps free for tokens yet to come")
      .Range(0.0, 1e3);
  app.Flag(
      "--target-step-ms", e.target_step_ms, kMemory,
      "Milliseconds that a step may take while requests decode: prompts are cut to fit it; -1: 8 "
      "times a decode step and at least 25; 0: no target, chunks have --chunked-prefill-size");
  app.Switch(
      "--enable-priority-scheduling", e.priority_scheduling, kMemory,
      "Serve requests of higher `priority` first, and interrupt running ones of lower priority");
  app.Flag("--priority-scheduling-preemption-threshold", e.preemption_threshold, kMemory,
           "A waiting request interrupts a running one whose priority is lower by more than this");
  app.Switch("--disable-radix-cache", e.disable_radix_cache, kMemory,
             "Do not reuse the prefixes of earlier requests");
}

void AddEngineFlags(CommandLine& app, ServerArgs& a) {
  EngineConfig& e = a.engine;
  ApplyMoeEnvironment(&e.moe);  // flags come after it
  e.cpu_bind = CpuBindOfEnvironment();
  AddModelFlags(app, a);
  AddParallelFlags(app, a);
  AddMoeFlags(app, e);
  AddMemoryFlags(app, e);
  app.Switch("--check-batches", e.check_batches, kMisc,
             "Ranks compare every batch before they run it (slow)");
  app.Flag("--decode-log-interval", e.decode_log_interval, kMisc,
           "Steps with decoding between two lines of the log on load and speed; 0: none")
      .NonNegative();
  app.Flag("--random-seed", e.random_seed, kMisc,
           "Of requests without a seed, and of dummy weights");
  app.Flag("--log-level", e.log_level, kMisc, "debug, info, warning or error")
      .OneOf({"debug", "info", "warning", "error"});
}

void AddServerFlags(CommandLine& app, ServerArgs& a) {
  app.Flag("--nnodes", a.nnodes, kParallel,
           "Hosts of the engine; start serve on each, with the same flags and a --node-rank of its "
           "own")
      .Positive();
  app.Flag("--node-rank", a.node_rank, kParallel, "This host, 0 to nnodes - 1; host 0 answers HTTP")
      .NonNegative();
  app.Flag(
      "--dist-init-addr,--nccl-init-addr", a.dist_init_addr, kParallel,
      "HOST:PORT of host 0, where the others meet it; ranks that mpirun or srun starts then talk "
      "TCP instead of MPI");
  app.Flag(
      "--dist-secret-file", a.dist_secret_file, kParallel,
      "File with a secret of at least 16 bytes, the same on all hosts, which they prove to each "
      "other; without it any host that reaches --dist-init-addr can join or end the engine");
  app.Switch("--require-dist-secret", a.require_dist_secret, kParallel,
             "Refuse to start on several hosts without --dist-secret-file");
  app.Flag("--host", a.host, kServer, "Address to listen on; 0.0.0.0 for all");
  app.Flag("--port", a.port, kServer, "Port to listen on; 0: any free one").Range(0, 65535);
  AddHttpFlags(app, a.http);
  app.Flag("--served-model-name", a.served_model_name, kServer,
           "Name in /v1/models; default: the model path");
  app.Flag("--max-body-mb", a.max_body_mb, kServer,
           "Largest request body in MiB; larger ones get 413")
      .Range(1e-3, 1e6);
  app.Flag("--stream-interval", a.stream_interval, kServer, "Tokens between two events of a stream")
      .Positive();
  app.Flag("--drain-timeout", a.drain_timeout_seconds, kServer,
           "Seconds that SIGTERM waits for running requests before they are aborted")
      .NonNegative();
  app.Switch("--stream-output,--incremental-streaming-output", a.stream_output, kServer,
             "Events of a /generate stream have what came since the event before, not all so far");
  app.Flag("--weight-version", a.weight_version, kServer,
           "Name of the weights, in answers of /generate and in /model_info");
  app.Switch("--schedule-low-priority-values-first", a.low_priority_values_first, kMemory,
             "Lower values of `priority` go first (needs --enable-priority-scheduling)");
  app.Flag(
      "--verify-weights", a.verify_weights, kServer,
      "File of SHA-256 sums, as sha256sum writes it in the model's directory; all weights must be "
      "listed, and every listed file that the directory has must match");
  app.Switch("--skip-server-warmup", a.skip_server_warmup, kServer,
             "Say ready without a first request of our own");
  app.Switch("--log-requests", a.log_requests, kServer, "One log line a request");
}

// Flags of SGLang's that say the same in another way, or older ones.
void AddSglangSpellings(CommandLine& app, ServerArgs& a) {
  app.Switch("--enable-ep-moe", a.enable_ep_moe, "",
             "Older form of --ep-size as large as --tp-size");
  app.Switch("--enable-deepep-moe", a.enable_deepep_moe, "",
             "Older form of --moe-a2a-backend deepep --ep-size as large as --tp-size");
}

// ParseWords with the engine's flags, for which a YAML file may stand too.
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
  if (!ParseWords(app, std::move(words))) return false;
  SettleArgs(app, &server);
  if (server.low_priority_values_first && !server.engine.priority_scheduling)
    throw Invalid("--schedule-low-priority-values-first needs --enable-priority-scheduling");
  NoteEnvironment(server.engine.moe, &taken);
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
  return a;
}

std::optional<GenerateArgs> ParseGenerate(const std::vector<std::string>& args) {
  GenerateArgs a;
  constexpr const char* kGenerate = "Generation";
  CommandLine app("Generate text without a server, printing as it comes", "switchyard generate");
  app.Option("--prompt", a.prompts,
             "Text to continue; may be given several times; - reads standard input")
      .Group(kGenerate)
      .Required();
  app.Switch("--chat", a.chat, kGenerate,
             "Each prompt is a user's message, rendered by the chat template");
  app.Flag("--max-new-tokens", a.max_new_tokens, kGenerate, "Most tokens to generate").Positive();
  app.Flag("--temperature", a.temperature, kGenerate, "0: greedy").NonNegative();
  app.Flag("--top-p", a.top_p, kGenerate, "Nucleus sampling").Range(0.0, 1.0);
  app.Flag("--top-k", a.top_k, kGenerate, "-1: all tokens");
  app.Option("--seed", a.seed, "Same seed, same tokens").Group(kGenerate);
  app.Switch("--ignore-eos", a.ignore_eos, kGenerate, "Do not stop at the end-of-sequence token");
  AddEngineFlags(app, a.server);
  if (!Parse(app, args, a.server)) return std::nullopt;
  return a;
}

std::optional<BackendsArgs> ParseBackends(const std::vector<std::string>& args) {
  BackendsArgs a;
  CommandLine app(
      "Print which MoE backends pair with which on this machine, and with --model-path what the "
      "flags choose for that checkpoint, and why",
      "switchyard backends");
  app.Switch(
      "--markdown", a.markdown, kMisc,
      "Print instead which features work on CPUs, GPUs and several hosts, as docs/features.md "
      "has it; the table does not depend on this machine");
  AddEngineFlags(app, a.server);
  app.SetRequired("--model-path", false);
  if (!Parse(app, args, a.server)) return std::nullopt;
  return a;
}

std::optional<OneBatchArgs> ParseOneBatch(const std::vector<std::string>& args) {
  OneBatchArgs a;
  constexpr const char* kBench = "Benchmark";
  CommandLine app("Time prefill and decode of one batch of equal requests",
                  "switchyard bench one-batch");
  app.Option("--batch-size,--batch", a.batch_sizes,
             "Requests of a batch; several values make several runs")
      .Group(kBench)
      .ShowDefault()
      .Positive();
  app.Option("--input-len,--input", a.input_lengths, "Prompt tokens of each request")
      .Group(kBench)
      .ShowDefault()
      .Positive();
  app.Flag("--output-len,--output", a.output_length, kBench, "Tokens decoded after the prompt")
      .Range(2, 1 << 20);
  app.Flag("--repeat", a.repeat, kBench, "Runs of each case; medians are printed").Positive();
  app.Flag("--json", a.json, kBench, "Also write the figures to this file");
  AddEngineFlags(app, a.server);
  if (!Parse(app, args, a.server)) return std::nullopt;
  return a;
}

}  // namespace switchyard
