// The model's files other than weights. They are the same in every checkpoint of a run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "model/config.h"
#include "train/app/options.h"

namespace switchyard::train {

// The configuration of --model.
struct TrainedConfig {
  std::filesystem::path path;   // path of config.json
  nlohmann::ordered_json json;  // unmodified contents
  ModelConfig config;
  int64_t mtp_layers = 0;  // options.mtp_layers, or config.json's value if that is -1
};

// Throws Error that names the flag for a missing file, and the errors of ParseModelConfig.
TrainedConfig ReadTrainedConfig(const TrainingOptions& options);

struct ModelFiles {
  ModelConfig config;
  int64_t mtp_layers = 0;
  // config.json, generation_config.json and the tokenizer's files
  std::vector<std::filesystem::path> files;
};

// Reads the model's config.json and writes it to the run's folder (output/.files), with the fields
// that loaders need: model_type, torch_dtype as saved, num_nextn_predict_layers, ids of special
// tokens. Also writes the tokenizer's files, and generation_config.json: that of the model, or else
// one with the end-of-sequence ids. Throws Error that names the file or flag: errors of
// LoadModelConfig, a missing tokenizer, kResource if the folder cannot be written.
ModelFiles PrepareModelFiles(const TrainingOptions& options);

// Throws Error kInvalid, naming the keys, if the checkpoint in `dir` was made from a config.json
// that differs in more than dtype and special tokens.
void CheckSameConfig(const std::filesystem::path& dir, const std::filesystem::path& config_json);

}  // namespace switchyard::train
