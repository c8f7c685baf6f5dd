#include "server/args/train_args.h"

#include "core/command_line.h"
#include "core/error.h"
#include "server/args/command_words.h"

namespace switchyard {
namespace {

constexpr const char* kRoutingReplay =
    "on: tokens with given experts (routed_experts of a document, as in a response of /generate) "
    "are routed to them; off: all tokens select their own experts";

void AddModelFlags(CommandLine& app, TrainArgs& a) {
  constexpr const char* kGroup = "Model";
  app.Flag("--model,--model-path", a.model, kGroup,
           "config.json of the model, or its directory; weights are not read");
  app.Flag("--tokenizer-path", a.tokenizer_path, kGroup,
           "Directory of tokenizer, tokenizer_config.json and chat template; default: --model");
  app.Flag(
      "--init-from", a.init_from, kGroup,
      "Checkpoint directory of the initial weights, not read if the run resumes; default: random");
  app.Flag("--init-deviation", a.init_deviation, kGroup, "Standard deviation of random weights")
      .Positive();
  app.Flag("--seed", a.seed, kGroup, "Seed of random weights and of the data order");
  app.Flag("--mtp-layers", a.mtp_layers, kGroup,
           "Number of multi-token prediction modules; -1: num_nextn_predict_layers of config.json, "
           "or none")
      .Range(-1, 16);
  app.Flag("--mtp-weight", a.mtp_weight, kGroup,
           "Weight of the mean loss of the multi-token prediction modules")
      .NonNegative();
  app.Flag("--train-only", a.train_only, kGroup,
           "all, or mtp: only the multi-token prediction modules, for speculative decoding. Other "
           "weights of --init-from do not change; missing modules start with random weights")
      .OneOf({"all", "mtp"});
  app.Flag(
         "--lora-rank", a.lora_rank, kGroup,
         "Trains LoRA adapters of this rank; the weights of --init-from do not change. final/ has "
         "the sum, adapter/ the adapters in PEFT's layout. 0: trains all weights")
      .NonNegative();
  app.Flag("--lora-alpha", a.lora_alpha, kGroup,
           "Adapters are multiplied by alpha / rank; 0: twice the rank")
      .NonNegative();
  app.List("--lora-targets", a.lora_targets, kGroup,
           "Linear layers with adapters, such as q_proj up_proj; default: all of attention, dense "
           "layers and experts");
}

void AddDataFlags(CommandLine& app, TrainArgs& a) {
  constexpr const char* kGroup = "Data";
  app.List("--data", a.data, kGroup,
           "Text files, .jsonl files ({\"text\": …}, {\"messages\": […]} or a response of "
           "/generate in each line), .parquet files with columns of these names, or directories of "
           "them");
  app.Flag("--length", a.length, kGroup, "Tokens per row, at most max_position_embeddings")
      .Positive();
  app.Switch("--whole-documents", a.whole_documents, kGroup,
             "Do not split documents that fit into one row, and pad the rows instead (for chats)");
  app.Switch("--in-order", a.in_order, kGroup, "Disables shuffling");
  app.Flag("--chat-loss", a.chat_loss, kGroup,
           "Tokens of a chat that contribute to the loss: assistant (assistant turns), or all. In "
           "a rollout: its output, or all")
      .OneOf({"assistant", "all"});
  app.Flag("--routing-replay", a.routing_replay, kGroup, kRoutingReplay).OneOf({"on", "off"});
}

void AddStepFlags(CommandLine& app, TrainArgs& a) {
  constexpr const char* kGroup = "Steps and optimizer";
  app.Flag("--steps", a.steps, kGroup,
           "Total number of steps, including those before a resume (required)")
      .Positive();
  app.Flag("--rows-per-step", a.rows_per_step, kGroup,
           "Rows of a step over all ranks (global batch size)")
      .Positive();
  app.Flag("--rows-per-pass", a.rows_per_pass, kGroup, "Rows of a micro-batch on one rank")
      .Positive();
  app.Flag("--learning-rate,--lr", a.learning_rate, kGroup, "Peak learning rate");
  app.Flag("--lr-schedule", a.lr_schedule, kGroup,
           "After the warm-up: cosine, wsd (constant, then decay over the last --decay-steps), or "
           "constant")
      .OneOf({"cosine", "wsd", "constant"});
  app.Flag("--final-lr-part", a.final_lr_part, kGroup,
           "Learning rate of the last step, as a fraction of the peak")
      .Range(0.0, 1.0);
  app.Flag("--warmup-steps", a.warmup_steps, kGroup, "Steps of linear warm-up").NonNegative();
  app.Flag("--decay-steps", a.decay_steps, kGroup, "Decay steps of wsd").NonNegative();
  app.Flag("--adam-beta1", a.adam_beta1, kGroup, "AdamW: decay rate of the first moment")
      .Range(0.0, 1.0);
  app.Flag("--adam-beta2", a.adam_beta2, kGroup, "AdamW: decay rate of the second moment")
      .Range(0.0, 1.0);
  app.Flag("--adam-epsilon", a.adam_epsilon, kGroup,
           "AdamW: added to the square root of the second moment")
      .Positive();
  app.Flag("--weight-decay", a.weight_decay, kGroup,
           "Decoupled weight decay of matrices, multiplied by the learning rate")
      .NonNegative();
  app.Flag("--clip-grad-norm", a.clip_grad_norm, kGroup,
           "Maximum norm of the global gradient; 0: no clipping")
      .NonNegative();
  app.Flag("--on-nonfinite", a.on_nonfinite, kGroup,
           "If the loss or a gradient of a step is not finite: stop (end the run), or skip (leave "
           "the weights as they are and continue)")
      .OneOf({"stop", "skip"});
  app.Flag("--spike-sigmas", a.spike_sigmas, kGroup,
           "Skips the update of a step whose loss or gradient norm exceeds the mean of the last "
           "128 steps by more than this many standard deviations; 0: off")
      .NonNegative();
  app.Flag("--max-skipped-steps", a.max_skipped_steps, kGroup,
           "Skipped steps in a row; more end the run")
      .NonNegative();
  app.Flag("--compute-dtype", a.compute_dtype, kGroup,
           "Format of matrix product operands: float32, or bfloat16 (sums, weights, norms, softmax "
           "and routers stay float32). bfloat16 is faster on CPUs with AVX512_BF16 and slower on "
           "others. fp8, on Hopper GPUs: e4m3 with scales in attention's projections, dense layers "
           "and experts, and bfloat16 elsewhere")
      .OneOf({"float32", "bfloat16", "fp8"});
}

void AddBalanceFlags(CommandLine& app, TrainArgs& a) {
  constexpr const char* kGroup = "Balance of experts";
  app.Flag("--bias-step", a.bias_step, kGroup,
           "Auxiliary-loss-free balancing: change of an expert's selection bias per step; 0: off")
      .NonNegative();
  app.Flag("--bias-step-schedule", a.bias_step_schedule, kGroup,
           "Schedule of --bias-step: rate (proportional to the learning rate), or constant")
      .OneOf({"rate", "constant"});
  app.Flag("--balance-loss", a.balance_loss, kGroup,
           "Weight of the balance loss over one micro-batch of all ranks")
      .NonNegative();
  app.Flag("--sequence-balance-loss", a.sequence_balance_loss, kGroup,
           "Weight of the balance loss within each sequence")
      .NonNegative();
  app.Flag("--z-loss", a.z_loss, kGroup,
           "Weight of the router z-loss, which keeps router logits small")
      .NonNegative();
}

void AddRankFlags(CommandLine& app, TrainArgs& a) {
  constexpr const char* kGroup = "Ranks (tp x dp x pp)";
  app.Flag("--device", a.device, kGroup,
           "Device that computes: cpu, or cuda (a GPU for each rank, with --compute-dtype bfloat16 "
           "or fp8)")
      .OneOf({"cpu", "cuda"});
  app.Flag("--base-gpu-id", a.base_gpu_id, kGroup, "GPU of the first rank").NonNegative();
  app.Flag("--gpu-id-step", a.gpu_id_step, kGroup,
           "GPU index difference between consecutive ranks; 0: all ranks on one GPU (for tests)")
      .NonNegative();
  app.Flag("--tp,--tp-size", a.tp, kGroup,
           "Tensor-parallel ranks, which shard attention heads and dense layers")
      .Positive();
  app.Flag("--ep,--ep-size", a.ep, kGroup, "Expert-parallel ranks; a divisor of tp x dp")
      .Positive();
  app.Flag("--dp,--dp-size", a.dp, kGroup, "Data-parallel groups; 0: the minimum that --ep allows")
      .NonNegative();
  app.Flag("--pp,--pp-size", a.pp, kGroup, "Pipeline stages").Positive();
  app.Flag("--threads", a.threads, kGroup, "Compute threads per rank").Range(1, 1024);
  app.Flag("--exchange", a.exchange, kGroup,
           "Exchange of rows with the experts: async (with all ranks concurrently), or sync "
           "(pairwise)")
      .OneOf({"sync", "async"});
  app.Flag("--schedule", a.schedule, kGroup,
           "plain (micro-batches one after the other), overlapped (the forward of one "
           "micro-batch runs with the backward of the previous one, to hide exchanges), or "
           "zero-bubble (weight gradients fill the waits of pipeline stages)")
      .OneOf({"plain", "overlapped", "zero-bubble"});
  app.Switch("--early-sums", a.early_sums, kGroup,
             "Reduces a layer's gradients over ranks as soon as they are complete, overlapped with "
             "the backward pass, on one more thread per rank");
  app.Flag("--zero-stage", a.zero_stage, kGroup,
           "1: the ranks with copies of a parameter share AdamW's moments (ZeRO stage 1, "
           "Megatron's distributed optimizer); gradients are reduce-scattered and parameters "
           "all-gathered. Results have the same bits. 0: every copy has all moments")
      .Range(0, 1);
  app.Flag("--recompute", a.recompute, kGroup,
           "Activations that the backward pass computes again instead of keeping them: none, moe "
           "(experts), attention, or layer (all but the input of each layer, its router and "
           "received rows). Results have the same bits")
      .OneOf({"none", "moe", "attention", "layer"});
  app.Switch("--print-schedule", a.print_schedule, kGroup,
             "Prints the operations of a step in this layout and exits");
  app.Flag("--dist-timeout", a.timeout_seconds, kGroup,
           "Timeout in seconds of a rank that waits for another rank, and of a host that waits for "
           "the other hosts")
      .Positive();
}

void AddHostFlags(CommandLine& app, TrainArgs& a) {
  constexpr const char* kGroup = "Hosts and restarts";
  app.Flag("--nnodes", a.nnodes, kGroup,
           "Hosts, each with an equal share of the ranks; run the same command on each. Ranks are "
           "also found in the environment of mpirun, srun and torchrun, one per process")
      .Positive();
  app.Flag("--node-rank", a.node_rank, kGroup,
           "Index of this host, 0 to nnodes - 1; host 0 writes the log")
      .NonNegative();
  app.Flag("--dist-init-addr", a.dist_init_addr, kGroup,
           "HOST:PORT of host 0, at which the hosts meet");
  app.Flag(
      "--dist-secret-file", a.dist_secret_file, kGroup,
      "File with a secret of at least 16 bytes, equal on all hosts, for mutual authentication. "
      "Without it, any host that reaches --dist-init-addr can join or end the run");
  app.Flag(
         "--max-restarts", a.max_restarts, kGroup,
         "Restarts after the death of a rank: all ranks go on from the last checkpoint. Ranks are "
         "then processes; by default, ranks of a single host are threads of this process")
      .NonNegative();
  app.Flag("--rank-stall-timeout", a.rank_stall_seconds, kGroup,
           "Seconds for which a rank process of this host may be stopped (SIGSTOP) before it is "
           "killed, 10 by default. 0: only --dist-timeout limits the time")
      .Range(0.0, 1e6);
}

void AddOutputFlags(CommandLine& app, TrainArgs& a) {
  constexpr const char* kGroup = "Output";
  app.Flag("--output", a.output, kGroup,
           "Directory of checkpoints, log.jsonl, figures, and final/, the model to serve");
  app.Flag("--save-every", a.save_every, kGroup,
           "Steps between checkpoints; 0: only after the last step")
      .NonNegative();
  app.Flag("--keep", a.keep, kGroup, "Number of checkpoints to keep; 0: all").NonNegative();
  app.Switch("--async-save", a.async_save, kGroup,
             "Writes the checkpoints of --save-every in the background, from a copy in memory (12 "
             "bytes per parameter)");
  app.Switch("--tensorboard", a.tensorboard, kGroup,
             "Also writes the numbers of log.jsonl to TensorBoard event files, in "
             "<output>/tensorboard");
  app.Flag("--profile", a.profile, kGroup,
           "Writes a Chrome trace of some steps to this directory, a file for each rank");
  app.Flag("--profile-start-step", a.profile_start_step, kGroup,
           "First step of --profile, counted from the start or resumption of the run")
      .Positive();
  app.Flag("--profile-steps", a.profile_steps, kGroup, "Number of steps of --profile").Positive();
  app.Flag("--dtype", a.dtype, kGroup, "Format of saved weights: bf16 or float32")
      .OneOf({"bf16", "float32"});
  app.Flag("--resume", a.resume, kGroup,
           "auto (from the last checkpoint in --output, if any), never, or a checkpoint directory");
  app.Flag(
         "--full-disk-wait", a.full_disk_wait_seconds, kGroup,
         "Maximum seconds for which saving the final checkpoint is retried while the disk is full")
      .NonNegative();
  app.Switch("--export-only", a.export_only, kGroup,
             "Exports final/ from the last checkpoint in --output, without training");
}

constexpr const char* kFooter = R"(
A YAML file has the same names without dashes:

