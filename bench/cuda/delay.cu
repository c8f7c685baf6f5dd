#include "bench/cuda/delay.h"
#include "comm/device/cuda/wait.cuh"

namespace switchyard::bench {
namespace {

__global__ void Spin(uint64_t nanoseconds) {
  const uint64_t start = cuda::Nanoseconds();
  while (cuda::Nanoseconds() - start < nanoseconds) {
  }
}

}  // namespace

cudaError_t Delay(uint64_t nanoseconds, cudaStream_t stream) {
  Spin<<<1, 1, 0, stream>>>(nanoseconds);
  return cudaGetLastError();
}

}  // namespace switchyard::bench
