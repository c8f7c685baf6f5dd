// Problem: T, P and the factors of the chunks of the gated delta rule (delta_chunks.cuh), into
// scratch memory. Tiling: a block takes a chunk and a value head. A warp takes 16 rows of the
// products, and a thread a column of the inverse, by forward substitution. Grid: windows of
// kDeltaChunk rows × heads; at most one chunk begins in a window. Pipeline: none. Launched early
// (kernel_chain.cuh). Measured: not measured yet.
#include <cuda_pipeline_primitives.h>

#include "kernels/cuda/device/kernel_chain.cuh"
#include "kernels/cuda/elementwise/ops_elements.cuh"
#include "kernels/cuda/recurrent/delta_chunks.cuh"

namespace switchyard::cuda::ops {
namespace {

using namespace delta;  // NOLINT(google-build-using-namespace)
using kernels::StateSpan;

// The first row of the chunk that begins in window `window`; −1: none. A chunk that begins in a
// window contains its last row.
__device__ __forceinline__ int64_t ChunkOfWindow(const GatedDeltaParams& p, int64_t window) {
  const int64_t row = window * kChunk + kChunk - 1;
  int64_t low = 0, high = p.num_sequences;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (p.sequences[middle].row_begin <= row ? low : high) = middle;
  }
  const StateSpan& span = p.sequences[low];
  const int64_t at = row - span.row_begin;
  return at < 0 || at >= span.chunked ? -1 : span.row_begin + at / kChunk * kChunk;
}

constexpr int kMatrixThreads = 128;
constexpr int kMatrixStride = kChunk + 8;  // rows of results of mma.sync are in different banks

struct MatrixMemory {
  float q[kChunk * kKeys], k[kChunk * kKeys];
  float a[kChunk][kMatrixStride];
  float ratios[kChunk][kMatrixStride];  // r_ij, zeros for j > i
  float decays[kChunk], steps[kChunk];
};

// A column of (I + A)⁻¹, by forward substitution.
__device__ __forceinline__ void InvertColumn(const MatrixMemory& memory, int column,
                                             float (&inverse)[kChunk]) {
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    float4 sums = {0, 0, 0, 0};
#pragma unroll
    for (int j = 0; j < i; j += 4) {
      const float4 a = *reinterpret_cast<const float4*>(&memory.a[i][j]);
      sums.x = __fmaf_rn(a.x, inverse[j], sums.x);
      if (j + 1 < i) sums.y = __fmaf_rn(a.y, inverse[j + 1], sums.y);
      if (j + 2 < i) sums.z = __fmaf_rn(a.z, inverse[j + 2], sums.z);
      if (j + 3 < i) sums.w = __fmaf_rn(a.w, inverse[j + 3], sums.w);
    }
    inverse[i] = __fsub_rn(i == column ? 1.0f : 0.0f, (sums.x + sums.y) + (sums.z + sums.w));
  }
}

// Rows [16 · warp, 16 · warp + 16) of A into shared memory, and of P into scratch.
__device__ __forceinline__ void MultiplyRows(MatrixMemory& memory, const Scratch& scratch,
                                             int64_t first, int64_t head) {
  const int warp = threadIdx.x / kWarp, g = threadIdx.x % kWarp / 4, t = threadIdx.x % 4;
  const int row = 16 * warp + g;
  float kk[kTiles][4] = {}, qk[kTiles][4] = {};
  for (int key = 2 * t; key < kKeys; key += 16) {
    SplitLeft q, k;
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      const int r = row + pair % 2 * 8, c = key + pair / 2 * 8;
      q.Set(pair, RowPair<kKeys>(memory.q, r, c));
      k.Set(pair, RowPair<kKeys>(memory.k, r, c));
    }
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      if (block > warp) continue;
      const int tile = 2 * block;
      SplitRight b[2];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        b[i / 2].Set(i % 2, RowPair<kKeys>(memory.k, 8 * (tile + i / 2) + g, key + i % 2 * 8));
      float* const to[] = {kk[tile], qk[tile], kk[tile + 1], qk[tile + 1]};
      const SplitLeft* const left[] = {&k, &q, &k, &q};
      const SplitRight right[] = {b[0], b[0], b[1], b[1]};
      AddProducts<4>(to, left, right);
    }
  }
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    if (tile / 2 > warp) continue;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = row + 8 * half, j = 8 * tile + 2 * t;
      const float2 ratio = *reinterpret_cast<const float2*>(&memory.ratios[i][j]);
      const float x = kk[tile][2 * half] * ratio.x, y = kk[tile][2 * half + 1] * ratio.y;
      const float step = memory.steps[i];
      memory.a[i][j] = j < i ? step * x : 0.0f;
      memory.a[i][j + 1] = j + 1 < i ? step * y : 0.0f;
      float2* const to = reinterpret_cast<float2*>(scratch.Matrices(first + i, head) + kChunk + j);
      *to = {qk[tile][2 * half] * ratio.x, qk[tile][2 * half + 1] * ratio.y};
    }
  }
}

