// Problem: the rows and states of the gated delta rule, chunk by chunk (delta_chunks.cuh).
// Tiling: a block takes one sequence, one value head and kColumns columns of its state, for all
// chunks in turn. A pair of warps takes 16 columns. Each keeps half of their keys in registers, as
// the result of mma.sync, which is also the form of a left operand. The warps of a pair add their
// partial K S and Q S and exchange their rows of U through shared memory, lane by lane. Grid:
// sequences × heads · blocks of columns.
// Pipeline: four further warps copy the next chunk (cp.async) during the products of the present
// one. Launched early (kernel_chain.cuh). Measured: not measured yet.
#include <cuda_pipeline_primitives.h>

#include "kernels/cuda/device/kernel_chain.cuh"
#include "kernels/cuda/device/ptx.cuh"
#include "kernels/cuda/elementwise/ops_elements.cuh"
#include "kernels/cuda/recurrent/delta_chunks.cuh"
#include "kernels/cuda/recurrent/ops_recurrent.h"

namespace switchyard::cuda::ops {
namespace {

using namespace delta;  // NOLINT(google-build-using-namespace)
using kernels::StateSpan;

constexpr int kPairs = 2;  // of warps, of a block
constexpr int kColumns = 16 * kPairs;
constexpr int kConsumers = 2 * kPairs;  // warps that multiply
constexpr int kProducerThreads = 128;
constexpr int kRowsThreads = kConsumers * kWarp + kProducerThreads;
constexpr int kHalfKeys = kKeys / 2;
constexpr int kOwnTiles = kTiles / 2;  // tiles of rows of U and O that a warp of a pair computes

struct ChunkStage {
  float k[kChunk * kKeys], q[kChunk * kKeys];
  float t[kChunk * kChunk], p[kChunk * kChunk];  // blocks above the diagonal are not used
  float prefix[kChunk], suffix[kChunk];          // r_i and r_last,i
};
struct RowsMemory {
  ChunkStage stages[2];
  // Results of warps for the other warp of their pair: K S, its rows of Q S, and U.
  float ks[kConsumers][4 * kTiles][kWarp];
  float qs[kConsumers][4 * kOwnTiles][kWarp];
  float u[kConsumers][4 * kOwnTiles][kWarp];
};
static_assert(sizeof(RowsMemory) <= 232448);

// Starts the copies of a chunk, whose first row is `first`.
template <bool kAligned>
__device__ __forceinline__ void LoadChunk(const GatedDeltaParams& p, int64_t first, int64_t head,
                                          int thread, ChunkStage& stage) {
  const int64_t key_head = head / (p.value_heads / p.key_heads);
  const Scratch scratch(p);
  CopyKeys<kAligned>(p, p.k + first * p.ld + key_head * p.k_stride, stage.k, thread,
                     kProducerThreads);
  for (int i = thread; i < 2 * kChunk * (kChunk / 4); i += kProducerThreads) {
    const int row = i / (2 * kChunk / 4), at = i % (2 * kChunk / 4) * 4, column = at % kChunk;
    if (column / 16 > row / 16) continue;
    float* const to = at < kChunk ? stage.t : stage.p;
    __pipeline_memcpy_async(to + Swizzled<kChunk>(row, column),
                            scratch.Matrices(first + row, head) + at, 4 * sizeof(float));
  }
  for (int i = thread; i < 2 * kChunk; i += kProducerThreads)
    __pipeline_memcpy_async((i % 2 == 0 ? stage.prefix : stage.suffix) + i / 2,
                            scratch.Factors(first + i / 2, head) + i % 2, sizeof(float));
  CopyKeys<kAligned>(p, p.q + first * p.ld + key_head * p.q_stride, stage.q, thread,
                     kProducerThreads);
}

// The tile of rows that is the x-th of the first or second warp of a pair. The first one has blocks
// of rows 0 and 3, the second 1 and 2: both have the same number of blocks up to the diagonal.
__device__ __forceinline__ constexpr int OwnTile(int half, int x) {
  return half == 0 ? (x < 2 ? x : x + 4) : x + 2;
}

// The 16 columns of a pair of warps, from `column` on, and half of their keys.
class ColumnPair {
 public:
  __device__ ColumnPair(const GatedDeltaParams& p, RowsMemory& memory, int64_t head, int64_t column)
      : p_(p),
        memory_(memory),
        head_(head),
        warp_(threadIdx.x / kWarp),
        half_(warp_ % 2),
        lane_(threadIdx.x % kWarp),
        g_(lane_ / 4),
        t_(lane_ % 4),
        column_(column + g_) {}

