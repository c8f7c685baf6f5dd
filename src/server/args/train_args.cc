#include "server/args/train_args.h"

#include <CLI/CLI.hpp>

#include "core/error.h"
#include "server/args/known_flags.h"
#include "server/args/parse_words.h"
#include "server/args/yaml_config.h"

namespace switchyard {
namespace {

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

void Switch(CLI::App& app, const char* names, bool& value, const char* group, const char* help) {
  app.add_flag(names, value, help)
      ->group(group)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

void AddModelFlags(CLI::App& app, TrainArgs& a) {
  constexpr const char* kGroup = "Model";
  Flag(app, "--model,--model-path", a.model, kGroup,
       "config.json of the model, or a directory with one; its weights are not read");
  Flag(app, "--tokenizer-path", a.tokenizer_path, kGroup,
       "Directory of tokenizer.json, tokenizer_config.json and chat template; default: the "
       "model's");
  Flag(app, "--init-from", a.init_from, kGroup,
       "Directory of a checkpoint: begin with its weights, at step 0; default: made-up ones");
  Flag(app, "--init-deviation", a.init_deviation, kGroup, "Standard deviation of made-up weights")
      ->check(CLI::PositiveNumber);
  Flag(app, "--seed", a.seed, kGroup, "Of made-up weights and of the order of the data");
  Flag(app, "--mtp-layers", a.mtp_layers, kGroup,
       "Modules that predict further tokens; -1: config.json's num_nextn_predict_layers, or none")
      ->check(CLI::Range(-1, 16));
  Flag(app, "--mtp-weight", a.mtp_weight, kGroup, "Weight of their mean loss")
      ->check(CLI::NonNegativeNumber);
}

void AddDataFlags(CLI::App& app, TrainArgs& a) {
  constexpr const char* kGroup = "Data";
  // Values of the command line take the place of the file's: CLI11 would join the two lists.
  app.add_option_function<std::vector<std::string>>(
         "--data", [&a](const std::vector<std::string>& files) { a.data = files; },
         "Text files, .jsonl files ({\"text\": …} or {\"messages\": […]} in each line), or "
         "directories of them")
      ->group(kGroup)
      ->trigger_on_parse()
      ->expected(1, 1 << 20);
  Flag(app, "--length", a.length, kGroup, "Tokens of a row, at most max_position_embeddings")
      ->check(CLI::PositiveNumber);
  Switch(app, "--whole-documents", a.whole_documents, kGroup,
         "Do not split documents that fit into one row, and pad the rows instead (for chats)");
  Switch(app, "--in-order", a.in_order, kGroup, "Do not shuffle");
  Flag(app, "--chat-loss", a.chat_loss, kGroup,
       "What is learned of a chat: assistant (what an assistant's turn says), or all")
      ->check(CLI::IsMember({"assistant", "all"}));
}

void AddStepFlags(CLI::App& app, TrainArgs& a) {
  constexpr const char* kGroup = "Steps and optimizer";
  Flag(app, "--steps", a.steps, kGroup,
       "Needed: how many in all, those before a resumption included")
      ->check(CLI::PositiveNumber);
  Flag(app, "--rows-per-step", a.rows_per_step, kGroup, "Over all ranks")
      ->check(CLI::PositiveNumber);
  Flag(app, "--rows-per-pass", a.rows_per_pass, kGroup,
       "Rows that a rank computes at once: the size of a micro-batch")
      ->check(CLI::PositiveNumber);
  Flag(app, "--learning-rate,--lr", a.learning_rate, kGroup, "The largest");
  Flag(app, "--lr-schedule", a.lr_schedule, kGroup,
       "After the warm-up: cosine, wsd (stays, falls over the last --decay-steps), or constant")
      ->check(CLI::IsMember({"cosine", "wsd", "constant"}));
  Flag(app, "--final-lr-part", a.final_lr_part, kGroup,
       "Part of the learning rate that the last step has")
      ->check(CLI::Range(0.0, 1.0));
  Flag(app, "--warmup-steps", a.warmup_steps, kGroup, "Up to the learning rate by a straight line")
      ->check(CLI::NonNegativeNumber);
  Flag(app, "--decay-steps", a.decay_steps, kGroup, "Of wsd")->check(CLI::NonNegativeNumber);
  Flag(app, "--adam-beta1", a.adam_beta1, kGroup, "AdamW: memory of the gradient")
      ->check(CLI::Range(0.0, 1.0));
  Flag(app, "--adam-beta2", a.adam_beta2, kGroup, "AdamW: memory of its square")
      ->check(CLI::Range(0.0, 1.0));
  Flag(app, "--adam-epsilon", a.adam_epsilon, kGroup, "AdamW: added to the root")
      ->check(CLI::PositiveNumber);
  Flag(app, "--weight-decay", a.weight_decay, kGroup, "Of matrices, times the learning rate")
      ->check(CLI::NonNegativeNumber);
  Flag(app, "--clip-grad-norm", a.clip_grad_norm, kGroup,
       "Longest gradient of the whole model; 0: any")
      ->check(CLI::NonNegativeNumber);
  Flag(app, "--compute-dtype", a.compute_dtype, kGroup,
       "What matrix products take their operands in: float32, or bfloat16 (sums, weights, norms, "
       "softmax and routers stay float32); faster on CPUs with AVX512_BF16, slower on others")
      ->check(CLI::IsMember({"float32", "bfloat16"}));
}

void AddBalanceFlags(CLI::App& app, TrainArgs& a) {
  constexpr const char* kGroup = "Balance of experts";
  Flag(app, "--bias-step", a.bias_step, kGroup,
       "Auxiliary-loss-free: how far an expert's selection bias moves after a step; 0: not")
      ->check(CLI::NonNegativeNumber);
  Flag(app, "--bias-step-schedule", a.bias_step_schedule, kGroup,
       "That step over the run: rate (falls as the learning rate falls), or constant")
      ->check(CLI::IsMember({"rate", "constant"}));
  Flag(app, "--balance-loss", a.balance_loss, kGroup,
       "Weight of the balance loss over a micro-batch of all ranks")
      ->check(CLI::NonNegativeNumber);
  Flag(app, "--sequence-balance-loss", a.sequence_balance_loss, kGroup,
       "Weight of the balance loss within each sequence")
      ->check(CLI::NonNegativeNumber);
  Flag(app, "--z-loss", a.z_loss, kGroup, "Weight of the loss that keeps router logits small")
      ->check(CLI::NonNegativeNumber);
}

void AddRankFlags(CLI::App& app, TrainArgs& a) {
  constexpr const char* kGroup = "Ranks (threads of this process)";
  Flag(app, "--tp,--tp-size", a.tp, kGroup, "Ranks that share attention heads and dense layers")
      ->check(CLI::PositiveNumber);
  Flag(app, "--ep,--ep-size", a.ep, kGroup, "Ranks that experts are spread over; divides tp · dp")
      ->check(CLI::PositiveNumber);
  Flag(app, "--dp,--dp-size", a.dp, kGroup,
       "Groups that learn from rows of their own; 0: as few as --ep allows")
      ->check(CLI::NonNegativeNumber);
  Flag(app, "--pp,--pp-size", a.pp, kGroup, "Stages of layers, one after the other")
      ->check(CLI::PositiveNumber);
  Flag(app, "--threads", a.threads, kGroup, "Of each rank")->check(CLI::Range(1, 1024));
  Flag(app, "--exchange", a.exchange, kGroup,
       "Rows to experts: async (to all at once), or sync (pair by pair)")
      ->check(CLI::IsMember({"sync", "async"}));
  Flag(app, "--schedule", a.schedule, kGroup,
       "plain (one micro-batch after the other), or overlapped (forward of one beside the backward "
       "of the one before, so that exchanges run under computation)")
      ->check(CLI::IsMember({"plain", "overlapped"}));
  Switch(app, "--early-sums", a.early_sums, kGroup,
         "Sum a layer's gradients over ranks as soon as they are complete, under the rest of the "
         "backward pass, by a thread more for each rank");
  Switch(app, "--print-schedule", a.print_schedule, kGroup,
         "Print the list of operations of a step in this layout, and end");
  Flag(app, "--dist-timeout", a.timeout_seconds, kGroup, "Longest wait for another rank, seconds")
      ->check(CLI::PositiveNumber);
}

void AddOutputFlags(CLI::App& app, TrainArgs& a) {
  constexpr const char* kGroup = "Output";
  Flag(app, "--output", a.output, kGroup,
       "Directory of checkpoints, log.jsonl, pictures and final/, the model to serve");
  Flag(app, "--save-every", a.save_every, kGroup, "Steps between checkpoints; 0: the last alone")
      ->check(CLI::NonNegativeNumber);
  Flag(app, "--keep", a.keep, kGroup, "How many checkpoints stay; 0: all")
      ->check(CLI::NonNegativeNumber);
  Flag(app, "--dtype", a.dtype, kGroup, "Of saved weights: bf16 or float32")
      ->check(CLI::IsMember({"bf16", "float32"}));
  Flag(app, "--resume", a.resume, kGroup,
       "auto (go on from the last checkpoint in --output, if there is one), never, or the "
       "directory of a checkpoint");
  Flag(app, "--full-disk-wait", a.full_disk_wait_seconds, kGroup,
       "Seconds to wait for room where the last checkpoint cannot be written")
      ->check(CLI::NonNegativeNumber);
  Switch(app, "--export-only", a.export_only, kGroup,
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
  CLI::App app("Train a Mixture-of-Experts language model", "switchyard train");
  AddModelFlags(app, a);
  AddDataFlags(app, a);
  AddStepFlags(app, a);
  AddBalanceFlags(app, a);
  AddRankFlags(app, a);
  AddOutputFlags(app, a);
  std::string file;
  app.add_option("--config", file,
                 "YAML file of flags (names without the dashes); the command line overrides it")
      ->group("Miscellaneous");
  app.footer(kFooter);
  const std::vector<std::string> words = ExpandYamlConfig(args);
  const auto own = static_cast<std::ptrdiff_t>(words.size() - args.size());
  RefuseUnknownFlags(app, ConfigPath(args), {words.begin(), words.begin() + own}, args);
  if (!ParseWords(app, words)) return std::nullopt;
  CheckGiven(a);
  return a;
}

}  // namespace switchyard