template <bool kAligned>
__global__ void __launch_bounds__(kMatrixThreads) ChunkMatricesKernel(const GatedDeltaParams p) {
  extern __shared__ __align__(16) unsigned char shared[];
  MatrixMemory& memory = *reinterpret_cast<MatrixMemory*>(shared);
  LaunchDependents();
  const int64_t first = ChunkOfWindow(p, blockIdx.x);  // sequences: uploaded by the host
  WaitForPriorKernels();
  if (first < 0) return;
  const int thread = threadIdx.x;
  const int64_t head = blockIdx.y, key_head = head / (p.value_heads / p.key_heads);
  const Scratch scratch(p);
  CopyKeys<kAligned>(p, p.q + first * p.ld + key_head * p.q_stride, memory.q, thread,
                     kMatrixThreads);
  CopyKeys<kAligned>(p, p.k + first * p.ld + key_head * p.k_stride, memory.k, thread,
                     kMatrixThreads);
  __pipeline_commit();
  ClearKeys(p, memory.q, thread, kMatrixThreads);
  ClearKeys(p, memory.k, thread, kMatrixThreads);
  if (thread < kChunk) {
    const float* gates = p.gates + ((first + thread) * p.value_heads + head) * 2;
    memory.decays[thread] = gates[0];
    memory.steps[thread] = gates[1];
  }
  __syncthreads();
  // Products of decays instead of differences of logarithms: exact enough for any decay, and zero
  // if they vanish.
  if (thread < kChunk) {
    float ratio = 0.0f;
    for (int i = 0; i < kChunk; ++i) {
      ratio = i == thread ? 1.0f : ratio * memory.decays[i];
      memory.ratios[i][thread] = ratio;
    }
    scratch.Factors(first + thread, head)[1] = ratio;
  } else if (thread == kChunk) {
    float ratio = 1.0f;
    for (int i = 0; i < kChunk; ++i) {
      ratio *= memory.decays[i];
      scratch.Factors(first + i, head)[0] = ratio;
    }
  }
  __pipeline_wait_prior(0);
  __syncthreads();
  MultiplyRows(memory, scratch, first, head);
  __syncthreads();
  if (thread >= kChunk) return;
  float inverse[kChunk];
  InvertColumn(memory, thread, inverse);
  const float step = memory.steps[thread];
#pragma unroll
  for (int i = 0; i < kChunk; ++i) scratch.Matrices(first + i, head)[thread] = inverse[i] * step;
}

template <bool kAligned>
cudaError_t Start(const GatedDeltaParams& p, const PdlStream& chain) {
  static SharedMemoryOptIn setup;
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  error = setup.On(device, ChunkMatricesKernel<kAligned>, sizeof(MatrixMemory));
  if (error != cudaSuccess) return error;
  const dim3 windows(static_cast<unsigned>(p.m / kChunk), static_cast<unsigned>(p.value_heads));
  return LaunchWithPdl(ChunkMatricesKernel<kAligned>, windows, kMatrixThreads, sizeof(MatrixMemory),
                       chain, p);
}

}  // namespace

cudaError_t StartChunkMatrices(const GatedDeltaParams& p, bool aligned, const PdlStream& chain) {
  return aligned ? Start<true>(p, chain) : Start<false>(p, chain);
}

}  // namespace switchyard::cuda::ops
