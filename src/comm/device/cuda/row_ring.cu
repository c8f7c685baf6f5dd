// Kernels of RowRing. Waiting and copying are separate kernels: a waiting kernel is one thread, so
// ranks that share a GPU in tests do not block each other's kernels. Copies are kernels too,
// because a copy engine that waits for its stream could delay the copies of such ranks.
#include <algorithm>

#include "comm/device/cuda/channel.cuh"
#include "comm/device/cuda/row_ring.h"
#include "comm/device/cuda/wait.cuh"

namespace switchyard::cuda {
namespace {

constexpr int kThreads = 512;
constexpr size_t kMostBlocks = 128;

__device__ bool HasFailed(const WaitLimit& limit) {
  return static_cast<const volatile WaitTimeoutReport*>(limit.report)->failed != 0;
}

__global__ void Await(const uint32_t* flag, uint32_t value, WaitLimit limit, WaitStage stage,
                      int peer) {
  WaitFlag(flag, value, limit, stage, peer);
}

__global__ void __launch_bounds__(kThreads)
    CopyRows(const float* from, float* to, size_t count, WaitLimit limit) {
  __shared__ bool failed;
  if (threadIdx.x == 0) failed = HasFailed(limit);
  __syncthreads();
  if (failed) return;
  const size_t quads = count / 4, step = size_t{gridDim.x} * kThreads;
  const size_t first = size_t{blockIdx.x} * kThreads + threadIdx.x;
  const auto* in = reinterpret_cast<const uint4*>(from);
  auto* out = reinterpret_cast<uint4*>(to);
  for (size_t i = first; i < quads; i += step) out[i] = in[i];
  if (const size_t i = quads * 4 + first; i < count) to[i] = from[i];
}

// The copy kernel has completed, so the release store orders its writes before the flag.
__global__ void Raise(uint32_t* flag, uint32_t value, WaitLimit limit) {
  if (HasFailed(limit)) return;
  __threadfence_system();
  RaiseFlag(flag, value);
}

}  // namespace

cudaError_t StartAwait(const uint32_t* flag, uint32_t value, const WaitLimit& limit,
                       WaitStage stage, int peer, cudaStream_t stream) {
  Await<<<1, 1, 0, stream>>>(flag, value, limit, stage, peer);
  return cudaGetLastError();
}

cudaError_t StartCopyRows(const float* from, float* to, size_t count, const WaitLimit& limit,
                          cudaStream_t stream) {
  const size_t quads = (count + 3) / 4;
  const auto blocks =
      static_cast<unsigned>(std::clamp<size_t>((quads + kThreads - 1) / kThreads, 1, kMostBlocks));
  CopyRows<<<blocks, kThreads, 0, stream>>>(from, to, count, limit);
  return cudaGetLastError();
}

cudaError_t StartRaise(uint32_t* flag, uint32_t value, const WaitLimit& limit,
                       cudaStream_t stream) {
  Raise<<<1, 1, 0, stream>>>(flag, value, limit);
  return cudaGetLastError();
}

cudaError_t LoadRowRing() {
  if (const cudaError_t error = Load(Await); error != cudaSuccess) return error;
  if (const cudaError_t error = Load(CopyRows); error != cudaSuccess) return error;
  return Load(Raise);
}

}  // namespace switchyard::cuda
