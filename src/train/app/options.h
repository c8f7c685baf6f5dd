// What a training run is told.
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

// A value. Names of flags in comments: the command line fills each field from one.
struct TrainingOptions {
  std::filesystem::path model;      // config.json, or the directory of one
  std::filesystem::path tokenizer;  // directory; empty: the model's
  std::filesystem::path init_from;  // checkpoint whose weights the run begins with; empty: made up
  double init_deviation = 0.02;     // of made-up weights
  uint64_t seed = 0;                // of made-up weights
  int64_t mtp_layers = -1;          // -1: what config.json says
  std::vector<std::filesystem::path> data;
  DocumentEncoder::ChatLoss chat_loss = DocumentEncoder::ChatLoss::kAssistant;
  PackingOptions packing;
  LossOptions losses;  // its mtp_layers are not read
  LearnerOptions learner;
  TrainerOptions trainer;                          // output included; its files.copied are not read
  Layout layout;                                   // dp 0: as few as ep allows
  bool early_sums = false;                         // of gradients, under the backward pass
  int threads = 1;                                 // of each rank
  ProductDtype products = ProductDtype::kFloat32;  // --compute-dtype
  bool synchronous = false;                        // exchange of rows pair by pair
  std::chrono::milliseconds timeout{300'000};      // for another rank
  std::string resume = "auto";                     // auto, never, or the directory of a checkpoint
};

// The layout with dp filled in. Throws CheckLayout's errors.
Layout LayoutOf(const TrainingOptions& options, const ModelConfig& config);

}  // namespace switchyard::train
