// Problem: attention with float32 products, for any head size and cache dtype.
// Tiling: grid (query rows, key-value heads × groups of eight query heads). A block of 256 threads
// computes one query row and up to eight heads that share keys.
// Pipeline: an online softmax (Milakov and Gimelshein 2018) over blocks of 64 keys, one after the
// other.
// Measured: not measured.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>

#include "kernels/cuda/attention/attention_launch.h"
#include "kernels/cuda/attention/attention_merge.cuh"
#include "kernels/cuda/attention/attention_schedule.cuh"
#include "kernels/cuda/attention/key_blocks.cuh"

namespace switchyard::cuda {
namespace {

using key_blocks::kBlockKeys;
using key_blocks::kHeads;
using key_blocks::kThreads;

constexpr int kMaxColumns = 2;  // value columns per thread

struct Shared {
  key_blocks::Scores scores;
  float factor[kHeads];  // of the sums of values
  int64_t slots[kBlockKeys];
};

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
  const int64_t k_stride = int64_t{p.kv_heads} * p.qk_dim;
  const int64_t v_stride = int64_t{p.kv_heads} * p.v_width;

  for (int i = threadIdx.x; i < kHeads * p.qk_dim; i += kThreads) {
    const int h = i / p.qk_dim;
    q[i] =
        h < heads ? p.q[row * p.ldq + int64_t{first_head + h} * p.qk_dim + i - h * p.qk_dim] : 0.0f;
  }
  const float scale = ScaleOfHead(p.scale, p.k_scales, kv_head);
  float sums[kMaxColumns][kHeads] = {};
  key_blocks::Softmax softmax;  // of head `warp`
  for (int block = begin / kBlockKeys * kBlockKeys; block <= position; block += kBlockKeys) {
    // The keys of the block that the row sees.
    const int from = max(begin - block, 0), to = min(position + 1 - block, kBlockKeys);
    __syncthreads();  // the last block's weights have been read
    if (threadIdx.x < kBlockKeys) {
      const int j = threadIdx.x;
      shared.slots[j] = j >= from && j < to ? SlotOfKey(table, sequence, block + j) : 0;
    }
    __syncthreads();
    const auto key = [&](int j) { return k + shared.slots[j] * k_stride; };
    key_blocks::Score(from, to, key, q, p.qk_dim, scale, shared.scores);
    __syncthreads();
    softmax.Add(shared.scores);
    __syncthreads();
    const auto value = [&](int j, int d) { return v[shared.slots[j] * v_stride + d]; };
    key_blocks::AddValues(from, to, p.v_dim, value, shared.scores, sums);
  }

  float kept = 1.0f;
  if (p.sinks && warp < heads) {
    const float sink = p.sinks[first_head + warp], new_top = fmaxf(softmax.top, sink);
    kept = expf(softmax.top - new_top);
    softmax.sum = fmaf(softmax.sum, kept, expf(sink - new_top));
  }
  __syncthreads();
  const float value_scale = ScaleOfHead(p.value_scale, p.v_scales, kv_head);
  if (lane == 0) shared.factor[warp] = value_scale * (kept / softmax.sum);
  __syncthreads();
#pragma unroll
  for (int c = 0; c < kMaxColumns; ++c) {
    const int d = threadIdx.x + c * kThreads;
    if (d >= p.v_dim) break;
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (h < heads)
        p.out[row * p.ldo + int64_t{first_head + h} * p.v_dim + d] = sums[c][h] * shared.factor[h];
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
    case DType::kF8E4M3:
      SimtAttention<KeyCode><<<grid, kThreads, bytes, stream>>>(launch);
      break;
    default:
      SimtAttention<float><<<grid, kThreads, bytes, stream>>>(launch);
  }
  return cudaGetLastError();
}

}  // namespace switchyard::cuda
