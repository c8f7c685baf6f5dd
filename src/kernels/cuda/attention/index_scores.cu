// Problem: scores of the lightning indexer (kernels/ops.h, SelectKeys): Σ_h weight_h · max(0, q_h ·
// k_j) for each query row and each key that it sees.
// Tiling: grid (blocks of 128 keys, query rows), 256 threads. With float32 products a thread
// computes eight heads of four keys, and a warp has eight heads. With tensor cores a warp computes
// 64 heads of 16 keys with mma.sync. More than 64 heads are processed in turn.
// Pipeline: none. Keys and queries are copied to shared memory in parts of their length.
// Measured: not measured.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "kernels/cuda/attention/attention_ptx.cuh"
#include "kernels/cuda/attention/attention_tile_shape.cuh"
#include "kernels/cuda/attention/select_keys.cuh"
#include "kernels/cuda/entries/entry_rows.cuh"

namespace switchyard::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kBlockKeys = 128;  // keys of a block
constexpr int kBlockHeads = 64;  // heads at a time
constexpr int kGridBlocks = 4096;

// Computes the scores of blocks of keys with float32 products.
template <typename T>
class ExactScorer {
  static constexpr int kDepth = 32;  // columns at a time
  static constexpr int kThreadHeads = kBlockHeads / kWarps, kThreadKeys = kBlockKeys / 32;

 public:
  struct Shared {
    int places[kBlockKeys];  // −1: no key
    // Parts of the keys and of the queries. The strides avoid bank conflicts.
    float keys[kDepth][kBlockKeys + 1];
    alignas(16) float queries[kDepth][kBlockHeads + 4];
    float sums[kWarps][kBlockKeys];  // over the heads of a warp
  };

  __device__ ExactScorer(const KeySelection& p, int row, Shared& shared)
      : p_(p), row_(row), shared_(shared) {}

  // Returns to thread j the score of the key in places[j]. All threads call it, after the places
  // have been written.
  __device__ float Scores() {
    float total = 0.0f;
    for (int head = 0; head < p_.heads; head += kBlockHeads) {
      float products[kThreadHeads][kThreadKeys] = {};
      for (int column = 0; column < p_.head_dim; column += kDepth) {
        __syncthreads();  // places are written, and the last part has been read
        Load(head, column);
        __syncthreads();
        Multiply(products);
      }
      SumHeads(head, products);
      __syncthreads();
      if (threadIdx.x < kBlockKeys) {
#pragma unroll
        for (int w = 0; w < kWarps; ++w) total += shared_.sums[w][threadIdx.x];
      }
    }
    return total;
  }

 private:
  // Copies 32 columns of the keys and of 64 heads; zeros beyond the ends.
  __device__ void Load(int head, int column) {
    const int lane = threadIdx.x % 32, d = column + lane;
    const bool real = d < p_.head_dim;
    const T* const cache = static_cast<const T*>(p_.cache);
    for (int key = threadIdx.x / 32; key < kBlockKeys; key += kWarps) {
      const int place = shared_.places[key];
      shared_.keys[lane][key] =
          real && place >= 0 ? entries::ToFloat(cache[place * p_.stride + d]) : 0.0f;
    }
    const float* const q = p_.q + row_ * p_.ldq;
    for (int h = threadIdx.x / 32; h < kBlockHeads; h += kWarps)
      shared_.queries[lane][h] =
          real && head + h < p_.heads ? q[int64_t{head + h} * p_.head_dim + d] : 0.0f;
  }

  __device__ void Multiply(float (&products)[kThreadHeads][kThreadKeys]) const {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll 8
    for (int d = 0; d < kDepth; ++d) {
      float keys[kThreadKeys];
      float4 queries[kThreadHeads / 4];
#pragma unroll
      for (int i = 0; i < kThreadKeys; ++i) keys[i] = shared_.keys[d][lane + 32 * i];
#pragma unroll
      for (int i = 0; i < kThreadHeads / 4; ++i)
        queries[i] =
            *reinterpret_cast<const float4*>(&shared_.queries[d][warp * kThreadHeads + 4 * i]);
#pragma unroll
      for (int h = 0; h < kThreadHeads; ++h) {
        const float4& four = queries[h / 4];
        const float q = h % 4 == 0 ? four.x : h % 4 == 1 ? four.y : h % 4 == 2 ? four.z : four.w;
#pragma unroll
        for (int i = 0; i < kThreadKeys; ++i) products[h][i] = fmaf(q, keys[i], products[h][i]);
      }
    }
  }

