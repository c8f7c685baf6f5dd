// Attention of one query row to blocks of keys, with float32 products on any GPU: the parts that
// attention_simt.cu and entries/entry_attention.cu share.
#pragma once

#include <cmath>

#include "kernels/cuda/device/warp.cuh"
#include "kernels/cuda/entries/entry_rows.cuh"

// A block of kThreads threads computes one query row and up to kHeads heads. For each block of
// kBlockKeys keys it calls Score, Softmax::Add and AddValues, with __syncthreads between them.
namespace switchyard::cuda::key_blocks {

constexpr int kHeads = 8;       // per block; one warp per head in the softmax
constexpr int kThreads = 256;   // one warp per head
constexpr int kBlockKeys = 64;  // keys per softmax update

// In shared memory.
struct Scores {
  float of[kBlockKeys][kHeads];  // replaced by weights in the softmax
  float rescale[kHeads];         // factor of the sums over earlier blocks
};

// Scores of keys [begin, end) of a block; −∞ for its other keys. row(j): the `width` elements of
// key j, for begin <= j < end. q: [kHeads, width].
template <typename Row>
__device__ __forceinline__ void Score(int begin, int end, const Row& row, const float* q, int width,
                                      float scale, Scores& scores) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int j = warp; j < kBlockKeys; j += kThreads / 32) {
    float sums[kHeads] = {};
    const bool seen = j >= begin && j < end;
    if (seen) {
      const auto* const key = row(j);
      for (int d = lane; d < width; d += 32) {
        const float x = entries::ToFloat(key[d]);
#pragma unroll
        for (int h = 0; h < kHeads; ++h) sums[h] = fmaf(x, q[h * width + d], sums[h]);
      }
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const float sum = WarpSum(sums[h]);
      if (lane == 0) scores.of[j][h] = seen ? sum * scale : -INFINITY;
    }
  }
}

// The online softmax of one head (Milakov and Gimelshein 2018), in the registers of its warp. The
// initial value is that of no keys.
struct Softmax {
  float top = -INFINITY;  // the largest score
  float sum = 0.0f;       // of exp(score − top)

  // Replaces the scores of a block by weights. The block, or an earlier one, has a key.
  __device__ __forceinline__ void Add(Scores& scores) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const float a = scores.of[lane][warp], b = scores.of[lane + 32][warp];
    const float new_top = fmaxf(top, WarpMax(fmaxf(a, b)));
    const float rescale = expf(top - new_top), wa = expf(a - new_top), wb = expf(b - new_top);
    sum = fmaf(sum, rescale, WarpSum(wa + wb));
    top = new_top;
    scores.of[lane][warp] = wa;
    scores.of[lane + 32][warp] = wb;
    if (lane == 0) scores.rescale[warp] = rescale;
  }
};

// Adds the weighted values of keys [begin, end) of a block to the rescaled sums of this thread's
// columns d = threadIdx.x + c · kThreads < width. value(j, d): element d of the value of key j.
template <int kColumns, typename Value>
__device__ __forceinline__ void AddValues(int begin, int end, int width, const Value& value,
                                          const Scores& scores, float (&sums)[kColumns][kHeads]) {
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    const int d = static_cast<int>(threadIdx.x) + c * kThreads;
    if (d >= width) break;
#pragma unroll
    for (int h = 0; h < kHeads; ++h) sums[c][h] *= scores.rescale[h];
    for (int j = begin; j < end; ++j) {
      const float x = entries::ToFloat(value(j, d));
#pragma unroll
      for (int h = 0; h < kHeads; ++h) sums[c][h] = fmaf(scores.of[j][h], x, sums[c][h]);
    }
  }
}

}  // namespace switchyard::cuda::key_blocks
