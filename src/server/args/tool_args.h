// The command lines of `switchyard eplb`, `quantize`, `train-tokenizer` and `token-map`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace switchyard {

// The command line of `switchyard eplb`.

// Arguments of `eplb plan` and `eplb simulate`. Each command uses some of them.
struct EplbArgs {
  std::string which;  // plan or simulate
  std::string file;   // argument COUNTS or TRACE: a JSON, safetensors or PyTorch file
  std::string tensor = "logical_count";  // --tensor
  int physical = 0;                      // --physical: expert slots; 0: the number of experts
  int ranks = 1, nodes = 1, groups = 1;  // --ranks, --nodes, --groups
  std::string slots;                     // --slots: of each rank; empty: equal parts
  std::string rank_costs;                // --rank-costs: of each rank; empty: equal ranks
  int sources = 0;                       // --sources: ranks with tokens, the first ones; 0: all
  int passes = 1;                        // --passes: that a step of the recording sums
  std::string algorithm = "auto";        // --algorithm
  std::string dispatch = "balanced";     // --dispatch
  double expert_mib = 42;                // --expert-mib; default: an expert of DeepSeek-V3 in FP8
  std::string previous, output;          // plan: --previous, --output
  int window = 50, every = 50;           // simulate: --window, --every
  std::string svg;                       // simulate: --svg
};

// `which`: the word after `eplb`, which may be invalid, --help, or empty. For --help, prints the
// help and returns nothing. Throws Error kInvalid that names the invalid flag.
std::optional<EplbArgs> ParseEplb(const std::string& which, const std::vector<std::string>& args);

// The command line of `switchyard quantize`.

struct QuantizeArgs {
  std::filesystem::path from, to;   // arguments DIR and OUT
  std::string format;               // --format; empty: as in --config
  int64_t group_size = 32;          // --group-size of int4
  bool zero_points = false;         // --zero-points of int4
  std::vector<std::string> ignore;  // --ignore
  std::string config;               // --config FILE; empty: none
  double shard_gb = 5;              // --max-shard-size, in 10^9 bytes
  int threads = 0;                  // --threads; 0: all CPUs that the process may use
};

// Returns nothing after printing the help for --help. Throws kInvalid that names the flag.
std::optional<QuantizeArgs> ParseQuantize(const std::vector<std::string>& args);

// The command line of `switchyard train-tokenizer`.

struct TrainTokenizerArgs {
  std::vector<std::string> inputs;  // arguments FILE or DIR, one or more
  std::string output;               // --output DIR
  int vocab_size = 8192;            // --vocab-size
  int64_t min_frequency = 2;        // --min-frequency
  int max_token_bytes = 32;         // --max-token-bytes
  // --special-tokens, which get the first ids in this order
  std::vector<std::string> special_tokens{"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  std::string bos;                    // --bos
  std::string eos = "<|im_end|>";     // --eos
  std::string pad = "<|endoftext|>";  // --pad
  std::string chat_template;          // --chat-template FILE; empty: ChatML
  std::string pattern;                // --pattern; empty: the default
  int64_t max_length = 0;             // --model-max-length
};

// Returns nothing after printing the help for --help. Throws kInvalid that names the flag.
std::optional<TrainTokenizerArgs> ParseTrainTokenizer(const std::vector<std::string>& args);

// The command line of `switchyard token-map`.

struct TokenMapArgs {
  std::vector<std::string> inputs;   // arguments FILE or DIR, one or more
  std::filesystem::path model_path;  // --model-path
  std::filesystem::path output;      // --output FILE
  int size = 32768;                  // --size
};

// Returns nothing after printing the help for --help. Throws kInvalid that names the flag.
std::optional<TokenMapArgs> ParseTokenMap(const std::vector<std::string>& args);

}  // namespace switchyard
