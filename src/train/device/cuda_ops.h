// The operations of training on a GPU.
#pragma once

#include <memory>

#include "core/dtype.h"
#include "train/device/ops.h"

namespace switchyard::train {

// Kernels of train/cuda on GPU `index`, which becomes the current GPU of the calling thread.
// Matrix products have bfloat16 operands. Throws Error kInvalid if the build has no CUDA or the
// machine has no such GPU. Operations throw kInvalid for shapes that the kernels do not support.
std::unique_ptr<TrainOps<BF16>> MakeCudaOps(int index);

}  // namespace switchyard::train
