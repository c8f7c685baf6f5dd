#include "kernels/gpus.h"

namespace switchyard {

const std::vector<GpuInfo>& FindGpus() {
  static const std::vector<GpuInfo> kNone;
  return kNone;
}

}  // namespace switchyard
