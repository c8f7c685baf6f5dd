// The command lines of `switchyard train`, `train-score` and `train-picture`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace switchyard {

// The command line of `switchyard train`.

// Every flag is also a key of --config. The defaults are those of absent flags.
struct TrainArgs {
  // Model
  std::string model;               // --model: a config.json or its directory
  std::string tokenizer_path;      // --tokenizer-path; empty: the model's directory
  std::string init_from;           // --init-from: directory of a checkpoint's weights
  double init_deviation = 0.02;    // --init-deviation
  uint64_t seed = 0;               // --seed: of the weights and of the data's order
  int64_t mtp_layers = -1;         // --mtp-layers; -1: config.json's num_nextn_predict_layers
  double mtp_weight = 0.3;         // --mtp-weight
  std::string train_only = "all";  // --train-only
  int64_t lora_rank = 0;           // --lora-rank; 0: no adapters
  double lora_alpha = 0;           // --lora-alpha; 0: twice the rank
  std::vector<std::string> lora_targets;  // --lora-targets; empty: all linear layers
  // Data
  std::vector<std::string> data;        // --data
  int64_t length = 512;                 // --length: tokens of a row
  bool whole_documents = false;         // --whole-documents
  bool in_order = false;                // --in-order
  std::string chat_loss = "assistant";  // --chat-loss: assistant, all
  std::string routing_replay = "on";    // --routing-replay: on, off
  // Steps
  int64_t steps = 0;                   // --steps
  int64_t rows_per_step = 32;          // --rows-per-step: rows of a step over all ranks
  int64_t rows_per_pass = 8;           // --rows-per-pass: rows of a micro-batch on one rank
  double learning_rate = 1e-3;         // --learning-rate
  std::string lr_schedule = "cosine";  // --lr-schedule: cosine, wsd, constant
  double final_lr_part = 0.1;          // --final-lr-part, a fraction of the learning rate
  int64_t warmup_steps = 0;            // --warmup-steps
  int64_t decay_steps = 0;             // --decay-steps, for wsd
  double adam_beta1 = 0.9, adam_beta2 = 0.95, adam_epsilon = 1e-8;
  double weight_decay = 0.1;              // --weight-decay
  double clip_grad_norm = 1.0;            // --clip-grad-norm; 0: none
  std::string on_nonfinite = "stop";      // --on-nonfinite: stop, skip
  double spike_sigmas = 0;                // --spike-sigmas; 0: no rule for spikes
  int max_skipped_steps = 10;             // --max-skipped-steps in a row
  std::string compute_dtype = "float32";  // --compute-dtype of products: float32, bfloat16, fp8
  // Balance of experts
  double balance_loss = 0.0;  // --balance-loss: weight of the loss over a micro-batch of all ranks
  double sequence_balance_loss = 0.0;       // --sequence-balance-loss
  double z_loss = 0.0;                      // --z-loss
  double bias_step = 0.0;                   // --bias-step
  std::string bias_step_schedule = "rate";  // --bias-step-schedule
  // Ranks
  std::string device = "cpu";  // --device: cpu, cuda
  int base_gpu_id = 0;         // --base-gpu-id
  int gpu_id_step = 1;         // --gpu-id-step
  int tp = 1, ep = 1, pp = 1;
  int dp = 0;                      // --dp; 0: the minimum that --ep allows
  int threads = 1;                 // --threads, per rank
  std::string exchange = "async";  // --exchange: sync, async
  std::string schedule = "plain";  // --schedule: plain, overlapped, zero-bubble
  bool early_sums = false;         // --early-sums
  int zero_stage = 0;              // --zero-stage: 0, 1
  std::string recompute = "none";  // --recompute: none, moe, attention, layer
  bool print_schedule = false;     // --print-schedule
  double timeout_seconds = 300;    // --dist-timeout
  // Hosts and restarts
  int nnodes = 1, node_rank = 0;  // --nnodes, --node-rank
  std::string dist_init_addr;     // --dist-init-addr: HOST:PORT of node 0
  std::string dist_secret_file;   // --dist-secret-file
  int max_restarts = 0;           // --max-restarts after the death of a rank
  // --rank-stall-timeout of rank processes; 0: no limit; absent: 10
  std::optional<double> rank_stall_seconds;
  // Output
  std::string output;                    // --output
  int64_t save_every = 0;                // --save-every steps; 0: only after the last step
  int keep = 2;                          // --keep checkpoints; 0: all
  bool async_save = false;               // --async-save
  bool tensorboard = false;              // --tensorboard
  std::string profile;                   // --profile DIR; empty: no profile
  int64_t profile_start_step = 2;        // --profile-start-step, counted from 1 in this run
  int64_t profile_steps = 2;             // --profile-steps
  std::string dtype = "bf16";            // --dtype of saved weights: bf16, float32
  std::string resume = "auto";           // --resume: auto, never, or a checkpoint's directory
  int64_t full_disk_wait_seconds = 600;  // --full-disk-wait, for the final checkpoint
  bool export_only = false;              // --export-only

  // The command line with the entries of --config as flags, and without --config. Rank processes
  // parse it, so they have the same flags even if the file has changed.
  std::vector<std::string> words;
};

// Returns nothing after printing the help for --help. Throws kInvalid that names the flag.
std::optional<TrainArgs> ParseTrain(const std::vector<std::string>& args);

// The command lines of `switchyard train-score` and `switchyard train-picture`.

struct TrainScoreArgs {
  std::string model;                    // --model DIR
  std::string tokenizer_path;           // --tokenizer-path; empty: the model's
  std::vector<std::string> data;        // --data
  std::string chat_loss = "assistant";  // --chat-loss: assistant, all
  int64_t length = 512;                 // --length of a row
  int64_t rows_per_pass = 16;           // --rows-per-pass
  int threads = 1;                      // --threads
  std::string routing_replay = "on";    // --routing-replay: on, off
  std::string token_output;             // --token-output FILE; empty: none
  std::string output;                   // --output FILE; empty: standard output
};

struct TrainPictureArgs {
  std::vector<std::string> logs;    // arguments LOG, one or more
  std::vector<std::string> labels;  // --labels; empty: the directory names
  std::string key = "loss";         // --key: the plotted field of the log's lines
  std::string output;               // --output FILE.svg
  std::string title;                // --title; empty: the key
  std::optional<double> low, high;  // --low, --high: range of the y axis
};

// Returns nothing after printing the help for --help. Throws kInvalid that names the flag.
std::optional<TrainScoreArgs> ParseTrainScore(const std::vector<std::string>& args);
std::optional<TrainPictureArgs> ParseTrainPicture(const std::vector<std::string>& args);

}  // namespace switchyard
