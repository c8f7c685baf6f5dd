#include "server/args/train_args.h"

#include "core/command_line.h"
#include "core/error.h"
#include "server/args/known_flags.h"
#include "server/args/parse_words.h"
#include "server/args/yaml_config.h"

namespace switchyard {
namespace {

void AddModelFlags(CommandLine& app, TrainArgs& a) {
  constexpr const char* kGroup = "Model";
  app.Flag("--model,--model-path", a.model, kGroup,
           "config.json of the model, or a directory with one; its weights are not read");
  app.Flag("--tokenizer-path", a.tokenizer_path, kGroup,
           "Directory of tokenizer.json, tokenizer_config.json and chat template; default: the "
           "model's");
  app.Flag("--init-from", a.init_from, kGroup,
           "Directory of a checkpoint: begin with its weights, at step 0; default: made-up ones");
  app.Flag("--init-deviation", a.init_deviation, kGroup, "Standard deviation of made-up weights")
      .Positive();
  app.Flag("--seed", a.seed, kGroup, "Of made-up weights and of the order of the data");
  app.Flag(
         "--mtp-layers", a.mtp_layers, kGroup,
         "Modules that predict further tokens; -1: config.json's num_nextn_predict_layers, or none")
      .Range(-1, 16);
  app.Flag("--mtp-weight", a.mtp_weight, kGroup, "Weight of their mean loss").NonNegative();
}

void AddDataFlags(CommandLine& app, TrainArgs& a) {
  constexpr const char* kGroup = "Data";
  app.List("--data", a.data, kGroup,
           "Text files, .jsonl files ({\"text\": …} or {\"messages\": […]} in each line), or "
           "directories of them");
  app.Flag("--length", a.length, kGroup, "Tokens of a row, at most max_position_embeddings")
      .Positive();
  app.Switch("--whole-documents", a.whole_documents, kGroup,
             "Do not split documents that fit into one row, and pad the rows instead (for chats)");
  app.Switch("--in-order", a.in_order, kGroup, "Do not shuffle");
  app.Flag("--chat-loss", a.chat_loss, kGroup,
           "What is learned of a chat: assistant (what an assistant's turn says), or all")
      .OneOf({"assistant", "all"});
}

void AddStepFlags(CommandLine& app, TrainArgs& a) {
  constexpr const char* kGroup = "Steps and optimizer";
  app.Flag("--steps", a.steps, kGroup,
           "Needed: how many in all, those before a resumption included")
      .Positive();
  app.Flag("--rows-per-step", a.rows_per_step, kGroup, "Over all ranks").Positive();
  app.Flag("--rows-per-pass", a.rows_per_pass, kGroup,
           "Rows that a rank computes at once: the size of a micro-batch")
      .Positive();
  app.Flag("--learning-rate,--lr", a.learning_rate, kGroup, "The largest");
  app.Flag("--lr-schedule", a.lr_schedule, kGroup,
           "After the warm-up: cosine, wsd (stays, falls over the last --decay-steps), or constant")
      .OneOf({"cosine", "wsd", "constant"});
  app.Flag("--final-lr-part", a.final_lr_part, kGroup,
           "Part of the learning rate that the last step has")
      .Range(0.0, 1.0);
  app.Flag("--warmup-steps", a.warmup_steps, kGroup, "Up to the learning rate by a straight line")
      .NonNegative();
  app.Flag("--decay-steps", a.decay_steps, kGroup, "Of wsd").NonNegative();
  app.Flag("--adam-beta1", a.adam_beta1, kGroup, "AdamW: memory of the gradient").Range(0.0, 1.0);
  app.Flag("--adam-beta2", a.adam_beta2, kGroup, "AdamW: memory of its square").Range(0.0, 1.0);
  app.Flag("--adam-epsilon", a.adam_epsilon, kGroup, "AdamW: added to the root").Positive();
  app.Flag("--weight-decay", a.weight_decay, kGroup, "Of matrices, times the learning rate")
      .NonNegative();
  app.Flag("--clip-grad-norm", a.clip_grad_norm, kGroup,
           "Longest gradient of the whole model; 0: any")
      .NonNegative();
  app.Flag(
         "--compute-dtype", a.compute_dtype, kGroup,
         "What matrix products take their operands in: float32, or bfloat16 (sums, weights, norms, "
         "softmax and routers stay float32); faster on CPUs with AVX512_BF16, slower on others")
      .OneOf({"float32", "bfloat16"});
}

void AddBalanceFlags(CommandLine& app, TrainArgs& a) {
  constexpr const char* kGroup = "Balance of experts";
  app.Flag("--bias-step", a.bias_step, kGroup,
           "Auxiliary-loss-free: how far an expert's selection bias moves after a step; 0: not")
      .NonNegative();
  app.Flag("--bias-step-schedule", a.bias_step_schedule, kGroup,
           "That step over the run: rate (falls as the learning rate falls), or constant")
      .OneOf({"rate", "constant"});
  app.Flag("--balance-loss", a.balance_loss, kGroup,
           "Weight of the balance loss over a micro-batch of all ranks")
      .NonNegative();
  app.Flag("--sequence-balance-loss", a.sequence_balance_loss, kGroup,
           "Weight of the balance loss within each sequence")
      .NonNegative();
  app.Flag("--z-loss", a.z_loss, kGroup, "Weight of the loss that keeps router logits small")
      .NonNegative();
}

void AddRankFlags(CommandLine& app, TrainArgs& a) {
  constexpr const char* kGroup = "Ranks (threads of this process)";
  app.Flag("--tp,--tp-size", a.tp, kGroup, "Ranks that share attention heads and dense layers")
      .Positive();
  app.Flag("--ep,--ep-size", a.ep, kGroup, "Ranks that experts are spread over; divides tp · dp")
      .Positive();
  app.Flag("--dp,--dp-size", a.dp, kGroup,
           "Groups that learn from rows of their own; 0: as few as --ep allows")
      .NonNegative();
  app.Flag("--pp,--pp-size", a.pp, kGroup, "Stages of layers, one after the other").Positive();
  app.Flag("--threads", a.threads, kGroup, "Of each rank").Range(1, 1024);
  app.Flag("--exchange", a.exchange, kGroup,
           "Rows to experts: async (to all at once), or sync (pair by pair)")
      .OneOf({"sync", "async"});
  app.Flag("--schedule", a.schedule, kGroup,
           "plain (one micro-batch after the other), or overlapped (forward of one beside the "
           "backward "
           "of the one before, so that exchanges run under computation)")
      .OneOf({"plain", "overlapped"});
  app.Switch(
      "--early-sums", a.early_sums, kGroup,
      "Sum a layer's gradients over ranks as soon as they are complete, under the rest of the "
      "backward pass, by a thread more for each rank");
  app.Switch("--print-schedule", a.print_schedule, kGroup,
             "Print the list of operations of a step in this layout, and end");
  app.Flag("--dist-timeout", a.timeout_seconds, kGroup, "Longest wait for another rank, seconds")
      .Positive();
}

void AddOutputFlags(CommandLine& app, TrainArgs& a) {
  constexpr const char* kGroup = "Output";
  app.Flag("--output", a.output, kGroup,
           "Directory of checkpoints, log.jsonl, pictures and final/, the model to serve");
  app.Flag("--save-every", a.save_every, kGroup, "Steps between checkpoints; 0: the last alone")
      .NonNegative();
  app.Flag("--keep", a.keep, kGroup, "How many checkpoints stay; 0: all").NonNegative();
  app.Flag("--dtype", a.dtype, kGroup, "Of saved weights: bf16 or float32")
      .OneOf({"bf16", "float32"});
  app.Flag("--resume", a.resume, kGroup,
           "auto (go on from the last checkpoint in --output, if there is one), never, or the "
           "directory of a checkpoint");
  app.Flag("--full-disk-wait", a.full_disk_wait_seconds, kGroup,
           "Seconds to wait for room where the last checkpoint cannot be written")
      .NonNegative();
  app.Switch("--export-only", a.export_only, kGroup,
             "Do not train: make --output's final/ of its last checkpoint");
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

SIGINT or SIGTERM saves a checkpoint and ends; the same command goes on from it. A second one ends at once.
)";

// What a run cannot do without.
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

}  // namespace

std::optional<TrainArgs> ParseTrain(const std::vector<std::string>& args) {
  TrainArgs a;
  CommandLine app("Train a Mixture-of-Experts language model", "switchyard train");
  AddModelFlags(app, a);
  AddDataFlags(app, a);
  AddStepFlags(app, a);
  AddBalanceFlags(app, a);
  AddRankFlags(app, a);
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
  return a;
}

}  // namespace switchyard
