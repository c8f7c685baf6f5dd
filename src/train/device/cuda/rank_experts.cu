#include "train/device/cuda/rank_experts.h"

namespace switchyard::train::gpu {
namespace {

constexpr int kElementThreads = 256;

unsigned ElementBlocks(int64_t count) {
  return static_cast<unsigned>((count + kElementThreads - 1) / kElementThreads);
}

__device__ int64_t ElementIndex() { return int64_t{blockIdx.x} * kElementThreads + threadIdx.x; }

__global__ void __launch_bounds__(kElementThreads)
    SelectLocalKernel(int32_t begin, int32_t end, int32_t* ids, int64_t count) {
  const int64_t i = ElementIndex();
  if (i >= count) return;
  const int32_t id = ids[i];
  ids[i] = begin <= id && id < end ? id - begin : -1;
}

__global__ void __launch_bounds__(kElementThreads)
    StoreCountsKernel(const int32_t* counts, int64_t count, float last, float* to) {
  const int64_t i = ElementIndex();
  if (i < count) to[i] = static_cast<float>(counts[i]);
  if (i == count) to[i] = last;
}

__global__ void __launch_bounds__(kElementThreads)
    ToIntegersKernel(const float* from, int64_t count, int32_t* to) {
  const int64_t i = ElementIndex();
  if (i < count) to[i] = __float2int_rn(from[i]);
}

}  // namespace

cudaError_t SelectLocalExperts(Range experts, int32_t* ids, int64_t count, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  SelectLocalKernel<<<ElementBlocks(count), kElementThreads, 0, stream>>>(
      static_cast<int32_t>(experts.begin), static_cast<int32_t>(experts.end), ids, count);
  return cudaGetLastError();
}

cudaError_t StoreCounts(const int32_t* counts, int64_t count, int64_t last, float* to,
                        cudaStream_t stream) {
  StoreCountsKernel<<<ElementBlocks(count + 1), kElementThreads, 0, stream>>>(
      counts, count, static_cast<float>(last), to);
  return cudaGetLastError();
}

cudaError_t ToIntegers(const float* from, int64_t count, int32_t* to, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  ToIntegersKernel<<<ElementBlocks(count), kElementThreads, 0, stream>>>(from, count, to);
  return cudaGetLastError();
}

}  // namespace switchyard::train::gpu
