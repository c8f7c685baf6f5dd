// Pooling models: embedding models and classifiers, which return one vector for each prompt.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard {

struct ModelConfig;

// How the rows of a prompt become one vector.
enum class Pooling : uint8_t {
  kNone,  // the model generates text
  kLast,  // the row of the last token
  kMean,  // the mean over all rows
};

struct PoolingConfig {
  Pooling type = Pooling::kLast;
  bool normalize = true;  // embeddings have length 1
  // For a classifier (...ForSequenceClassification): names of the classes. Empty: an embedding
  // model. The head `score.weight` [labels, H] is applied to each row.
  std::vector<std::string> labels;
  // Activation of a classifier's scores.
  enum class Activation : uint8_t { kSoftmax, kSigmoid, kIdentity };
  Activation activation = Activation::kSoftmax;

  bool classifies() const { return !labels.empty(); }
};

// Pooling flags of the command line.
struct PoolingFlags {
  bool is_embedding = false;  // --is-embedding
  // --pooler-config: a JSON object with "pooling_type" (or "seq_pooling_type") LAST or MEAN, and
  // "normalize" (or "use_activation").
  std::string pooler_config;
};

// Reads sentence-transformers' modules.json of a checkpoint, and the configuration of its pooling
// module. nullopt if the file does not exist or has no pooling module. Error for other kinds of
// pooling, and for modules that this program does not have.
std::optional<PoolingConfig> ReadPoolingModules(const std::filesystem::path& dir);

// Sets `model->pooling` for a checkpoint directory. A model has pooling in any of these cases:
// - it is a classifier, whose pooling was already read from config.json;
// - modules.json has a pooling module;
// - --is-embedding is set;
// - the architecture is a decoder without a head (...Model).
// Error for flags that contradict the checkpoint.
void SetPooling(const std::filesystem::path& dir, const PoolingFlags& flags, ModelConfig* model);

}  // namespace switchyard
