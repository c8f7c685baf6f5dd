#include "core/device_store.h"
#include "core/error.h"
#include "kernels/device.h"
#include "kernels/gpus.h"
#include "kernels/roofline.h"

namespace switchyard::kernels {

std::unique_ptr<Device> MakeCudaDevice(const CudaDeviceOptions& options) {
  throw Invalid("this build of switchyard has no CUDA: cannot use GPU {}", options.index);
}

int CudaDeviceCount() { return 0; }

GpuCeilings MeasureGpu(int) { throw Invalid("this build of switchyard has no CUDA"); }

}  // namespace switchyard::kernels

namespace switchyard {

const std::vector<GpuInfo>& FindGpus() {
  static const std::vector<GpuInfo> kNone;
  return kNone;
}

int64_t FreeGpuBytes(int) { throw Invalid("this build of switchyard has no CUDA"); }

void StartGpu(int) { throw Invalid("this build of switchyard has no CUDA"); }
void LeaveGpu(int) { throw Invalid("this build of switchyard has no CUDA"); }

std::unique_ptr<DeviceChunks> MakeDeviceChunks(int) {
  throw Invalid("this build of switchyard has no CUDA");
}

}  // namespace switchyard
