// Programmatic dependent launch (PDL) on Hopper: a kernel of a stream may begin before the previous
// one has ended.
#pragma once

#include <cuda_runtime.h>

#include <utility>

#include "kernels/cuda/device/launch.h"

namespace switchyard::cuda {

// Lets the next kernel of the stream begin once all blocks of this kernel have called this
// function.
__device__ __forceinline__ void LaunchDependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Waits until all earlier kernels have ended and their writes are visible. Returns immediately in a
// kernel that was not launched early.
__device__ __forceinline__ void WaitForPriorKernels() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Launches dependents before it waits, so that the next kernel starts as soon as possible: while
// the kernels before this one may still run. A GEMM that follows several small kernels thus fetches
// its weights during all of them. A kernel whose successor reads group sizes before it waits
// (`groups_ready`) must wait first instead.
__device__ __forceinline__ void LaunchDependentsAndWait() {
  LaunchDependents();
  WaitForPriorKernels();
}

// Launches a kernel with PDL if `early`. The kernel must call WaitForPriorKernels before it
// accesses the output of earlier kernels. Even a kernel without such accesses must call it before
// it ends, so that its successor follows all earlier kernels. Before the call it may read only data
// that no kernel of the chain writes: weights, and what the host uploaded for the step (positions,
// cache slots, SequenceTable). Such reads take no time if the kernel starts early enough.
// Exception: if the previous kernel waits before it launches dependents, the results for which it
// waited may be read too, bypassing L1.
template <typename... Params, typename... Args>
cudaError_t LaunchWithPdl(void (*kernel)(Params...), dim3 blocks, int threads, size_t shared_bytes,
                          bool early, cudaStream_t stream, Args&&... args) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = early ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...);
}
template <typename... Params, typename... Args>
cudaError_t LaunchWithPdl(void (*kernel)(Params...), dim3 blocks, int threads, size_t shared_bytes,
                          const PdlStream& chain, Args&&... args) {
  return LaunchWithPdl(kernel, blocks, threads, shared_bytes, chain.early, chain.stream,
                       std::forward<Args>(args)...);
}
// Like LaunchWithPdl, for a grid of `clusters` clusters of `cluster` blocks each.
template <typename... Params, typename... Args>
cudaError_t LaunchClusters(void (*kernel)(Params...), int clusters, int cluster, int threads,
                           size_t shared_bytes, const PdlStream& chain, Args&&... args) {
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim.x = cluster;
  attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(clusters * cluster));
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = chain.stream;
  config.attrs = attributes;
  config.numAttrs = chain.early ? 2 : 1;
  return cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...);
}

}  // namespace switchyard::cuda
