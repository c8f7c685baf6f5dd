#include "server/args/tool_args.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/command_line.h"
#include "core/error.h"
#include "server/args/command_words.h"

namespace switchyard {
namespace {

constexpr const char* kHelp =
    R"(switchyard eplb: placement of experts from recorded routing

  switchyard eplb plan COUNTS --ranks R        plan from a recording, print placement and balancedness
  switchyard eplb simulate TRACE --ranks R     replay a recording: plan from the past, evaluate on the next steps

A recording is what POST /dump_expert_distribution_record of a server writes (SGLang's .pt files too), or any JSON
or safetensors file with counts [steps, layers, experts]. Each has --help.
)";

constexpr std::string_view kTools[] = {"plan", "simulate"};

void AddCommon(CommandLine& app, EplbArgs& a) {
  app.Option(a.which == "plan" ? "COUNTS" : "TRACE", a.file,
             "JSON, safetensors or PyTorch file with counts [steps, layers, experts], or "
             "[layers, experts]")
      .Required();
  app.Option("--tensor", a.tensor, "Name of the counts in the file").ShowDefault();
  app.Option("--ranks", a.ranks, "EP ranks").Required().Positive();
  app.Option("--physical", a.physical, "Expert slots of all ranks; 0: the number of experts")
      .ShowDefault()
      .NonNegative();
  app.Option("--slots", a.slots,
             "Expert slots of each rank, such as 96,160; their sum is --physical. Default: equal "
             "parts");
  app.Option("--rank-costs", a.rank_costs,
             "For each rank the time of a row, and after a colon that of reading an expert's "
             "weights, such as 1:40,20:900. Plans then minimize the time of the slowest rank");
  app.Option("--sources", a.sources,
             "Number of ranks, the first ones, whose tokens are dispatched; 0: all")
      .ShowDefault()
      .NonNegative();
  app.Option("--passes", a.passes,
             "Number of passes that a step of the recording sums, for the times of --rank-costs")
      .ShowDefault()
      .Positive();
  app.Option("--nodes", a.nodes, "Hosts, with equal numbers of ranks").ShowDefault().Positive();
  app.Option(
         "--groups", a.groups,
         "Expert groups of the router (n_group), for deepseek_hierarchical and elasticity_aware")
      .ShowDefault()
      .Positive();
  app.Option("--algorithm", a.algorithm,
             "auto (yard), deepseek, deepseek_hierarchical, elasticity_aware or yard")
      .ShowDefault();
  app.Option("--dispatch", a.dispatch,
             "Replica selection that the evaluation assumes: static, dynamic, fake, balanced or lp")
      .ShowDefault();
  app.Option("--expert-mib", a.expert_mib,
             "Size of one expert in MiB, to compute the bytes that a plan moves; default: "
             "DeepSeek-V3 in FP8")
      .ShowDefault()
      .Positive();
}

void AddPlan(CommandLine& app, EplbArgs& a) {
  app.Option("--previous", a.previous,
             "File with the current placement (physical_to_logical_map); default: trivial");
  app.Option(
      "--output", a.output,
      "Writes the placement to this file, for --init-expert-location, instead of printing it");
}

void AddSimulate(CommandLine& app, EplbArgs& a) {
  app.Option("--window", a.window,
             "Number of past steps from whose load a plan is computed; the first window is not "
             "evaluated")
      .ShowDefault()
      .Positive();
  app.Option("--every", a.every, "Steps between two plans").ShowDefault().Positive();
  app.Option("--svg", a.svg,
             "Draws rank loads and balancedness over the steps, with the trivial placement and "
             "with the plans, to this SVG file");
}

}  // namespace

std::optional<EplbArgs> ParseEplb(const std::string& which, const std::vector<std::string>& args) {
  if (which.empty() || which == "--help" || which == "-h") {
    fmt::print("{}", kHelp);
    return std::nullopt;
  }
  if (which != "plan" && which != "simulate")
    throw Invalid("there is no eplb {}; the nearest is eplb {}; want plan or simulate", which,
                  NearestName(which, kTools));
  EplbArgs a;
  a.which = which;
  CommandLine app(which == "plan"
                      ? "Plans the placement of experts from a recorded load. Prints the "
                        "placement, the balance of ranks, and the number of experts that migrate"
                      : "Replays a recorded load window by window: each plan is computed from past "
                        "steps and evaluated on the steps that follow",
                  "switchyard eplb " + which);
  AddCommon(app, a);
  which == "plan" ? AddPlan(app, a) : AddSimulate(app, a);
  if (!ParseWords(app, args)) return std::nullopt;
  return a;
}

std::optional<QuantizeArgs> ParseQuantize(const std::vector<std::string>& args) {
  QuantizeArgs a;
  CommandLine app(
      "Quantizes a checkpoint and writes it in compressed-tensors' layout, which this program and "
      "vLLM load. If the command was interrupted, the same command continues",
      "switchyard quantize");
  app.Option("DIR", a.from, "Directory of a checkpoint in float32, bfloat16 or float16").Required();
  app.Option("OUT", a.to, "Directory to write, new or empty").Required();
  app.Option("--format", a.format,
             "Format of the linears: int4 (groups), int8 (rows, with int8 activations), fp8 (128 x "
             "128 blocks), fp8-channel (rows), mxfp4 (routed experts only), nvfp4. Embeddings, "
             "head, norms and routers stay as they are")
      .OneOf({"int4", "int8", "fp8", "fp8-channel", "mxfp4", "nvfp4"});
  app.Option("--group-size", a.group_size, "int4: number of columns that share a scale")
      .ShowDefault()
      .Range(8, 1 << 20);
  app.Switch("--zero-points", a.zero_points, "Options",
             "Zero points of int4 groups: a smaller error, and 3 % more memory; vLLM's MoE layers "
             "need int4 without them");
  app.Option("--ignore", a.ignore,
             "Linear layers that are not quantized: parts of names (self_attn), or re: and a "
             "regular expression");
  app.Option("--config", a.config, "JSON file with rules for parts of the model").ExistingFile();
  app.Option("--max-shard-size", a.shard_gb, "Maximum size of an output file, in GB").ShowDefault();
  app.Option("--threads", a.threads,
             "Number of threads; default: all CPUs that the process may use")
      .Range(1, 1024);
  if (!ParseWords(app, args)) return std::nullopt;
  if (a.format != "int4" && (app.Given("--group-size") || app.Given("--zero-points"))) {
    throw Invalid("{}: needs --format int4",
                  app.Given("--group-size") ? "--group-size" : "--zero-points");
  }
  if (a.format.empty() && a.config.empty()) {
    throw Invalid(
        "--format: missing; want int4, int8, fp8, fp8-channel, mxfp4 or nvfp4, or "
        "--config FILE");
  }
  if (!(a.shard_gb > 0)) throw Invalid("--max-shard-size {}: want more than 0", a.shard_gb);
  return a;
}

std::optional<TokenMapArgs> ParseTokenMap(const std::vector<std::string>& args) {
  TokenMapArgs a;
  CommandLine app(
      "Count the tokens of text and write the ids of the most frequent ones, for "
      "--speculative-token-map",
      "switchyard token-map");
  app.Option("INPUT", a.inputs,
             "Text files, .jsonl files ({\"text\": …}, {\"messages\": […]} or a response with "
             "\"output_ids\" in each line), .parquet files with columns of these names, or "
             "directories of them. Of chats, the answers are counted")
      .Required();
  app.Option("--model-path,--model", a.model_path,
             "Checkpoint directory of the target: config.json and tokenizer")
      .Required();
  app.Option("--output", a.output,
             "File to write, the most frequent token first: a JSON list if the name ends with "
             ".json, else text with one id in each line")
      .Required();
  app.Option("--size", a.size,
             "Maximum number of tokens, including the end-of-text tokens. Tokens that do not occur "
             "are left out")
      .ShowDefault()
      .Positive();
  if (!ParseWords(app, args)) return std::nullopt;
  return a;
}

std::optional<TrainTokenizerArgs> ParseTrainTokenizer(const std::vector<std::string>& args) {
  TrainTokenizerArgs a;
  CommandLine app(
      "Learn a byte-level BPE tokenizer from text: tokenizer.json and tokenizer_config.json, which "
      "Hugging Face's tokenizers load",
      "switchyard train-tokenizer");
  app.Option("INPUT", a.inputs,
             "Text files, .jsonl files ({\"text\": …} or {\"messages\": […]} in each line), "
             ".parquet files with columns of these names, or directories of them")
      .Required();
  app.Option("--output", a.output, "Output directory; created if missing").Required();
  app.Option("--vocab-size", a.vocab_size,
             "Total number of tokens, including special tokens and the 256 bytes. Fewer if no more "
             "pairs reach --min-frequency")
      .ShowDefault()
      .Positive();
  app.Option("--min-frequency", a.min_frequency, "Minimum frequency of a pair that is merged")
      .ShowDefault()
      .Positive();
  app.Option("--max-token-bytes", a.max_token_bytes, "Maximum length of a token in bytes")
      .ShowDefault()
      .Positive();
  app.Option("--special-tokens", a.special_tokens,
             "Special tokens; they get the first ids in this order")
      .ShowDefault();
  app.Option("--bos", a.bos, "Special token at the start of each text; default: none");
  app.Option("--eos", a.eos, "Special token at the end of texts and answers").ShowDefault();
  app.Option("--pad", a.pad, "Special token for padding").ShowDefault();
  app.Option("--chat-template", a.chat_template,
             "Jinja file; default: ChatML, where <|im_start|> and <|im_end|> are special tokens");
  app.Option("--pattern", a.pattern,
             "Regular expression (Oniguruma) of the words within which pairs are merged; default: "
             "words with a leading space, single digits, other runs");
  app.Option("--model-max-length", a.max_length,
             "Value of model_max_length in tokenizer_config.json; 0: absent")
      .ShowDefault()
      .NonNegative();
  if (!ParseWords(app, args)) return std::nullopt;
  return a;
}

}  // namespace switchyard
