// Expert computation of a rank on its GPU.
#pragma once

#include <functional>

#include "moe/cuda/cuda_backend.h"
#include "moe/cuda/expert_weights.h"

namespace switchyard::cuda {

struct ExpertActivation {
  bool clamped = false;  // kernels::Activation::kSwiGluClamped
  float alpha = 1.0f, limit = 0.0f;
};

// outputs[position] = expert(row) for every arrived row and slot of state.order: permute, gate and
// up GEMM, activation, down GEMM. Processes rows in chunks; their number follows from the maximum
// number of rows, since the host does not know the counts.
void RunDeviceExperts(const DeviceExperts& experts, const ExpertActivation& activation,
                      const CudaMoeState& state, const CudaMoeBackend& backend);

// The same in two steps, for single-batch overlap: a down projection in several parts. After each
// part has been enqueued, send(range) is called with its outputs. Rows beyond the first chunk, of
// which there are usually none, are processed in the second step.
void RunDeviceGateUp(const DeviceExperts& experts, const ExpertActivation& activation,
                     const CudaMoeState& state, const CudaMoeBackend& backend);
void RunDeviceDown(const DeviceExperts& experts, const ExpertActivation& activation,
                   const CudaMoeState& state, const CudaMoeBackend& backend,
                   const std::function<void(const OutputRange&)>& send);

// y [tokens, H] float32 = output of the only expert of `shared` for x [tokens, H].
void RunSharedExpert(const DeviceExperts& shared, const ExpertActivation& activation,
                     const float* x, int64_t tokens, float* y, ProductBuffers& buffers,
                     const PdlStream& chain);

}  // namespace switchyard::cuda
