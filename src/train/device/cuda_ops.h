// The operations of training on a GPU.
#pragma once

#include <memory>

#include "core/dtype.h"
#include "train/device/ops.h"
#include "train/device/ranks.h"

namespace switchyard::train {

// Kernels of train/cuda on GPU `index`, which becomes the current GPU of the calling thread.
// Matrix products have bfloat16 operands. Throws Error kInvalid if the build has no CUDA or the
// machine has no such GPU. Operations throw kInvalid for shapes that the kernels do not support.
std::unique_ptr<TrainOps<BF16>> MakeCudaOps(int index);

// The groups of `ranks`, on the GPU of `device`, which MakeCudaOps returned. Collectives run on a
// stream of their own: over peer memory, and large ones over NCCL if it is there. Waits for other
// ranks have the timeout of `ranks`. Collective; destroyed collectively. Ranks are processes of one
// host: a rank that allocates while a kernel of another rank of its process waits for it would
// wait forever. Borrows the arguments. Throws kResource if two GPUs have no peer access.
std::unique_ptr<DeviceRanks> MakeCudaRanks(kernels::Device& device, LayoutRanks& ranks);

// Both, for a rank of a run.
RankOps MakeCudaRankOps(int index, LayoutRanks& ranks);

}  // namespace switchyard::train
