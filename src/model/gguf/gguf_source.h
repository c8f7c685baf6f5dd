// Weights from GGUF files.
#pragma once

#include <memory>

#include "core/gguf_files.h"
#include "model/weights/source.h"

namespace switchyard {

// Borrows the files. Requests have the names of a Hugging Face checkpoint (gguf_names.h).
// - float32, bfloat16 and float16 matrices are views of the mapped file;
// - linears that the scheme of a request packs (SetGgufQuantization) are repacked once, into panels
//   (quant/panels.h) of Q8_0, Q4_0, Q4_K, Q5_K, Q6_K, IQ4_XS and MXFP4. The packed copy holds the
//   stored numbers exactly and is the only one. If activation rows are not int8, or columns begin
//   within a block of a panel, MXFP4 becomes kMxfp4, Q4_0 kInt4Group with groups of 32, and the
//   other types are expanded;
// - all others are expanded to the config's dtype.
// Values are those of ggml's reference code. Errors name file and tensor.
std::unique_ptr<WeightSource> MakeGgufSource(const GgufFiles& files, const ModelConfig& config,
                                             const CheckpointSourceOptions& options);

}  // namespace switchyard