  // Null: zeros.
  __device__ void ReadState(const float* state) {
    EachElement([&](float& s, int64_t key, int64_t column, bool exists) {
      s = state != nullptr && exists ? state[key * p_.value_dim + column] : 0.0f;
    });
  }
  __device__ void WriteState(float* state) {
    EachElement([&](float& s, int64_t key, int64_t column, bool exists) {
      if (exists) state[key * p_.value_dim + column] = s;
    });
  }

  __device__ void Run(const ChunkStage& stage, int64_t first) {
    float v[kTiles][4];
    ReadValues(first, v);
    float ks[kTiles][4] = {}, qs[kTiles][4] = {};
    MultiplyState(stage, ks, qs);
    // The sum of two partial sums is the same in both warps.
#pragma unroll
    for (int i = 0; i < 4 * kTiles; ++i) memory_.ks[warp_][i][lane_] = ks[i / 4][i % 4];
#pragma unroll
    for (int i = 0; i < 4 * kOwnTiles; ++i)
      memory_.qs[warp_][i][lane_] =
          half_ == 0 ? qs[OwnTile(1, i / 4)][i % 4] : qs[OwnTile(0, i / 4)][i % 4];
    SyncPair();
    // V − diag(r_i) K S
#pragma unroll
    for (int i = 0; i < 4 * kTiles; ++i) {
      const float sum = ks[i / 4][i % 4] + memory_.ks[warp_ ^ 1][i][lane_];
      const float factor = stage.prefix[8 * (i / 4) + 2 * t_ + i % 2];
      ks[i / 4][i % 4] = __fmaf_rn(-factor, sum, v[i / 4][i % 4]);
    }
    float own[kOwnTiles][4] = {};
    AddTriangular(stage.t, ks, own);
#pragma unroll
    for (int i = 0; i < 4 * kOwnTiles; ++i) memory_.u[warp_][i][lane_] = own[i / 4][i % 4];
    SyncPair();
    float(&u)[kTiles][4] = ks;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < 4 * kOwnTiles; ++i)
        u[OwnTile(half, i / 4)][i % 4] = memory_.u[warp_ / 2 * 2 + half][i][lane_];
#pragma unroll
    for (int i = 0; i < 4 * kOwnTiles; ++i) {
      const float mine = half_ == 0 ? qs[OwnTile(0, i / 4)][i % 4] : qs[OwnTile(1, i / 4)][i % 4];
      const int row = 8 * OwnTile(half_, i / 4) + 2 * t_ + i % 2;
      own[i / 4][i % 4] = stage.prefix[row] * (mine + memory_.qs[warp_ ^ 1][i][lane_]);
    }
    AddTriangular(stage.p, u, own);
    WriteRows(first, own);
    Advance(stage, u);
  }

