// Copies weights to the compute device.
#pragma once

#include "kernels/device.h"
#include "model/weights.h"

namespace switchyard {

// Replaces every view and tensor by its copy on `device`, layer by layer, so that converted host
// memory is freed on the way. Routed and shared experts are skipped: their layer places them
// (moe/cuda_moe.h). Does nothing for a CPU.
void UploadWeights(kernels::Device& device, ModelWeights& weights);

}  // namespace switchyard
