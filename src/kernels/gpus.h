// GPUs of this machine and the formats in which they store weights, for processes that do not use
// GPUs themselves and for builds without CUDA.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "quant/formats.h"

namespace switchyard {

class DeviceChunks;

struct GpuInfo {
  std::string name;
  int64_t total_bytes = 0, free_bytes = 0;
  bool hopper = false;  // supports the tensor core instructions of cuda/wgmma.cuh
};

// Queried once, in a child process. A process that initializes CUDA holds memory on every GPU, and
// processes that it forks cannot use CUDA. Empty if the build has no CUDA, or the machine has no
// driver or no GPU. Free bytes are as of the first call.
const std::vector<GpuInfo>& FindGpus();

// Bytes of a GPU that no process uses now. Initialises CUDA on this GPU, which becomes the current
// one of the calling thread. Error kInvalid without CUDA, or if there is no such GPU.
int64_t FreeGpuBytes(int index);

// Initialises CUDA on a GPU and loads the kernels, so that a later use of the GPU by this process
// begins faster. LeaveGpu frees all that CUDA holds on the GPU for this process. The GPU becomes
// the current one of the calling thread. Errors as for FreeGpuBytes.
void StartGpu(int index);
void LeaveGpu(int index);

// Memory of a GPU for weights (core/device_store.h). The GPU becomes the current one of the calling
// thread. Null if the GPU or its driver cannot share memory among processes. Error kInvalid without
// CUDA, or if there is no such GPU.
std::unique_ptr<DeviceChunks> MakeDeviceChunks(int index);

}  // namespace switchyard

namespace switchyard::kernels {

// The formats in which GPUs store weights. Builds without CUDA have these facts too: they plan
// memory and print the feature table.

// The stored format on a GPU of this dtype (CudaDeviceOptions::dtype): kF32 and kBF16 stay as they
// are. So do kF16 on float32 devices and kFp8Block if the weight consists of whole blocks. All
// other formats are expanded to float32 or bfloat16.
WeightFormat GpuFormat(WeightFormat format, DType dtype, bool whole_blocks);

// Whether routed experts of this format stay packed on Hopper if their sizes allow it
// (CudaDeviceOptions::packs_experts).
bool ExpertsStayPackedOnGpu(WeightFormat format);

// An array in the memory of a GPU. Does not own the memory.
struct DeviceArray {
  std::string name;  // such as "layers.3.attention.q"
  const void* data = nullptr;
  int64_t bytes = 0;
};

}  // namespace switchyard::kernels
