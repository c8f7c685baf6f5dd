// Configuration of a model from the metadata of its GGUF file.
#pragma once

#include <string>

#include "core/gguf_files.h"
#include "model/config.h"

namespace switchyard {

// The metadata, converted to the text of a checkpoint's files.
struct GgufConfig {
  std::string config;      // config.json
  std::string generation;  // generation_config.json: ids that end a text, sampling defaults
};

// Error kInvalid names the file and key: an architecture that is not supported (with those that
// are), a missing key, a setting that the architecture's family does not have, a tensor type that
// cannot be read.
GgufConfig ReadGgufConfig(const GgufFiles& files);

// GgufConfig::generation.
std::string GgufGeneration(const GgufFiles& files);

// Sets the schemes of linears that stay packed (gguf_source.h): those stored as Q8_0, Q4_0, Q4_K,
// Q5_K, Q6_K or MXFP4. A linear stays packed only if all its matrices, including those of all
// experts, have the same type. Gate and up must have the same type too. All other linears are
// expanded.
void SetGgufQuantization(const GgufFiles& files, QuantizationConfig* config);

}  // namespace switchyard
