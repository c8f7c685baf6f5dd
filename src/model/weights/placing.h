// Copies weights to the compute device.
#pragma once

#include "kernels/device.h"
#include "kernels/gpus.h"
#include "model/weights.h"

namespace switchyard {

// Replaces every view and tensor by its copy on `device`, layer by layer, so that converted host
// memory is freed on the way. Routed and shared experts are skipped: their layer places them
// (moe/cuda_moe.h). Does nothing for a CPU.
void UploadWeights(kernels::Device& device, ModelWeights& weights);

// The arrays of the weights that UploadWeights has placed on a GPU, with names such as
// "layers.0.attention.q" and "head.scales". Without MoE layers, which place their own weights, and
// without ModelWeights::hidden_input.
std::vector<kernels::DeviceArray> PlacedArrays(const ModelWeights& weights);

}  // namespace switchyard