  # train.yaml
  model: config.json
  tokenizer-path: tokenizer
  data: [chats.jsonl, prose.txt]
  steps: 2000
  learning-rate: 0.003
  bias-step: 0.001

  switchyard train --config train.yaml --output run --ep 2 --save-every 200
  switchyard serve --model-path run/final

SIGINT or SIGTERM saves a checkpoint and ends the run; the same command resumes it. A second signal ends it immediately.
)";

std::vector<std::string> WithoutConfig(const std::vector<std::string>& words) {
  std::vector<std::string> kept;
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--config") {
      ++i;  // its value
    } else if (!words[i].starts_with("--config=")) {
      kept.push_back(words[i]);
    }
  }
  return kept;
}

// Checks the required flags.
void CheckGiven(const TrainArgs& a) {
  const auto want = [](bool given, const char* flag, const char* what) {
    if (!given) throw Invalid("{} is missing: {}; see switchyard train --help", flag, what);
  };
  if (a.print_schedule) return want(!a.model.empty(), "--model", "config.json of the model");
  want(!a.output.empty(), "--output", "the directory of the run");
  if (a.export_only) return;
  want(!a.model.empty(), "--model", "config.json of the model to train");
  want(!a.data.empty(), "--data", "the files to learn from");
  want(a.steps > 0, "--steps", "how long to train");
}

