// Model options that follow from the model, the backend and the dtype.
#pragma once

#include "comm/mesh.h"
#include "model/config.h"
#include "model/options.h"

namespace switchyard {

// Sets the options that follow from others, so that callers cannot contradict them.
ModelOptions CompleteOptions(const ModelConfig& config, ModelOptions options,
                             const MeshShape& mesh);
// options.load with the formats of weights in a GPU's memory. On a CPU, unchanged.
LoadOptions PlacedFormats(const ModelOptions& options);
// The load options of CompleteOptions, with the formats of weights in a GPU's memory.
LoadOptions CompletePlacedLoad(const ModelConfig& config, const ModelOptions& options,
                               const MeshShape& shape);

}  // namespace switchyard
