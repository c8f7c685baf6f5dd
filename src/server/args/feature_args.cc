#include "server/args/feature_args.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/command_line.h"
#include "core/error.h"
#include "server/args/settle_args.h"
#include "text/output/output_formats.h"

namespace switchyard {

void AddPipelineFlags(CommandLine& app, EngineConfig& e, const char* group) {
  app.Flag(
      "--pp-size,--pp,--pipeline-parallel-size", e.mesh.pp, group,
      "Pipeline stages of --tp-size ranks, each with a part of the layers; on CPUs, or on GPUs "
      "of one host");
  app.Flag(
      "--pp-layer-partition", e.pp_layer_partition, group,
      "Numbers of layers of the pipeline stages, such as 12,12,13 (SGLANG_PP_LAYER_PARTITION). "
      "By default the layers are split so that the stages take about equal time");
  app.Flag(
         "--pp-max-micro-batch-size,--max-micro-batch-size", e.pp_max_micro_batch_size, group,
         "Maximum decoding requests in one pass through the pipeline, of all attention groups; 0: "
         "the decoding requests divided by the passes in flight")
      .NonNegative();
  app.Flag("--pp-async-batch-depth", e.pp_async_batch_depth, group,
           "Passes in flight in addition to one for each pipeline stage")
      .NonNegative();
  app.Switch(
      "--enable-dynamic-chunking", e.dynamic_chunking, group,
      "With --pp-size: shorten the later chunks of long prompts, whose attention takes longer, "
      "so that the chunks take equal time and the pipeline stages stay busy");
}

void AddExpertRankFlags(CommandLine& app, ServerArgs& args, const char* group) {
  MeshShape& mesh = args.engine.mesh;
  app.Flag(
         "--expert-ranks", mesh.expert_ranks, group,
         "Number of the --tp-size ranks, the last ones, that hold routed experts only. Each other "
         "rank has attention, dense layers, routers, shared experts and head. Sets --ep-size to "
         "--tp-size and --moe-dense-tp-size to 1. On CPUs, or with --device cuda,cpu")
      .NonNegative();
  app.Flag(
      "--expert-slots", args.expert_slots, group,
      "Number of experts that each EP rank holds in each layer, such as 96,160; default: equal "
      "parts. The sum is the number of experts and --ep-num-redundant-experts. On CPUs, or with "
      "--device cuda,cpu");
  app.Flag("--eplb-rank-costs", args.engine.eplb.rank_costs, group,
           "For each EP rank the time of a row, and after a colon that of reading an expert's "
           "weights, in any unit, such as 1:40,20:900. After a second colon: that of receiving an "
           "expert. Placements then minimize the time of the slowest rank; default: equal ranks");
  app.Flag(
      "--stream-experts", args.engine.moe.stream_experts, group,
      "With --device cuda,cpu: for passes with prompts and at least this number of tokens in a "
      "round, the GPU computes all experts, and reads those of the CPUs over its link. The host "
      "needs memory for a pinned copy of all experts. auto: the number from which on this is "
      "estimated to be faster. off: never");
}

void AddCpuExpertsFlag(CommandLine& app, ServerArgs& args, const char* group) {
  app.Flag(
         "--cpu-experts", args.cpu_experts, group,
         "auto: with --device auto and one rank on a GPU, a model that does not fit the GPU, even "
         "if it is empty, runs as with --device cuda,cpu: the GPU keeps as many experts as fit "
         "beside the cache (--max-total-tokens; default: 16384 tokens), and the CPUs of the host "
         "compute the others. Warnings in the log say so. off: such a model is refused")
      .OneOf({"auto", "off"});
}

bool HasMaxMicroBatchSize(std::span<const std::string> words) {
  return std::ranges::any_of(
      words, [](const std::string& word) { return word.starts_with("--max-micro-batch-size"); });
}

void SettleMaxMicroBatchSize(EngineConfig& e, TakenFlags* taken) {
  if (e.mesh.pp > 1) return;
  taken->without_effect.push_back(
      fmt::format("--max-micro-batch-size {} has no effect here without --pp-size",
                  std::exchange(e.pp_max_micro_batch_size, 0)));
}

namespace {

constexpr const char* kSpeculation = "Speculative decoding";

}  // namespace

void AddSpeculativeFlags(CommandLine& app, EngineConfig& e) {
  SpeculativeOptions& s = e.speculative;
  app.Flag("--speculative-algorithm,--speculative-algo", s.algorithm, kSpeculation,
           "Source of drafts, which are verified so that outputs stay equal: NGRAM (the request's "
           "own text), NEXTN or MTP (the checkpoint's MTP layer), EAGLE or EAGLE3 (a head), "
           "STANDALONE (a small model); empty: no drafts. EAGLE3 is refused with --pp-size");
  app.Flag("--speculative-num-steps", s.num_steps, kSpeculation,
           "Maximum drafts of a request in a step, or of a path of a tree, 1 to 16. auto: chosen "
           "from the measured acceptance rate and cost; 0 drafts if they do not increase the "
           "speed. With --pp-size, auto is 4, or at most 8 with NGRAM");
  app.Flag("--speculative-eagle-topk", s.eagle_topk, kSpeculation,
           "Width K of trees of drafts, 1 to 16. The K best drafts of each level get K children "
           "each. 1: chains. More than 1 needs a draft model, --speculative-num-steps and "
           "--speculative-num-draft-tokens");
  app.Flag("--speculative-num-draft-tokens", s.num_draft_tokens, kSpeculation,
           "Rows of a verification: the number of drafts + 1, at most 17 for chains and 64 for "
           "trees. 0, for chains only: --speculative-num-steps + 1")
      .NonNegative();
  app.Flag("--speculative-draft-model-path,--speculative-draft", s.draft_model_path, kSpeculation,
           "Directory of the draft model: the head for EAGLE or EAGLE3, the small model for "
           "STANDALONE. It must have the target's vocabulary");
  app.Flag(
      "--speculative-draft-model-quantization", s.draft_quantization, kSpeculation,
      "Value of --quantization for the draft model, including its head, or unquant. Default: "
      "w8a8_int8 for an unquantized MTP layer on CPUs, else the stored format. Affects speed only");
  app.Flag("--speculative-token-map", s.token_map, kSpeculation,
           "File of token ids (a JSON list, a safetensors file or text), such as switchyard "
           "token-map writes. The draft model's head computes these tokens only, so drafts take "
           "less time and fewer are accepted. Outputs do not change. SGLang's .pt files have to be "
           "converted");
  app.Flag("--speculative-simulate-acceptance", s.simulate_acceptance, kSpeculation,
           "For benchmarks only: accepts each draft with this probability (0 to 1), whatever the "
           "model samples. Outputs are then wrong. -1: off");
  app.Switch("--disable-jump-forward", e.disable_jump_forward, kSpeculation,
             "Disables jump-forward decoding. By default, CPU ranks draft the text that a grammar "
             "forces, so a step gives several tokens. Outputs are the same with and without it");
  app.Flag("--speculative-moe-a2a-backend", e.moe.speculative_a2a_backend, kSpeculation,
           "--moe-a2a-backend of the draft model; default: the target's");
  app.Flag("--speculative-moe-runner-backend", e.moe.speculative_runner_backend, kSpeculation,
           "--moe-runner-backend of the draft model; default: the target's");
}

void AddDisaggregationFlags(CommandLine& app, ServerArgs& a) {
  constexpr const char* kGroup = "Prefill and decode workers";
  app.Flag("--disaggregation-mode", a.engine.disaggregation_mode, kGroup,
           "null: the server computes whole requests. prefill: it computes prompts and their first "
           "tokens. decode: it continues prompts of a prefill worker")
      .OneOf({"null", "prefill", "decode"});
  app.Flag("--disaggregation-bootstrap-port", a.bootstrap_port, kGroup,
           "prefill: port at which decode workers connect; 0: any free port. decode: the default "
           "of bootstrap_port in requests")
      .Range(0, 65535);
  app.Flag("--disaggregation-transfer-backend", a.disaggregation_backend, kGroup,
           "Transfer of the KV cache and of recurrent states: tcp, or shm (one copy, if both "
           "workers run on one host as one user; on GPUs from GPU to GPU)")
      .OneOf({"tcp", "shm"});
  app.Flag("--disaggregation-timeout", a.disaggregation_timeout_seconds, kGroup,
           "Seconds that a request waits for its other worker")
      .Range(0.1, 1e6);
}

void CheckDisaggregationFlags(const CommandLine& app, const ServerArgs& a) {
  if (a.engine.disaggregated()) return;
  for (const char* flag : {"--disaggregation-bootstrap-port", "--disaggregation-transfer-backend",
                           "--disaggregation-timeout"})
    if (app.Given(flag)) throw Invalid("{} needs --disaggregation-mode prefill or decode", flag);
}

void AddParserFlags(CommandLine& app, ServerArgs& args, const char* group) {
  app.Flag(
      "--tool-call-parser", args.tool_call_parser, group,
      "Format of tool calls in outputs: auto (by the chat template), none (outputs stay text), "
      "or one of " +
          CallFormatNames());
  app.Flag("--reasoning-parser", args.reasoning_parser, group,
           "Format of reasoning in outputs: auto (by the chat template), none (reasoning stays in "
           "the content), or one of " +
               ReasoningFormatNames());
}

void CheckParserFlags(const ServerArgs& args) {
  const auto is_known = [](const std::string& name, const void* format) {
    return name == "auto" || name == "none" || format != nullptr;
  };
  if (!is_known(args.tool_call_parser, FindCallFormat(args.tool_call_parser)))
    throw Invalid("--tool-call-parser {}: there is no such parser, want auto, none, {}",
                  args.tool_call_parser, CallFormatNames());
  if (!is_known(args.reasoning_parser, FindReasoningFormat(args.reasoning_parser)))
    throw Invalid("--reasoning-parser {}: there is no such parser, want auto, none, {}",
                  args.reasoning_parser, ReasoningFormatNames());
}

}  // namespace switchyard
