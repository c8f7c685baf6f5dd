#include "engine/kv_transfer/cuda/gpu_publisher.h"

#include <fmt/format.h>

#include "core/check.h"
#include "core/cuda/runtime.h"
#include "core/error.h"
#include "engine/kv_transfer/kv_mover.h"
#include "engine/kv_transfer/kv_progress.h"
#include "kernels/cuda/device/cuda_device.h"

namespace switchyard {
namespace {

// Host memory that is pinned during its lifetime.
class PinnedPages {
 public:
  explicit PinnedPages(std::span<std::byte> memory) : begin_(memory.data()) {
    const cudaError_t error =
        cudaHostRegister(begin_, memory.size(), cudaHostRegisterPortable | cudaHostRegisterMapped);
    if (error != cudaSuccess) {
      cudaGetLastError();
      throw Resource(
          "cannot pin {} bytes of memory, to which the GPU writes how many layers it has "
          "computed: {}",
          memory.size(), cudaGetErrorString(error));
    }
  }
  ~PinnedPages() {
    cudaHostUnregister(begin_);
    cudaGetLastError();
  }
  PinnedPages(const PinnedPages&) = delete;
  PinnedPages& operator=(const PinnedPages&) = delete;

  uint64_t* word() const {
    void* on_gpu = nullptr;
    cuda::Check(cudaHostGetDevicePointer(&on_gpu, begin_, 0), "mapping memory for the GPU");
    return static_cast<uint64_t*>(on_gpu);
  }

 private:
  void* const begin_;
};

}  // namespace

KvPublisher MakeGpuPublisher(std::span<std::byte> memory, kernels::Device& device) {
  const auto pages = std::make_shared<const PinnedPages>(memory);
  const cudaStream_t stream = cuda::CudaDevice::From(device).stream();
  return [pages, word = pages->word(), stream](uint64_t pass, int64_t layers) {
    cuda::Check(cuda::StartStoreWord(word, KvProgress::Word(pass, layers), stream),
                "publication of computed layers");
  };
}

}  // namespace switchyard
