// Problem: top-k expert selection (softmax, sigmoid, grouped, SparseMixer) from logits [tokens,
// experts].
// Tiling: one warp per token, kWarps tokens a block; experts are distributed over lanes.
// Pipeline: none. Measured: not measured alone.
#include "moe/cuda/router/select_experts.cuh"

namespace switchyard::cuda {
namespace {

constexpr int kWarps = 4;  // warps per block; each warp processes one token

template <int kPerLane>
__global__ void __launch_bounds__(kWarps * 32) SelectKernel(const SelectExpertsParams p) {
  __shared__ float shared_choice[kWarps][kPerLane * 32];
  const int warp = threadIdx.x / 32;
  const int64_t token = int64_t{blockIdx.x} * kWarps + warp;
  if (token >= p.tokens) return;
  const choice::ExpertConstants<kPerLane> constants(p);
  choice::SelectForToken<kPerLane>(p, constants, token, shared_choice[warp]);
}

template <int kPerLane>
cudaError_t Start(const SelectExpertsParams& p, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((p.tokens + kWarps - 1) / kWarps);
  SelectKernel<kPerLane><<<blocks, kWarps * 32, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace

cudaError_t SelectExpertsOnDevice(const SelectExpertsParams& p, cudaStream_t stream) {
  if (p.tokens == 0) return cudaSuccess;
  if (!SelectsExperts(p)) return cudaErrorInvalidValue;
  if (p.num_experts <= 64) return Start<2>(p, stream);
  if (p.num_experts <= 128) return Start<4>(p, stream);
  if (p.num_experts <= 256) return Start<8>(p, stream);
  return Start<16>(p, stream);
}

}  // namespace switchyard::cuda
