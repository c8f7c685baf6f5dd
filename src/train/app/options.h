// Options of a training run, and the model's files other than weights.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/parallel.h"
#include "model/config.h"
#include "profile/options.h"
#include "train/batch.h"
#include "train/data/corpus.h"
#include "train/data/encode.h"
#include "train/device/ranks.h"
#include "train/layers/lora.h"
#include "train/layers/recompute.h"
#include "train/math/product.h"
#include "train/run/layout.h"
#include "train/run/learner.h"
#include "train/run/trainer.h"

namespace switchyard::train {

// Options of a training run.

// A value type, set from the flags of `switchyard train`.
struct TrainingOptions {
  std::filesystem::path model;      // config.json, or the directory of one
  std::filesystem::path tokenizer;  // directory; empty: that of the model
  std::filesystem::path init_from;  // checkpoint of the initial weights; empty: random weights
  double init_deviation = 0.02;     // standard deviation of random weights
  uint64_t seed = 0;                // seed of random weights
  int64_t mtp_layers = -1;          // -1: value of config.json
  std::vector<std::filesystem::path> data;
  DocumentEncoder::ChatLoss chat_loss = DocumentEncoder::ChatLoss::kAssistant;
  bool routing_replay = true;  // false: given experts of documents are checked, but not used
  PackingOptions packing;
  LossOptions losses;  // losses.mtp_layers is ignored; `mtp_layers` above is used
  LearnerOptions learner;
  TrainerOptions trainer;   // includes the output directory; files.copied is ignored
  Layout layout;            // dp 0: the minimum that ep allows
  bool early_sums = false;  // overlap gradient sums with backward
  LoraOptions lora;         // without targets: all linear layers (LoraTargets)
  Recompute recompute = Recompute::kNone;
  int zero_stage = 0;  // 1: the copies of a parameter share its moments (ShardMoments)
  int threads = 1;     // compute threads per rank
  // Makes the operations of a rank's device (--device), which computes instead of the threads;
  // null: none. Collective. The result borrows both arguments.
  std::function<RankOps(LayoutRanks&, ThreadPool&)> device_ops;
  ProductDtype products = ProductDtype::kFloat32;  // --compute-dtype
  bool synchronous = false;                        // pairwise row exchange
  std::chrono::milliseconds timeout{300'000};      // time limit of each wait for another rank
  BackwardOptions backward() const {
    return {.recompute = recompute,
            .separate_weights = learner.order == schedule::Order::kZeroBubble};
  }
  std::string resume = "auto";              // auto, never, or the directory of a checkpoint
  bool tensorboard = false;                 // event files in output/tensorboard
  std::optional<profile::Options> profile;  // of every rank, if set
};

// The layout with dp filled in. Throws errors of CheckLayout.
Layout LayoutOf(const TrainingOptions& options, const ModelConfig& config);

// Throws Error kInvalid, naming the flag or what the model has, for options that train on CPUs and
// not on a device, and for FP8 products without options.device_ops. `layout`: of LayoutOf.
void CheckDevice(const TrainingOptions& options, const Layout& layout, const ModelConfig& config);

// The adapters with all fields filled in. Throws Error kInvalid, naming the flag, for targets that
// the model lacks, and for options that adapters exclude or need.
LoraOptions LoraOf(const TrainingOptions& options, const ModelConfig& config);

// The model's files other than weights. They are the same in every checkpoint of a run.

// The configuration of --model.
struct TrainedConfig {
  std::filesystem::path path;   // path of config.json
  nlohmann::ordered_json json;  // unmodified contents
  ModelConfig config;
  int64_t mtp_layers = 0;  // options.mtp_layers, or config.json's value if that is -1
};

// Throws Error that names the flag for a missing file, and the errors of ParseModelConfig.
TrainedConfig ReadTrainedConfig(const TrainingOptions& options);

// The description of the adapters in checkpoints: adapter_config.json of PEFT. It has another name
// there, because the weights beside it already include the adapters.
constexpr const char* kLoraFile = "lora.json";

struct ModelFiles {
  ModelConfig config;
  int64_t mtp_layers = 0;
  // config.json, generation_config.json and the tokenizer's files; with LoRA kLoraFile
  std::vector<std::filesystem::path> files;
};

// Reads the model's config.json and writes it to the run's folder (output/.files), with the fields
// that loaders need: model_type, torch_dtype as saved, num_nextn_predict_layers, ids of special
// tokens. Also writes the tokenizer's files, and generation_config.json: that of the model, or else
// one with the end-of-sequence ids. Throws Error that names the file or flag: errors of
// LoadModelConfig, a missing tokenizer, kResource if the folder cannot be written.
// kFound: another process of the run has written the files. Then this process only compares them,
// so that processes do not write them at the same time. Throws kInvalid if one differs or is
// missing: the process has another model, or the hosts do not share --output.
enum class RunFiles { kWrite, kFound };
ModelFiles PrepareModelFiles(const TrainingOptions& options, RunFiles run_files = RunFiles::kWrite);

// Throws Error kInvalid, naming the keys, if the checkpoint in `dir` was made from a config.json
// that differs in more than dtype and special tokens.
void CheckSameConfig(const std::filesystem::path& dir, const std::filesystem::path& config_json);
// Throws Error kInvalid, naming the flag, if the adapters of the checkpoint in `dir` have another
// rank, alpha or targets, or if only one of the checkpoint and the run has adapters.
void CheckSameLora(const std::filesystem::path& dir, const LoraOptions& lora);

}  // namespace switchyard::train
