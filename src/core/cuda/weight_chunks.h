// Chunks of weights in the memory of a GPU.
#pragma once

#include <memory>

#include "core/weight_store.h"

namespace switchyard::cuda {

// Chunks on the current device, which has to be current in every call. Null if the device or the
// driver cannot share memory by file descriptors, with the reason in the log.
std::unique_ptr<WeightChunks> MakeWeightChunks();

}  // namespace switchyard::cuda