  __device__ void SumHeads(int head, const float (&products)[kThreadHeads][kThreadKeys]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const float* const weights = p_.weights + int64_t{row_} * p_.heads;
    float sums[kThreadKeys] = {};
#pragma unroll
    for (int h = 0; h < kThreadHeads; ++h) {
      const int of_row = head + warp * kThreadHeads + h;
      if (of_row >= p_.heads) break;
      const float weight = weights[of_row];
#pragma unroll
      for (int i = 0; i < kThreadKeys; ++i)
        sums[i] = fmaf(weight, PositivePart(products[h][i]), sums[i]);
    }
#pragma unroll
    for (int i = 0; i < kThreadKeys; ++i) shared_.sums[warp][lane + 32 * i] = sums[i];
  }

  const KeySelection& p_;
  const int row_;
  Shared& shared_;
};

// Computes the scores of blocks of keys with mma.sync: heads are the rows of the product, and keys
// its columns.
class TileScorer {
  static constexpr int kDepth = 64;           // columns at a time
  static constexpr int kStride = kDepth + 8;  // elements
  static constexpr int kHeadTiles = kBlockHeads / 16;
  static constexpr int kWarpTiles = kBlockKeys / kWarps / 8;  // of eight keys

 public:
  struct Shared {
    int places[kBlockKeys];  // −1: no key
    // Parts of the keys and of the queries. The stride avoids bank conflicts.
    alignas(16) __nv_bfloat16 keys[kBlockKeys][kStride];
    alignas(16) __nv_bfloat16 queries[kBlockHeads][kStride];
    float scores[kBlockKeys];
  };

  __device__ TileScorer(const KeySelection& p, int row, Shared& shared)
      : p_(p), row_(row), shared_(shared) {}