 private:
  template <typename Function>
  __device__ __forceinline__ void EachElement(const Function& function) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int64_t key = half_ * kHalfKeys + 8 * tile + 2 * t_ + i % 2;
        const int64_t column = column_ + i / 2 * 8;
        function(s_[tile][i], key, column, key < p_.key_dim && column < p_.value_dim);
      }
  }
  __device__ __forceinline__ void SyncPair() const { ptx::NamedBarrier(1 + warp_ / 2, 2 * kWarp); }

  // [16 columns, 64 rows] of v, as results of mma.sync.
  __device__ __forceinline__ void ReadValues(int64_t first, float (&v)[kTiles][4]) const {
    const int64_t group = p_.value_heads / p_.key_heads;
    const float* from =
        p_.v + first * p_.ld + head_ / group * p_.v_stride + head_ % group * p_.value_dim + column_;
#pragma unroll
    for (int i = 0; i < 4 * kTiles; ++i) {
      const int row = 8 * (i / 4) + 2 * t_ + i % 2, right = i % 4 / 2 * 8;
      v[i / 4][i % 4] = column_ + right < p_.value_dim ? from[row * p_.ld + right] : 0.0f;
    }
  }

  // The parts of Sᵀ Kᵀ and Sᵀ Qᵀ [16 columns, 64 rows] of this warp's keys.
  __device__ __forceinline__ void MultiplyState(const ChunkStage& stage, float (&ks)[kTiles][4],
                                                float (&qs)[kTiles][4]) const {
#pragma unroll
    for (int step = 0; step < kHalfKeys / 16; ++step) {
      const SplitLeft state = LeftOf(s_[2 * step], s_[2 * step + 1]);
      const int key = half_ * kHalfKeys + 16 * step + 2 * t_;
#pragma unroll
      for (int tile = 0; tile < kTiles; tile += 2) {
        SplitRight b[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = 8 * (tile + i / 2) + g_;
          b[i].Set(0, RowPair<kKeys>(i % 2 == 0 ? stage.k : stage.q, row, key));
          b[i].Set(1, RowPair<kKeys>(i % 2 == 0 ? stage.k : stage.q, row, key + 8));
        }
        float* const to[] = {ks[tile], qs[tile], ks[tile + 1], qs[tile + 1]};
        const SplitLeft* const left[] = {&state, &state, &state, &state};
        AddProducts<4>(to, left, b);
      }
    }
  }

  // own += x · matrixᵀ for this warp's rows, where `matrix` is T or P and x is [16 columns, rows].
  __device__ __forceinline__ void AddTriangular(const float* matrix, const float (&x)[kTiles][4],
                                                float (&own)[kOwnTiles][4]) const {
    const int lower = half_ == 0 ? 0 : 1, upper = 3 - lower;  // this warp's blocks of rows
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      if (block > upper) continue;
      const SplitLeft left = LeftOf(x[2 * block], x[2 * block + 1]);
      SplitRight b[kOwnTiles];
#pragma unroll
      for (int i = 0; i < kOwnTiles; ++i) {
        if (i < 2 && block > lower) continue;
        const int row = 8 * OwnTile(half_, i) + g_;
        b[i].Set(0, RowPair<kChunk>(matrix, row, 16 * block + 2 * t_));
        b[i].Set(1, RowPair<kChunk>(matrix, row, 16 * block + 2 * t_ + 8));
      }
      const SplitLeft* const lefts[] = {&left, &left};
      if (block <= lower) {
        float* const to[] = {own[0], own[1]};
        const SplitRight right[] = {b[0], b[1]};
        AddProducts<2>(to, lefts, right);
      }
      float* const to[] = {own[2], own[3]};
      const SplitRight right[] = {b[2], b[3]};
      AddProducts<2>(to, lefts, right);
    }
  }

  __device__ __forceinline__ void WriteRows(int64_t first, const float (&own)[kOwnTiles][4]) const {
    float* to = p_.out + first * p_.ldo + head_ * p_.value_dim + column_;
#pragma unroll
    for (int i = 0; i < 4 * kOwnTiles; ++i) {
      const int row = 8 * OwnTile(half_, i / 4) + 2 * t_ + i % 2, right = i % 4 / 2 * 8;
      if (column_ + right < p_.value_dim) to[row * p_.ldo + right] = own[i / 4][i % 4];
    }
  }

  // The state after the chunk.
  __device__ __forceinline__ void Advance(const ChunkStage& stage, float (&u)[kTiles][4]) {
    const float decay = stage.prefix[kChunk - 1];
#pragma unroll
    for (int i = 0; i < 4 * kTiles; ++i) {
      s_[i / 4][i % 4] *= decay;
      u[i / 4][i % 4] *= stage.suffix[8 * (i / 4) + 2 * t_ + i % 2];
    }
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const SplitLeft left = LeftOf(u[2 * block], u[2 * block + 1]);
      const SplitLeft* const lefts[] = {&left, &left, &left, &left};
      const int row = 16 * block + 2 * t_;
#pragma unroll
      for (int tile = 0; tile < kTiles; tile += 4) {
        SplitRight b[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int key = half_ * kHalfKeys + 8 * (tile + i) + g_;
          const auto pair = [&](int r) {
            return Split(stage.k[Swizzled<kKeys>(r, key)], stage.k[Swizzled<kKeys>(r + 1, key)]);
          };
          b[i].Set(0, pair(row));
          b[i].Set(1, pair(row + 8));
        }
        float* const to[] = {s_[tile], s_[tile + 1], s_[tile + 2], s_[tile + 3]};
        AddProducts<4>(to, lefts, b);
      }
    }
  }

  const GatedDeltaParams& p_;
  RowsMemory& memory_;
  const int64_t head_;
  const int warp_, half_, lane_, g_, t_;
  const int64_t column_;
  float s_[kTiles][4];  // Sᵀ [16 columns, 64 keys], as results of mma.sync
};

