// Problem: top-k expert selection (softmax, sigmoid, grouped, SparseMixer) from logits [tokens,
// experts], and scaling of the experts' input rows.
// Tiling: one warp per token, kWarps tokens per block; experts are distributed over lanes. Scaling:
// one block per token.
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
  const int logits = p.num_logits();
  if (logits <= 64) return Start<2>(p, stream);
  if (logits <= 128) return Start<4>(p, stream);
  if (logits <= 256) return Start<8>(p, stream);
  if (logits <= 512) return Start<16>(p, stream);
  return Start<kMaxRouterLogits / 32>(p, stream);
}

namespace {

constexpr int kScaleThreads = 256;

__global__ void __launch_bounds__(kScaleThreads) ScaleKernel(const ScaleInputRowsParams p) {
  const int64_t token = blockIdx.x;
  const float weight = p.weights[token];
  const float* x = p.x + token * p.width;
  float* y = p.y + token * p.width;
  for (int64_t i = threadIdx.x; i < p.width; i += kScaleThreads) y[i] = __fmul_rn(x[i], weight);
  __syncthreads();  // all threads have read the weight
  if (threadIdx.x == 0 && weight != 0.0f && !isnan(weight)) p.weights[token] = 1.0f;
}

}  // namespace

cudaError_t ScaleInputRows(const ScaleInputRowsParams& p, cudaStream_t stream) {
  if (p.tokens == 0) return cudaSuccess;
  ScaleKernel<<<static_cast<unsigned>(p.tokens), kScaleThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace switchyard::cuda
