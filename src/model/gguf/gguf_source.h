// Weights from GGUF files.
#pragma once

#include <memory>

#include "core/gguf_files.h"
#include "model/weights/source.h"

namespace switchyard {

// Borrows the files. Requests have the names of a Hugging Face checkpoint (gguf_names.h).
// - float32, bfloat16 and float16 matrices are views of the mapped file;
// - linears that the scheme of a request packs (SetGgufQuantization) are repacked once: MXFP4 to
//   kMxfp4, and Q4_0 to kInt4Group with groups of 32. Both hold the stored numbers exactly;
// - all others are expanded to the config's dtype.
// Values are those of ggml's reference code. Errors name file and tensor.
std::unique_ptr<WeightSource> MakeGgufSource(const GgufFiles& files, const ModelConfig& config,
                                             const CheckpointSourceOptions& options);

}  // namespace switchyard