// Refuses flags that have no effect with the others.
void CheckEffects(const CommandLine& app, const TrainArgs& a) {
  if (a.lora_rank == 0 && (a.lora_alpha > 0 || !a.lora_targets.empty()))
    throw Invalid("{}: adapters are trained only with --lora-rank",
                  a.lora_alpha > 0 ? "--lora-alpha" : "--lora-targets");
  if (a.async_save && a.save_every == 0)
    throw Invalid("--async-save: writes the checkpoints of --save-every, which is 0");
  for (const char* flag : {"--base-gpu-id", "--gpu-id-step"})
    if (app.Given(flag) && a.device != "cuda")
      throw Invalid("{}: GPUs compute only with --device cuda", flag);
  for (const char* flag : {"--profile-start-step", "--profile-steps"})
    if (app.Given(flag) && a.profile.empty())
      throw Invalid("{}: steps are recorded only with --profile", flag);
  if (app.Given("--max-skipped-steps") && a.on_nonfinite != "skip" && a.spike_sigmas == 0)
    throw Invalid(
        "--max-skipped-steps: steps are skipped only with --on-nonfinite skip or --spike-sigmas");
}

}  // namespace

std::optional<TrainArgs> ParseTrain(const std::vector<std::string>& args) {
  TrainArgs a;
  CommandLine app("Train a Mixture-of-Experts language model", "switchyard train");
  AddModelFlags(app, a);
  AddDataFlags(app, a);
  AddStepFlags(app, a);
  AddBalanceFlags(app, a);
  AddRankFlags(app, a);
  AddHostFlags(app, a);
  AddOutputFlags(app, a);
  std::string file;
  app.Option("--config", file,
             "YAML file of flags (names without the dashes); the command line overrides it")
      .Group("Miscellaneous");
  app.Footer(kFooter);
  const std::vector<std::string> words = ExpandYamlConfig(args);
  const auto own = static_cast<std::ptrdiff_t>(words.size() - args.size());
  RefuseUnknownFlags(app, ConfigPath(args), {words.begin(), words.begin() + own}, args);
  if (!ParseWords(app, words)) return std::nullopt;
  CheckGiven(a);
  CheckEffects(app, a);
  a.words = WithoutConfig(words);
  return a;
}