template <bool kAligned>
__global__ void __launch_bounds__(kRowsThreads, 1)
    ChunkRowsKernel(const GatedDeltaParams p, int blocks_each) {
  extern __shared__ __align__(16) unsigned char shared[];
  RowsMemory& memory = *reinterpret_cast<RowsMemory*>(shared);
  LaunchDependents();
  const StateSpan span = p.sequences[blockIdx.x];  // uploaded by the host
  const int block = static_cast<int>(blockIdx.y);
  const int64_t head = block / blocks_each, first = span.row_begin;
  const int64_t column = int64_t{block % blocks_each} * kColumns;
  const int warp = threadIdx.x / kWarp,
            producer = static_cast<int>(threadIdx.x) - kConsumers * kWarp;
  WaitForPriorKernels();
  if (span.chunked == 0) return;
  if (producer >= 0) {
    for (ChunkStage& stage : memory.stages) {
      ClearKeys(p, stage.k, producer, kProducerThreads);
      ClearKeys(p, stage.q, producer, kProducerThreads);
    }
    LoadChunk<kAligned>(p, first, head, producer, memory.stages[0]);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();
    for (int row = kChunk; row <= span.chunked; row += kChunk) {
      if (row < span.chunked)
        LoadChunk<kAligned>(p, first + row, head, producer, memory.stages[row / kChunk % 2]);
      __pipeline_commit();
      __pipeline_wait_prior(0);
      __syncthreads();
    }
    return;
  }
  const auto state_of = [&](int32_t slot) {
    return p.states + slot * p.state_stride + head * p.key_dim * p.value_dim;
  };
  ColumnPair columns(p, memory, head, column + warp / 2 * 16);
  columns.ReadState(span.from >= 0 ? state_of(span.from) : nullptr);
  __syncthreads();
  for (int row = 0; row < span.chunked; row += kChunk) {
    columns.Run(memory.stages[row / kChunk % 2], first + row);
    for (const StateSpan::Copy& copy : span.copies)
      if (copy.slot >= 0 && copy.rows == row + kChunk) columns.WriteState(state_of(copy.slot));
    __syncthreads();
  }
  columns.WriteState(state_of(span.to));
}

template <bool kAligned>
cudaError_t Start(const GatedDeltaParams& p, const PdlStream& chain) {
  static SharedMemoryOptIn setup;
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  error = setup.On(device, ChunkRowsKernel<kAligned>, sizeof(RowsMemory));
  if (error != cudaSuccess) return error;
  const auto blocks_each = static_cast<int>(CeilDiv(p.value_dim, kColumns));
  const dim3 grid(static_cast<unsigned>(p.num_sequences),
                  static_cast<unsigned>(p.value_heads * blocks_each));
  return LaunchWithPdl(ChunkRowsKernel<kAligned>, grid, kRowsThreads, sizeof(RowsMemory), chain, p,
                       blocks_each);
}

}  // namespace

cudaError_t StartChunkRows(const GatedDeltaParams& p, bool aligned, const PdlStream& chain) {
  return aligned ? Start<true>(p, chain) : Start<false>(p, chain);
}

cudaError_t GatedDeltaChunks(const GatedDeltaParams& p, const PdlStream& chain) {
  if (p.key_dim > kernels::kMaxChunkKeyDim || p.chunk_scratch == nullptr ||
      !Aligned16(p.chunk_scratch))
    return cudaErrorInvalidValue;
  if (p.m < kChunk) return cudaSuccess;
  const bool aligned = RowsAligned(p.q, p.ld, p.key_dim) && p.q_stride % 4 == 0 && Aligned16(p.k) &&
                       p.k_stride % 4 == 0;
  const cudaError_t error = StartChunkMatrices(p, aligned, chain);
  return error == cudaSuccess ? StartChunkRows(p, aligned, chain) : error;
}

}  // namespace switchyard::cuda::ops
