#include "train/device/cuda_ops.h"

#include "core/error.h"

namespace switchyard::train {

std::unique_ptr<TrainOps<BF16>> MakeCudaOps(int index) {
  throw Invalid("this build of switchyard has no CUDA: cannot use GPU {}", index);
}

}  // namespace switchyard::train