std::optional<TrainScoreArgs> ParseTrainScore(const std::vector<std::string>& args) {
  TrainScoreArgs a;
  CommandLine app(
      "Scores a model on held-out text, as JSON: next-token loss and accuracy, acceptance rate of "
      "MTP drafts, expert balance",
      "switchyard train-score");
  app.Option("--model,--model-path", a.model, "Directory of a checkpoint").Required();
  app.Option("--tokenizer-path", a.tokenizer_path,
             "Directory of the tokenizer; default: the model's");
  app.Option("--data", a.data, "Text, .jsonl and .parquet files, or directories of them")
      .Required();
  app.Option("--chat-loss", a.chat_loss, "Tokens of a chat that are scored: assistant, or all")
      .ShowDefault()
      .OneOf({"assistant", "all"});
  app.Option("--routing-replay", a.routing_replay, kRoutingReplay)
      .ShowDefault()
      .OneOf({"on", "off"});
  app.Option("--token-output", a.token_output,
             "File of JSON lines to write: ids, log-probabilities and routed experts of the tokens "
             "of each sequence");
  app.Option("--length", a.length,
             "Tokens per row, at most max_position_embeddings; longer documents are split")
      .ShowDefault()
      .Positive();
  app.Option("--rows-per-pass", a.rows_per_pass, "Rows per forward pass").ShowDefault().Positive();
  app.Option("--threads", a.threads).ShowDefault().Range(1, 1024);
  app.Option("--output", a.output, "File to write; default: standard output");
  if (!ParseWords(app, args)) return std::nullopt;
  return a;
}

