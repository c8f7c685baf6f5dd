// The formats in which GPUs store weights. Builds without CUDA have these facts too: they plan
// memory and print the feature table.
#pragma once

#include "core/dtype.h"
#include "quant/formats.h"

namespace switchyard::kernels {

// The stored format on a GPU of this dtype (CudaDeviceOptions::dtype): kF32 and kBF16 stay as they
// are. So do kF16 on float32 devices and kFp8Block if the weight consists of whole blocks. All
// other formats are expanded to float32 or bfloat16.
WeightFormat GpuFormat(WeightFormat format, DType dtype, bool whole_blocks);

// Whether routed experts of this format stay packed on Hopper if their sizes allow it
// (CudaDeviceOptions::packs_experts).
bool ExpertsStayPackedOnGpu(WeightFormat format);

}  // namespace switchyard::kernels
