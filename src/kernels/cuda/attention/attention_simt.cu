// Problem: attention with float32 products, for any head size and cache dtype.
// Tiling: grid (query rows, key-value heads × groups of eight query heads). A block of 256 threads
// computes one query row and up to eight heads that share keys.
// Pipeline: an online softmax (Milakov and Gimelshein 2018) over blocks of 64 keys, one after the
// other.
// Measured: not measured.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>

#include "kernels/cuda/attention/attention_launch.h"
#include "kernels/cuda/attention/attention_schedule.cuh"

namespace switchyard::cuda {
namespace {

constexpr int kHeads = 8;       // per block; one warp per head in the softmax
constexpr int kThreads = 256;   // one warp per head
constexpr int kBlockKeys = 64;  // keys per softmax update
constexpr int kMaxColumns = 2;  // value columns per thread

__device__ float ToFloat(float x) { return x; }
__device__ float ToFloat(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ float ToFloat(__half x) { return __half2float(x); }

__device__ float WarpMax(float x) {
  for (int lanes = 16; lanes > 0; lanes /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, lanes));
  return x;
}
__device__ float WarpSum(float x) {
  for (int lanes = 16; lanes > 0; lanes /= 2) x += __shfl_xor_sync(~0u, x, lanes);
  return x;
}

struct Shared {
  float scores[kBlockKeys][kHeads];  // replaced by probabilities in the softmax
  float rescale[kHeads];
  float sum[kHeads];
  int64_t slots[kBlockKeys];
};

// Scores of keys [begin, end), at most kBlockKeys; keys of the block outside of that range get −∞.
template <typename T>
__device__ void Score(const AttentionLaunch& p, const T* k, const float* q, int block_begin,
                      int begin, int end, Shared& shared) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int j = warp; j < kBlockKeys; j += kThreads / 32) {
    float sums[kHeads] = {};
    const bool seen = block_begin + j >= begin && block_begin + j < end;
    if (seen) {
      const T* row = k + shared.slots[j] * p.kv_heads * p.qk_dim;
      for (int d = lane; d < p.qk_dim; d += 32) {
        const float x = ToFloat(row[d]);
#pragma unroll
        for (int h = 0; h < kHeads; ++h) sums[h] = fmaf(x, q[h * p.qk_dim + d], sums[h]);
      }
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const float sum = WarpSum(sums[h]);
      if (lane == 0) shared.scores[j][h] = seen ? sum * p.scale : -INFINITY;
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) SimtAttention(AttentionLaunch p) {
  extern __shared__ float q[];  // [kHeads, qk_dim]
  __shared__ Shared shared;
  const SequenceTable& table = p.table;
  const int row = blockIdx.x, sequence = table.row_sequence[row];
  if (sequence < 0) return;
  const int group = p.heads / p.kv_heads, parts = (group + kHeads - 1) / kHeads;
  const int kv_head = blockIdx.y / parts, first_of_group = blockIdx.y % parts * kHeads;
  const int first_head = kv_head * group + first_of_group;
  const int heads = min(kHeads, group - first_of_group);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int position =
      table.kv_len[sequence] - table.rows[sequence] + row - table.row_begin[sequence];
  const int begin = FirstKey(position, p.window, p.chunk);
  const T* k = static_cast<const T*>(p.k) + int64_t{kv_head} * p.qk_dim;
  const T* v = static_cast<const T*>(p.v) + int64_t{kv_head} * p.v_width;
  const int64_t stride = int64_t{p.kv_heads} * p.v_width;

  for (int i = threadIdx.x; i < kHeads * p.qk_dim; i += kThreads) {
    const int h = i / p.qk_dim;
    q[i] =
        h < heads ? p.q[row * p.ldq + int64_t{first_head + h} * p.qk_dim + i - h * p.qk_dim] : 0.0f;
  }
  float sums[kMaxColumns][kHeads] = {};
  float top = -INFINITY, weight = 0;  // softmax state of head `warp`
  for (int block = begin / kBlockKeys * kBlockKeys; block <= position; block += kBlockKeys) {
    const int from = max(begin, block), to = min(position + 1, block + kBlockKeys);
    __syncthreads();  // the last block's probabilities have been read
    if (threadIdx.x < kBlockKeys) {
      const int key = block + threadIdx.x;
      shared.slots[threadIdx.x] = key >= from && key < to ? SlotOfKey(table, sequence, key) : 0;
    }
    __syncthreads();
    Score(p, k, q, block, from, to, shared);
    __syncthreads();
    {
      const float a = shared.scores[lane][warp], b = shared.scores[lane + 32][warp];
      const float new_top = fmaxf(top, WarpMax(fmaxf(a, b)));
      const float rescale = expf(top - new_top), pa = expf(a - new_top), pb = expf(b - new_top);
      weight = fmaf(weight, rescale, WarpSum(pa + pb));
      top = new_top;
      shared.scores[lane][warp] = pa;
      shared.scores[lane + 32][warp] = pb;
      if (lane == 0) shared.rescale[warp] = rescale;
    }
    __syncthreads();
#pragma unroll
    for (int c = 0; c < kMaxColumns; ++c) {
      const int d = threadIdx.x + c * kThreads;
      if (d >= p.v_dim) break;
#pragma unroll
      for (int h = 0; h < kHeads; ++h) sums[c][h] *= shared.rescale[h];
      for (int j = from - block; j < to - block; ++j) {
        const float x = ToFloat(v[shared.slots[j] * stride + d]);
#pragma unroll
        for (int h = 0; h < kHeads; ++h) sums[c][h] = fmaf(shared.scores[j][h], x, sums[c][h]);
      }
    }
  }

  float scale = 1.0f;
  if (p.sinks && warp < heads) {
    const float sink = p.sinks[first_head + warp], new_top = fmaxf(top, sink);
    scale = expf(top - new_top);
    weight = fmaf(weight, scale, expf(sink - new_top));
  }
  __syncthreads();
  if (lane == 0) shared.sum[warp] = p.value_scale * (scale / weight);
  __syncthreads();
#pragma unroll
  for (int c = 0; c < kMaxColumns; ++c) {
    const int d = threadIdx.x + c * kThreads;
    if (d >= p.v_dim) break;
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (h < heads)
        p.out[row * p.ldo + int64_t{first_head + h} * p.v_dim + d] = sums[c][h] * shared.sum[h];
    }
  }
}

}  // namespace

cudaError_t LaunchSimtAttention(const AttentionLaunch& launch, cudaStream_t stream) {
  const int group = launch.heads / launch.kv_heads;
  const dim3 grid(launch.table.num_rows, launch.kv_heads * ((group + kHeads - 1) / kHeads));
  const size_t bytes = sizeof(float) * kHeads * launch.qk_dim;
  switch (launch.kv_dtype) {
    case DType::kBF16:
      SimtAttention<__nv_bfloat16><<<grid, kThreads, bytes, stream>>>(launch);
      break;
    case DType::kF16:
      SimtAttention<__half><<<grid, kThreads, bytes, stream>>>(launch);
      break;
    default:
      SimtAttention<float><<<grid, kThreads, bytes, stream>>>(launch);
  }
  return cudaGetLastError();
}

}  // namespace switchyard::cuda
