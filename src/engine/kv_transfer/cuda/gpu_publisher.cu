#include "engine/kv_transfer/cuda/gpu_publisher.h"

namespace switchyard::cuda {
namespace {

// The kernels before have completed, so the release store orders their writes before the word, also
// for other GPUs and for the host.
__global__ void StoreWord(uint64_t* word, uint64_t value) {
  __threadfence_system();
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

}  // namespace

cudaError_t StartStoreWord(uint64_t* word, uint64_t value, cudaStream_t stream) {
  StoreWord<<<1, 1, 0, stream>>>(word, value);
  return cudaGetLastError();
}

}  // namespace switchyard::cuda
