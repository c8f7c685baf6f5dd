#include "core/error.h"
#include "kernels/roofline.h"

namespace switchyard::kernels {

GpuCeilings MeasureGpu(int) { throw Invalid("this build of switchyard has no CUDA"); }

}  // namespace switchyard::kernels
