// Problem: residual streams [m, n, width] to the input of a block [m, width], and back with its
// output (kernels/streams.h).
// Tiling: collapse: a grid of (rows, 1 or 2), 256 threads. The first block of a row sums the
// streams; in the second one, lane i of a warp has row i or column i of the matrix. Expand: a
// thread has one column of all streams of a row.
// Pipeline: none. Measured: not measured.
#include "kernels/cuda/elementwise/ops_streams.h"

namespace switchyard::cuda::ops {
namespace {

using kernels::CollapseStreamsParams;
using kernels::ExpandStreamsParams;
using kernels::kMaxStreams;

constexpr int kThreads = 256;
constexpr int kStreams = static_cast<int>(kMaxStreams);

// kernels::StreamLogits and StreamMix.
__device__ __forceinline__ int64_t LogitsOf(int64_t n) { return n * (2 + n); }
__device__ __forceinline__ int64_t MixOf(int64_t n) { return n * (1 + n); }

__device__ __forceinline__ float Sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// The logits of one row, normed and scaled.
class RowLogits {
 public:
  __device__ RowLogits(const CollapseStreamsParams& p, int64_t t)
      : p_(p),
        logits_(p.logits + t * (p.mix ? LogitsOf(p.n) : p.n)),
        r_(1.0f / sqrtf(p.squares[t] / static_cast<float>(p.n * p.width) + p.norm_eps)) {}
  __device__ float At(int64_t i, int part) const {
    return r_ * logits_[i] * p_.scale[part] + p_.base[i];
  }

 private:
  const CollapseStreamsParams& p_;
  const float* const logits_;
  const float r_;
};

// Divides the n elements at x, `stride` apart, by their sum plus eps.
__device__ __forceinline__ void DivideBySum(float* x, int n, int stride, float eps) {
  float sum = 0.0f;
  for (int i = 0; i < n; ++i) sum += x[i * stride];
  for (int i = 0; i < n; ++i) x[i * stride] /= sum + eps;
}

// One warp makes the matrix of a row doubly stochastic. `matrix` [n, n]: its logits, in shared
// memory.
__device__ void Normalise(const CollapseStreamsParams& p, float* matrix) {
  const int n = static_cast<int>(p.n), lane = static_cast<int>(threadIdx.x);
  const bool has = lane < n;
  float* const row = matrix + lane * n;
  if (has) {
    float largest = row[0];
    for (int i = 1; i < n; ++i) largest = fmaxf(largest, row[i]);
    for (int i = 0; i < n; ++i) row[i] = expf(row[i] - largest);
    DivideBySum(row, n, 1, 0.0f);
    for (int i = 0; i < n; ++i) row[i] += p.eps;
  }
  __syncwarp();
  for (int iteration = 0; iteration < max(p.iterations, 1); ++iteration) {
    if (iteration > 0 && has) DivideBySum(row, n, 1, p.eps);
    __syncwarp();
    if (has) DivideBySum(matrix + lane, n, n, p.eps);
    __syncwarp();
  }
}

// Writes `mix` of a row. Called by the first warp of a block.
__device__ void StoreMix(const CollapseStreamsParams& p, int64_t t, float* matrix) {
  const RowLogits logits(p, t);
  const int n = static_cast<int>(p.n), lane = static_cast<int>(threadIdx.x);
  float* const mix = p.mix + t * MixOf(p.n);
  if (lane < n) mix[lane] = 2.0f * Sigmoid(logits.At(n + lane, 1));
  for (int i = lane; i < n * n; i += 32) matrix[i] = logits.At(2 * n + i, 2);
  __syncwarp();
  Normalise(p, matrix);
  for (int i = lane; i < n * n; i += 32) mix[n + i] = matrix[i];
}

__global__ void __launch_bounds__(kThreads) CollapseKernel(const CollapseStreamsParams p) {
  __shared__ float shared[kStreams * kStreams];
  const int64_t t = blockIdx.x;
  if (blockIdx.y > 0) {
    if (threadIdx.x < 32) StoreMix(p, t, shared);
    return;
  }
  const int n = static_cast<int>(p.n);
  if (static_cast<int>(threadIdx.x) < n)
    shared[threadIdx.x] = Sigmoid(RowLogits(p, t).At(threadIdx.x, 0)) + p.eps;
  __syncthreads();
  const float* const x = p.x + t * n * p.width;
  for (int64_t c = threadIdx.x; c < p.width; c += kThreads) {
    float sum = 0.0f;
    for (int i = 0; i < n; ++i) sum = fmaf(shared[i], x[i * p.width + c], sum);
    p.y[t * p.width + c] = sum;
  }
}

__global__ void __launch_bounds__(kThreads) ExpandKernel(const ExpandStreamsParams p) {
  __shared__ float mix[kStreams * (kStreams + 1)];  // post, then the matrix
  const int n = static_cast<int>(p.n);
  const int64_t t = blockIdx.x;
  const float* const from = p.mix + t * MixOf(p.n);
  for (int i = static_cast<int>(threadIdx.x); i < n * (n + 1); i += kThreads) mix[i] = from[i];
  __syncthreads();
  const int64_t c = int64_t{blockIdx.y} * kThreads + threadIdx.x;
  if (c >= p.width) return;
  float* const x = p.x + t * n * p.width + c;
  const float branch = p.branch[t * p.width + c];
  float old[kStreams];
#pragma unroll
  for (int j = 0; j < kStreams; ++j)
    if (j < n) old[j] = x[j * p.width];
  for (int k = 0; k < n; ++k) {
    float sum = mix[k] * branch;
#pragma unroll
    for (int j = 0; j < kStreams; ++j)
      if (j < n) sum = fmaf(mix[n + j * n + k], old[j], sum);
    x[k * p.width] = sum;
  }
}

bool Fits(int64_t n) { return n >= 1 && n <= kMaxStreams; }

}  // namespace

cudaError_t CollapseStreams(const CollapseStreamsParams& p, cudaStream_t stream) {
  if (p.m == 0) return cudaSuccess;
  if (!Fits(p.n)) return cudaErrorInvalidValue;
  CollapseKernel<<<dim3(static_cast<unsigned>(p.m), p.mix ? 2 : 1), kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

cudaError_t ExpandStreams(const ExpandStreamsParams& p, cudaStream_t stream) {
  if (p.m == 0 || p.width == 0) return cudaSuccess;
  if (!Fits(p.n)) return cudaErrorInvalidValue;
  const auto columns = static_cast<unsigned>((p.width + kThreads - 1) / kThreads);
  ExpandKernel<<<dim3(static_cast<unsigned>(p.m), columns), kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace switchyard::cuda::ops
