// The files of a model that training does not change, as checkpoints repeat them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "model/config.h"
#include "train/app/options.h"

namespace switchyard::train {

// The model of --model.
struct TrainedConfig {
  std::filesystem::path path;   // of config.json
  nlohmann::ordered_json json;  // as it stands there
  ModelConfig config;
  int64_t mtp_layers = 0;  // options.mtp_layers, or what the file says
};

// Throws Error that names the flag: a file that is not there, what ParseModelConfig refuses.
TrainedConfig ReadTrainedConfig(const TrainingOptions& options);

struct ModelFiles {
  ModelConfig config;
  int64_t mtp_layers = 0;
  std::vector<std::filesystem::path> files;  // config.json, generation_config.json, tokenizer's
};

// Reads the model's config.json and writes it into the run's folder (output/.files), completed by
// what whoever loads a checkpoint needs: model_type, torch_dtype as saved,
// num_nextn_predict_layers, ids of special tokens; beside it generation_config.json (the model's,
// or one with the ids that end a text) and the tokenizer's files. Throws Error that names the file
// or flag: what LoadModelConfig refuses, a tokenizer that is not there, kResource where the folder
// cannot be written.
ModelFiles PrepareModelFiles(const TrainingOptions& options);

// Throws Error kInvalid, naming the keys, where the checkpoint in `dir` was made from a config.json
// that differs in more than dtype and special tokens.
void CheckSameConfig(const std::filesystem::path& dir, const std::filesystem::path& config_json);

}  // namespace switchyard::train
