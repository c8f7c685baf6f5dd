#include "train/device/cuda_ops.h"

#include "core/error.h"

namespace switchyard::train {

std::unique_ptr<TrainOps<BF16>> MakeCudaOps(int index) {
  throw Invalid("this build of switchyard has no CUDA: cannot use GPU {}", index);
}

std::unique_ptr<DeviceRanks> MakeCudaRanks(kernels::Device& /*device*/, LayoutRanks& /*ranks*/) {
  throw Invalid("this build of switchyard has no CUDA");
}

RankOps MakeCudaRankOps(int index, LayoutRanks& /*ranks*/) {
  return {.ops = MakeCudaOps(index), .ranks = nullptr};
}

}  // namespace switchyard::train
