// Log-probabilities and routed experts of each token of `switchyard train-score`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "model/config.h"
#include "train/data/corpus.h"
#include "train/model.h"

namespace switchyard::train {

// Compares the log-probabilities of a model with those of rollouts, and writes the values of each
// token to a file. Used by one thread.
class TokenReport {
 public:
  // `names`: [documents] "file:line". `path`: empty for no file. Throws kResource if the file
  // cannot be written.
  TokenReport(const ModelConfig& config, std::vector<std::string> names,
              const std::filesystem::path& path);

  // Adds the sequences of a pass over one rank. parts: [sequences]; logprobs: [T] of the targets,
  // NaN without a target. Writes the lines that score.h describes.
  void Add(const std::vector<EncodedDocument>& documents, std::span<const Part> parts,
           const Pass<float>& pass, std::span<const float> logprobs);

  // Adds "rollout_logprobs" if a document had log-probabilities. Closes the file; throws kResource
  // if it is incomplete.
  void AddTo(nlohmann::ordered_json* out);

 private:
  void Compare(const EncodedDocument& document, const Part& part, std::span<const float> logprobs);
  void Write(const Part& part, const Pass<float>& pass, int64_t begin,
             std::span<const float> logprobs);

  const ModelConfig& config_;
  const std::vector<std::string> names_;
  const std::filesystem::path path_;
  std::ofstream out_;
  int64_t compared_ = 0;
  double sum_ = 0.0, largest_ = 0.0;  // of absolute differences
};

}  // namespace switchyard::train
