// What MoE layers on GPUs (moe/cuda) do not support, and their limits. Builds without CUDA have
// these facts too: the feature table of `switchyard backends --markdown` prints them.
#pragma once

#include "comm/mesh.h"
#include "moe/gpu_limits.h"
#include "moe/options.h"

namespace switchyard {

inline constexpr bool kWaterfillOnGpus = false;  // --enable-deepep-waterfill

namespace cuda {

// Error kInvalid names the flag or the model's size that MoE layers on GPUs do not support. For
// all-to-all backends and runners the registry decides (ExchangeBackend::gpus).
void CheckGpuOptions(const MoeOptions& options, const MoeShape& shape, const MeshShape& mesh);

}  // namespace cuda
}  // namespace switchyard