std::optional<TrainPictureArgs> ParseTrainPicture(const std::vector<std::string>& args) {
  TrainPictureArgs a;
  CommandLine app("Draws training logs as an SVG figure", "switchyard train-picture");
  app.Option("LOG", a.logs, "log.jsonl of a run, or the run's directory").Required();
  app.Option("--output", a.output, "SVG file to write").Required();
  app.Option("--labels", a.labels, "One label per log; default: the directory names");
  app.Option("--key", a.key,
             "Key of log.jsonl whose values are drawn, such as loss, main, mtp, balance, "
             "learning_rate, gradient_norm, tokens_per_second, balancedness, "
             "balancedness_worst, dead_experts")
      .ShowDefault();
  app.Option("--title", a.title, "Title of the figure; default: the key");
  app.Option("--low", a.low, "Lower end of the y axis; default: from the data");
  app.Option("--high", a.high, "Upper end of the y axis; default: from the data");
  if (!ParseWords(app, args)) return std::nullopt;
  if (!a.labels.empty() && a.labels.size() != a.logs.size()) {
    throw Invalid("--labels: {} labels for {} logs; give one per log", a.labels.size(),
                  a.logs.size());
  }
  if (a.low && a.high && *a.low >= *a.high) {
    throw Invalid("--low {} is not below --high {}", *a.low, *a.high);
  }
  return a;
}

}  // namespace switchyard
