// The command line: SGLang's flags, `--config file.yaml`, grouped help.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/config.h"
#include "server/args/http_args.h"

namespace switchyard {

// Arguments of `serve`, with the defaults of absent flags.
struct ServerArgs {
  EngineConfig engine;
  std::string expert_slots;          // --expert-slots
  std::string cpu_experts = "auto";  // --cpu-experts: auto (see ChooseCpuExperts) or off
  int dp_size = 1;                   // --dp-size; above 1, requires --enable-dp-attention
  bool enable_dp_attention = false;  // --enable-dp-attention
  bool enable_ep_moe = false;        // --enable-ep-moe: sets --ep-size to --tp-size
  bool enable_deepep_moe = false;    // --enable-deepep-moe: as --enable-ep-moe, and selects deepep
  // One line for each accepted flag that has no effect. Parse has already logged these lines.
  std::vector<std::string> without_effect;
  int nnodes = 1;                    // --nnodes: hosts, each with tp / nnodes ranks
  int node_rank = 0;                 // --node-rank: index of this host
  std::string dist_init_addr;        // --dist-init-addr: HOST:PORT of node 0
  std::string dist_secret_file;      // --dist-secret-file; empty: nodes are not authenticated
  bool require_dist_secret = false;  // --require-dist-secret
  int bootstrap_port = 8998;         // --disaggregation-bootstrap-port
  std::string disaggregation_backend = "tcp";   // --disaggregation-transfer-backend: shm or tcp
  double disaggregation_timeout_seconds = 300;  // --disaggregation-timeout
  std::string revision = "main";                // --revision
  std::string download_dir;                     // --download-dir; empty: HubCacheDirectory()
  std::string tokenizer_path;                   // --tokenizer-path; empty: the model's directory
  std::string host = "127.0.0.1";
  int port = 30000;
  bool low_priority_values_first = false;  // --schedule-low-priority-values-first
  std::string served_model_name;           // --served-model-name; empty: the model path
  HttpArgs http;                           // http_args.h
  ObserveArgs observe;                     // http_args.h
  std::string chat_template;               // --chat-template FILE; empty: the checkpoint's
  std::string tool_call_parser = "auto";   // --tool-call-parser: a format's name, auto or none
  std::string reasoning_parser = "auto";   // --reasoning-parser: a format's name, auto or none
  double max_body_mb = 64;                 // --max-body-mb
  int stream_interval = 1;     // --stream-interval: tokens between two events of a stream
  bool stream_output = false;  // --stream-output: only new output in events of /generate
  std::string weight_version = "default";         // --weight-version
  std::string grammar_backend = "xgrammar";       // --grammar-backend
  std::string json_whitespace = R"([ \n\r\t]*)";  // --constrained-json-whitespace-pattern
  bool json_disable_any_whitespace = false;       // --constrained-json-disable-any-whitespace
  std::string verify_weights;   // --verify-weights: file of SHA-256 sums; empty: no verification
  bool print_schedule = false;  // --print-schedule
  bool dry_run = false;         // --dry-run
  // --enable-elastic-ep; without the flag, elastic EP is on if there is one host.
  bool enable_elastic_ep = false;
  bool disable_elastic_ep = false;        // --disable-elastic-ep
  std::string max_rank_deaths = "10/60";  // --max-rank-deaths COUNT/SECONDS
  double rank_stall_seconds = 0.5;        // --rank-stall-timeout; 0: no limit
  // Names of the given flags that require that ranks can be restarted, such as --enable-elastic-ep.
  std::vector<std::string> restart_flags;
  bool skip_server_warmup = false;
  double drain_timeout_seconds =
      600;  // --drain-timeout: time for running requests to finish after SIGTERM
};

// Arguments of `generate` in addition to the engine's flags.
struct GenerateArgs {
  ServerArgs server;
  std::vector<std::string> prompts;  // --prompt, repeatable
  bool chat = false;  // --chat: the prompt is a user's message, rendered by the chat template
  int32_t max_new_tokens = 128;
  float temperature = 0.0f;
  float top_p = 1.0f;
  int32_t top_k = -1;
  std::optional<uint64_t> seed;
  bool ignore_eos = false;
};

// Arguments of `backends` in addition to the engine's flags.
struct BackendsArgs {
  ServerArgs server;
  bool markdown = false;  // --markdown: print the feature table of the docs instead
  bool models = false;    // --models: print the table of model families of the docs instead
};

// Arguments of `bench one-batch` in addition to the engine's flags.
struct OneBatchArgs {
  ServerArgs server;
  std::vector<int32_t> batch_sizes{1};
  std::vector<int32_t> input_lengths{512};
  int32_t output_length = 32;
  int32_t repeat = 3;
  std::string json;                   // --json FILE
  std::string cost_table;             // --cost-table FILE; empty: the shipped table of the device
  bool profile = false;               // --profile: write traces of the measured runs
  std::string profile_dir;            // --profile DIR; empty: profile::DefaultDirectory()
  bool same_experts = false;          // --same-experts
  std::optional<double> expert_skew;  // --expert-skew
};

// Arguments of `bench kernels`, `moe-layer`, `exchange` and `roofline`. Each command uses some of
// them.
struct BenchArgs {
  std::string which;             // kernels, moe-layer, exchange or roofline
  std::string device = "auto";   // --device: auto, cpu or cuda; auto is cuda if there is a GPU
  std::string filter, json;      // --filter SUBSTRING, --json FILE
  int threads = 0;               // --cpu-threads, --cpu-threads-per-rank
  int base_gpu_id = 0;           // --base-gpu-id of kernels and roofline
  int ranks = 0;                 // --ranks, --tp
  int experts_per_rank = 0;      // --experts-per-rank
  std::vector<int64_t> tokens;   // --tokens: per rank
  std::string model;             // --model
  std::string cpu_isa = "auto";  // --cpu-isa
};

// Parses `args` (without the program's name and sub-command). For --help, prints the help and
// returns nothing. Throws Error kInvalid that names the invalid flag.
std::optional<ServerArgs> ParseServe(const std::vector<std::string>& args);
std::optional<GenerateArgs> ParseGenerate(const std::vector<std::string>& args);
std::optional<OneBatchArgs> ParseOneBatch(const std::vector<std::string>& args);
// `which`: the word after `bench`, which may be invalid, --help, or empty.
std::optional<BenchArgs> ParseBench(const std::string& which, const std::vector<std::string>& args);
// `backends` takes the engine's flags; --model-path is optional.
std::optional<BackendsArgs> ParseBackends(const std::vector<std::string>& args);

}  // namespace switchyard