  // As ExactScorer::Scores.
  __device__ float Scores() {
    float totals[kWarpTiles][2] = {};
    for (int head = 0; head < p_.heads; head += kBlockHeads) {
      float products[kHeadTiles][kWarpTiles][4] = {};
      for (int column = 0; column < p_.head_dim; column += kDepth) {
        __syncthreads();  // places are written, and the last part has been read
        Load(head, column);
        __syncthreads();
        Multiply(products);
      }
      SumHeads(head, products, totals);
    }
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (lane < 4) {
#pragma unroll
      for (int n = 0; n < kWarpTiles; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          shared_.scores[warp * 8 * kWarpTiles + 8 * n + 2 * lane + i] = totals[n][i];
    }
    __syncthreads();
    return threadIdx.x < kBlockKeys ? shared_.scores[threadIdx.x] : 0.0f;
  }

 private:
  // Copies 64 columns of the keys and of 64 heads; zeros beyond the ends. Eight threads copy a row.
  __device__ void Load(int head, int column) {
    const int piece = threadIdx.x % 8 * 8, d = column + piece;
    const bool real = d < p_.head_dim;  // head_dim is a multiple of eight
    const auto* const cache = static_cast<const __nv_bfloat16*>(p_.cache);
    for (int key = threadIdx.x / 8; key < kBlockKeys; key += kThreads / 8) {
      const int place = shared_.places[key];
      uint4 x = {};
      if (real && place >= 0) x = *reinterpret_cast<const uint4*>(cache + place * p_.stride + d);
      *reinterpret_cast<uint4*>(&shared_.keys[key][piece]) = x;
    }
    const float* const q = p_.q + row_ * p_.ldq;
    for (int h = threadIdx.x / 8; h < kBlockHeads; h += kThreads / 8) {
      uint4 x = {};
      if (real && head + h < p_.heads) {
        const auto* const from =
            reinterpret_cast<const float4*>(q + int64_t{head + h} * p_.head_dim + d);
        const float4 a = from[0], b = from[1];
        x = {PackBf16(a.x, a.y), PackBf16(a.z, a.w), PackBf16(b.x, b.y), PackBf16(b.z, b.w)};
      }
      *reinterpret_cast<uint4*>(&shared_.queries[h][piece]) = x;
    }
  }

  // The lane's pair of elements of a row, in the fragments of mma.sync.
  template <int kRows>
  __device__ static uint32_t Pair(const __nv_bfloat16 (&rows)[kRows][kStride], int row,
                                  int column) {
    const int lane = threadIdx.x % 32;
    return *reinterpret_cast<const uint32_t*>(&rows[row + lane / 4][column + lane % 4 * 2]);
  }

  __device__ void Multiply(float (&products)[kHeadTiles][kWarpTiles][4]) const {
    const int key = threadIdx.x / 32 * 8 * kWarpTiles;
#pragma unroll
    for (int k = 0; k < kDepth; k += 16) {
      uint32_t keys[kWarpTiles][2];
#pragma unroll
      for (int n = 0; n < kWarpTiles; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) keys[n][i] = Pair(shared_.keys, key + 8 * n, k + 8 * i);
#pragma unroll
      for (int m = 0; m < kHeadTiles; ++m) {
        uint32_t queries[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          queries[i] = Pair(shared_.queries, 16 * m + i % 2 * 8, k + i / 2 * 8);
#pragma unroll
        for (int n = 0; n < kWarpTiles; ++n)
          ptx::MmaBf16(products[m][n], queries, keys[n][0], keys[n][1]);
      }
    }
  }

  // Adds the scores over these heads to the totals of the lane's two keys of each tile.
  __device__ void SumHeads(int head, const float (&products)[kHeadTiles][kWarpTiles][4],
                           float (&totals)[kWarpTiles][2]) const {
    const int lane = threadIdx.x % 32;
    const float* const weights = p_.weights + int64_t{row_} * p_.heads;
    float sums[kWarpTiles][2] = {};
#pragma unroll
    for (int m = 0; m < kHeadTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int of_row = head + 16 * m + 8 * half + lane / 4;
        if (of_row >= p_.heads) continue;
        const float weight = weights[of_row];
#pragma unroll
        for (int n = 0; n < kWarpTiles; ++n)
#pragma unroll
          for (int i = 0; i < 2; ++i)
            sums[n][i] = fmaf(weight, PositivePart(products[m][n][2 * half + i]), sums[n][i]);
      }
    }
#pragma unroll
    for (int n = 0; n < kWarpTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float sum = sums[n][i];
#pragma unroll
        for (int lanes = 4; lanes < 32; lanes *= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
        totals[n][i] += sum;
      }
    }
  }

  const KeySelection& p_;
  const int row_;
  Shared& shared_;
};

template <typename Scorer>
__global__ void __launch_bounds__(kThreads) ScoreKeys(const __grid_constant__ KeySelection p) {
  __shared__ typename Scorer::Shared shared;
  const int row = p.first_row + static_cast<int>(blockIdx.y), keys = p.KeysOf(row);
  if (keys <= p.topk) return;
  const int sequence = p.table.row_sequence[row];
  Scorer scorer(p, row, shared);
  const int step = static_cast<int>(gridDim.x) * kBlockKeys;
  for (int begin = static_cast<int>(blockIdx.x) * kBlockKeys; begin < keys; begin += step) {
    const int key = begin + static_cast<int>(threadIdx.x);
    const bool real = threadIdx.x < kBlockKeys && key < keys;
    if (threadIdx.x < kBlockKeys) shared.places[threadIdx.x] = real ? p.PlaceOf(sequence, key) : -1;
    const float score = scorer.Scores();
    if (real) p.ScoresOf(row)[key] = OrderOf(score);
  }
}

template <typename Scorer>
void Launch(const KeySelection& p, cudaStream_t stream) {
  const int64_t blocks = (p.most_keys + kBlockKeys - 1) / kBlockKeys;
  const auto of_row = static_cast<unsigned>(
      std::clamp<int64_t>((kGridBlocks + p.rows - 1) / p.rows, 1, std::max<int64_t>(blocks, 1)));
  ScoreKeys<Scorer><<<dim3(of_row, p.rows), kThreads, 0, stream>>>(p);
}

}  // namespace

cudaError_t StartIndexScores(const KeySelection& p, bool tiles, cudaStream_t stream) {
  switch (p.kv_dtype) {
    case DType::kBF16:
      if (tiles) {
        Launch<TileScorer>(p, stream);
      } else {
        Launch<ExactScorer<__nv_bfloat16>>(p, stream);
      }
      break;
    case DType::kF16:
      Launch<ExactScorer<__half>>(p, stream);
      break;
    default:
      Launch<ExactScorer<float>>(p, stream);
  }
  return cudaGetLastError();
}

}  // namespace switchyard::cuda
