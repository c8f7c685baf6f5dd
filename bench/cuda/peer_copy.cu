#include <cstdint>

#include "peer_copy.h"

namespace {

__global__ void Copy(const uint4* from, uint4* to, size_t count) {
  constexpr int kUnroll = 8;
  const size_t stride = size_t{gridDim.x} * blockDim.x;
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count; i += stride * kUnroll) {
    uint4 words[kUnroll];
#pragma unroll
    for (int v = 0; v < kUnroll; ++v)
      if (i + v * stride < count) words[v] = from[i + v * stride];
#pragma unroll
    for (int v = 0; v < kUnroll; ++v)
      if (i + v * stride < count) to[i + v * stride] = words[v];
  }
}

}  // namespace

void StartPeerCopy(const void* from, void* to, size_t bytes, int blocks, cudaStream_t stream) {
  Copy<<<blocks, 512, 0, stream>>>(static_cast<const uint4*>(from), static_cast<uint4*>(to),
                                   bytes / 16);
}
