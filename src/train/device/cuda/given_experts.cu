#include "train/device/cuda/given_experts.h"

namespace switchyard::train::gpu {
namespace {

constexpr int kThreads = 128;

// Whether two lists have the same values, each equally often.
__device__ bool SameSet(const int32_t* a, const int32_t* b, int k) {
  for (int i = 0; i < k; ++i) {
    int count = 0;
    for (int j = 0; j < k; ++j) count += (a[j] == a[i]) - (b[j] == a[i]);
    if (count != 0) return false;
  }
  return true;
}

// One thread per token. Sums of integers do not depend on the order of the atomics.
__global__ void __launch_bounds__(kThreads)
    UseGivenExpertsKernel(const int32_t* given, int64_t m, int k, int32_t* ids, int32_t* counts) {
  const int64_t t = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (t >= m) return;
  given += t * k;
  ids += t * k;
  bool any = false;
  for (int j = 0; j < k; ++j) any = any || given[j] >= 0;
  if (!any) return;
  atomicAdd(&counts[0], 1);
  if (SameSet(given, ids, k)) atomicAdd(&counts[1], 1);
  for (int j = 0; j < k; ++j) ids[j] = given[j];
}

}  // namespace

cudaError_t UseGivenExperts(const int32_t* given, int64_t m, int k, int32_t* ids, int32_t* counts,
                            cudaStream_t stream) {
  if (m == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>((m + kThreads - 1) / kThreads);
  UseGivenExpertsKernel<<<blocks, kThreads, 0, stream>>>(given, m, k, ids, counts);
  return cudaGetLastError();
}

}  // namespace switchyard::train::gpu
