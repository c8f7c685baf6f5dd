// Checks of flags against each other and against the model, before memory is planned. All throw
// Error kInvalid, which names the flag.
#pragma once

#include "engine/config.h"

namespace switchyard {

// Checks values that need no model.
void CheckFlags(const EngineConfig& config);

// The following need the plan's model and device.
void CheckRecorder(const ExpertRecorderOptions& recorder, const EnginePlan& plan);
void CheckEplb(const EngineConfig& config, const EnginePlan& plan);
// flashinfer_mxfp4 requires MXFP4 experts. grouped_mlp, which replaces it here, supports any
// format.
void CheckRunnerFormat(const EngineConfig& config, const ModelConfig& model);
// GGUF models run on CPUs only.
void CheckGgufDevice(const EngineConfig& config, const EnginePlan& plan);

}  // namespace switchyard
