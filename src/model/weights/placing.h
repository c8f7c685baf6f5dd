// Weights on the device that computes with them.
#pragma once

#include "kernels/device.h"
#include "model/weights.h"

namespace switchyard {

// Replaces every view and tensor by its copy on `device`, layer by layer, so that host memory that
// was made for it is given back on the way; routed and shared experts are left as they are, for
// their layer to place (moe/device_layer.h). Does nothing for a CPU.
void PlaceWeights(kernels::Device& device, ModelWeights& weights);

}  // namespace switchyard
