// Checks of a checkpoint that replaces the weights of running ranks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/regular_file.h"
#include "engine/config.h"
#include "server/front/rank_weights.h"
#include "server/ranks/overlay_checkpoint.h"

namespace switchyard {

// The configuration files of a checkpoint, as they were when they were read. Plain value.
class CheckpointConfig {
 public:
  // `path`: a directory or GGUF file. Missing files are empty.
  static CheckpointConfig Read(const std::filesystem::path& path);
  // Names the first value or file in which `next` differs; "" if the models are the same. Values
  // without effect on the model are not compared, such as the version of the program that wrote the
  // file.
  std::string DescribeDifference(const CheckpointConfig& next) const;

 private:
  std::string model_;                   // config.json, or the metadata of a GGUF file
  std::string modules_, quantization_;  // modules.json, hf_quant_config.json
};

struct NewWeights {
  EngineConfig config;           // of the present ranks, with the new checkpoint
  std::vector<FileStamp> files;  // its weight files
  // If the new checkpoint is an overlay: its owner, which must live as long as the weights.
  std::shared_ptr<const OverlayCheckpoint> overlay;
};

// `present`: the configuration of the ranks; `config`: the files of their checkpoint; `now`: the
// weights that an update from shared memory completes. Reads the
// headers of the new checkpoint, but no weights. Throws Error that names what is missing, refused
// or different.
NewWeights CheckNewWeights(const EngineConfig& present, const CheckpointConfig& config,
                           const WeightUpdate& update, const WeightsState& now);

// Value of --init-expert-location for a placement of experts. `slots`: [layers, slots] the logical
// expert of each slot; −1 in layers without experts.
std::string LocationOf(const std::vector<int32_t>& slots, int64_t layers);

}  // namespace switchyard
