// Options of a training run.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "train/data/encode.h"
#include "train/data/packing.h"
#include "train/losses.h"
#include "train/math/product_dtype.h"
#include "train/run/layout.h"
#include "train/run/learner.h"
#include "train/run/trainer.h"

namespace switchyard::train {

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
  PackingOptions packing;
  LossOptions losses;  // losses.mtp_layers is ignored; `mtp_layers` above is used
  LearnerOptions learner;
  TrainerOptions trainer;   // includes the output directory; files.copied is ignored
  Layout layout;            // dp 0: the minimum that ep allows
  bool early_sums = false;  // overlap gradient sums with backward
  int threads = 1;          // compute threads per rank
  ProductDtype products = ProductDtype::kFloat32;  // --compute-dtype
  bool synchronous = false;                        // pairwise row exchange
  std::chrono::milliseconds timeout{300'000};      // time limit of each wait for another rank
  std::string resume = "auto";                     // auto, never, or the directory of a checkpoint
};

// The layout with dp filled in. Throws errors of CheckLayout.
Layout LayoutOf(const TrainingOptions& options, const ModelConfig& config);

}  // namespace switchyard::train
