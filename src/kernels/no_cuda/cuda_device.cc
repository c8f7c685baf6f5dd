#include "core/error.h"
#include "kernels/device.h"

namespace switchyard::kernels {

std::unique_ptr<Device> MakeCudaDevice(const CudaDeviceOptions& options) {
  throw Invalid("this build of switchyard has no CUDA: cannot use GPU {}", options.index);
}

int CudaDeviceCount() { return 0; }

}  // namespace switchyard::kernels
