#include "moe/cuda/router/routing_record.h"

namespace switchyard::cuda {
namespace {

constexpr int kThreads = 128;

__global__ void AddDispatchedKernel(const RoutingControl* control, const int32_t* counts,
                                    int experts, int32_t* sums) {
  const int expert = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (expert < experts && control->active != 0) sums[expert] += counts[expert];
}

}  // namespace

cudaError_t AddDispatched(const RoutingControl* control, const int32_t* counts, int experts,
                          int32_t* sums, cudaStream_t stream) {
  if (experts == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>((experts + kThreads - 1) / kThreads);
  AddDispatchedKernel<<<blocks, kThreads, 0, stream>>>(control, counts, experts, sums);
  return cudaGetLastError();
}

}  // namespace switchyard::cuda
