// Problem: maps the physical experts of [tokens, k] slots to ids of the exchange, adds counts of
// dispatched rows per expert to the recorder's sums, and reads the clock between stages.
// Tiling: one thread per slot, per expert, or in all. Pipeline: none. Measured: not measured.
#include "moe/cuda/router/select_experts.cuh"
#include "moe/cuda/router/select_experts.h"

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

namespace {

constexpr int kCountThreads = 128;

__global__ void AddDispatchedKernel(const RoutingControl* control, const int32_t* counts,
                                    int experts, int32_t* sums) {
  const int expert = static_cast<int>(blockIdx.x * kCountThreads + threadIdx.x);
  if (expert < experts && control->active != 0) sums[expert] += counts[expert];
}

}  // namespace

cudaError_t AddDispatched(const RoutingControl* control, const int32_t* counts, int experts,
                          int32_t* sums, cudaStream_t stream) {
  if (experts == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>((experts + kCountThreads - 1) / kCountThreads);
  AddDispatchedKernel<<<blocks, kCountThreads, 0, stream>>>(control, counts, experts, sums);
  return cudaGetLastError();
}

namespace {

// Global time is in nanoseconds, and advances in steps of 32 ns on Hopper.
__global__ void ChangeStageKernel(int64_t* times, int ends, int begins) {
  int64_t now = 0;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  if (ends >= 0) times[ends] += now;
  if (begins >= 0) times[begins] -= now;
}

}  // namespace

// Without programmatic dependent launch: the kernel begins when all earlier ones have ended.
cudaError_t ChangeStage(int64_t* times, int ends, int begins, cudaStream_t stream) {
  ChangeStageKernel<<<1, 1, 0, stream>>>(times, ends, begins);
  return cudaGetLastError();
}

}  // namespace switchyard::cuda
