// The kernel has one thread per slot of a token.
#include "moe/cuda/router/place_physical.h"
#include "moe/cuda/router/routing_record.cuh"

namespace switchyard::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void PlacePhysicalKernel(const PlacePhysicalParams p) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= p.tokens * p.k) return;
  const int physical = p.physical[i];
  p.ids[i] = physical >= 0 && p.local_ids ? p.local_ids[physical] : physical;
  const int64_t token = i / p.k;
  if (!IsRecorded(p.record, token)) return;
  RecordChoice(p.record, token, static_cast<int>(i % p.k), p.k, p.logical[i], physical);
}

}  // namespace

cudaError_t PlacePhysical(const PlacePhysicalParams& p, cudaStream_t stream) {
  const int64_t slots = p.tokens * p.k;
  if (slots == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>((slots + kThreads - 1) / kThreads);
  PlacePhysicalKernel<<<blocks, kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace switchyard::cuda
