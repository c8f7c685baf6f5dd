// Problem: the gated delta rule (Yang, Kautz and Hatamizadeh, arXiv 2412.06464) over rows of many
// sequences, and the gated norm of its output. kernels/recurrent.h has the definitions.
// Tiling: three kernels.
//   PrepareKernel    a warp takes q or k of one row and key head: divides it by its norm, and
//                    computes the gates of the head's value heads
//   DeltaKernel      a block takes one sequence, one value head and kColumns columns of its state,
//                    for all rows of the sequence in turn. Four lanes share a column, each with a
//                    quarter of its keys in registers. Grid: sequences × heads · blocks of columns
//   GatedNormKernel  a warp takes one row and head
// Pipeline: DeltaKernel copies q, k, v and gates of kRows rows at a time to shared memory
// (cp.async), while it computes the rows before. All kernels are launched early (kernel_chain.cuh).
// A decode step reads and writes each state once, and is bound by memory. A prompt is bound by the
// instructions of its rows, one after another. The chunked rows of a span (StateSpan::chunked) are
// computed by delta_chunks.cuh before DeltaKernel, which takes the rows after them.
// Measured: not measured yet.
#include "kernels/cuda/device/kernel_chain.cuh"
#include "kernels/cuda/elementwise/ops_norm.cuh"
#include "kernels/cuda/recurrent/ops_recurrent.h"
#include "kernels/cuda/recurrent/split_products.cuh"

namespace switchyard::cuda::ops {
namespace {

using kernels::GatedDeltaParams;
using kernels::GatedNormParams;
using kernels::StateSpan;

using Warp = RowThreads<false>;  // the threads of one head of a row

template <bool kAligned>
__global__ void __launch_bounds__(kNormThreads) PrepareKernel(const GatedDeltaParams p) {
  LaunchDependentsAndWait();
  const int64_t at = Warp::Row(), row = at / (2 * p.key_heads), g = at / 2 % p.key_heads;
  const bool is_key = at % 2 != 0;
  if (row >= p.m) return;
  float* x = is_key ? p.k + row * p.ld + g * p.k_stride : p.q + row * p.ld + g * p.q_stride;
  const double squares = RowSquares<Warp, kAligned>(x, p.key_dim) + double{kernels::kDeltaNormEps};
  const double scaled = is_key ? squares : squares * static_cast<double>(p.key_dim);
  const auto factor = static_cast<float>(1.0 / sqrt(scaled));
  for (int64_t i = Warp::Rank() * 4; i < p.key_dim; i += Warp::kSize * 4) {
    const float4 v = LoadRow4<kAligned>(x, i, p.key_dim);
    StoreRow4<kAligned>(x, i, p.key_dim, {v.x * factor, v.y * factor, v.z * factor, v.w * factor});
  }
  if (is_key) return;
  const int64_t group = p.value_heads / p.key_heads;
  for (int64_t i = Warp::Rank(); i < group; i += Warp::kSize) {
    const int64_t head = g * group + i;
    const float a = p.a[row * p.ld_gates + g * p.a_stride + i] + p.bias[head];
    const float b = p.b[row * p.ld_gates + g * p.b_stride + i];
    const float softplus = a > 20.0f ? a : log1pf(expf(a));
    float* gates = p.gates + (row * p.value_heads + head) * 2;
    gates[0] = expf(p.rate[head] * softplus);
    gates[1] = 1.0f / (1.0f + expf(-b));
  }
}

constexpr int kDeltaThreads = 128;
constexpr int kSlices = 4;                         // lanes that share a column
constexpr int kWarpColumns = kWarp / kSlices;      // 32 bytes of a row of the state
constexpr int kColumns = kDeltaThreads / kSlices;  // of a block
constexpr int kRows = 8;                           // of a stage

template <int kKeys>
struct Stage {
  float q[kRows][kKeys], k[kRows][kKeys];  // zeros after key_dim
  float v[kRows][kColumns];
  float gates[kRows][2];
};

// The rows of one sequence, for one head and one block of columns.
template <bool kAligned, int kKeys>
class DeltaRows {
 public:
  __device__ DeltaRows(const GatedDeltaParams& p, const StateSpan& span, int64_t head,
                       int64_t first_column)
      : p_(p),
        span_(span),
        head_(head),
        group_(p.value_heads / p.key_heads),
        key_head_(head / group_),
        first_column_(first_column) {}

  // Zeros of the parts of a stage that Load does not write.
  __device__ void Clear(Stage<kKeys>& stage) const {
    if (p_.key_dim < kKeys) {
      for (int i = threadIdx.x; i < kRows * kKeys; i += kDeltaThreads) {
        const int row = i / kKeys, key = i % kKeys;
        if (key >= p_.key_dim) stage.q[row][key] = stage.k[row][key] = 0.0f;
      }
    }
    if (p_.value_dim < first_column_ + kColumns) {
      for (int i = threadIdx.x; i < kRows * kColumns; i += kDeltaThreads)
        if (first_column_ + i % kColumns >= p_.value_dim)
          stage.v[i / kColumns][i % kColumns] = 0.0f;
    }
  }

  // Starts the copy of up to kRows rows from `begin` on.
  __device__ void Load(int begin, Stage<kKeys>& stage) const {
    const int rows = min(kRows, span_.rows - begin);
    const int64_t first = span_.row_begin + begin;
    const float* q = p_.q + first * p_.ld + key_head_ * p_.q_stride;
    const float* k = p_.k + first * p_.ld + key_head_ * p_.k_stride;
    const float* v = p_.v + first * p_.ld + key_head_ * p_.v_stride +
                     head_ % group_ * p_.value_dim + first_column_;
    for (int i = threadIdx.x; i < rows * (kKeys / 4); i += kDeltaThreads) {
      const int row = i / (kKeys / 4), key = i % (kKeys / 4) * 4;
      CopyFour<kAligned>(&stage.q[row][key], q + row * p_.ld + key, p_.key_dim - key);
      CopyFour<kAligned>(&stage.k[row][key], k + row * p_.ld + key, p_.key_dim - key);
    }
    for (int i = threadIdx.x; i < rows * (kColumns / 4); i += kDeltaThreads) {
      const int row = i / (kColumns / 4), column = i % (kColumns / 4) * 4;
      CopyFour<kAligned>(&stage.v[row][column], v + row * p_.ld + column,
                         p_.value_dim - first_column_ - column);
    }
    for (int i = threadIdx.x; i < 2 * rows; i += kDeltaThreads)
      __pipeline_memcpy_async(&stage.gates[i / 2][i % 2],
                              p_.gates + ((first + i / 2) * p_.value_heads + head_) * 2 + i % 2,
                              sizeof(float));
  }

  __device__ float* StateOf(int32_t slot) const {
    return p_.states + slot * p_.state_stride + head_ * p_.key_dim * p_.value_dim + first_column_;
  }
  __device__ float* Out(int row) const {
    return p_.out + (int64_t{span_.row_begin} + row) * p_.ldo + head_ * p_.value_dim +
           first_column_;
  }

 private:
  const GatedDeltaParams& p_;
  const StateSpan& span_;
  const int64_t head_, group_, key_head_, first_column_;
};

// A lane's part of one column of a state: quads of keys, kSlices quads apart.
template <int kKeys>
class StatePart {
 public:
  static constexpr int kQuads = kKeys / kSlices / 4;

  // `state`: the column in a slot, with rows of `stride` elements; null: zeros.
  __device__ void Read(const float* state, int64_t stride, int slice, int64_t key_dim) {
#pragma unroll
    for (int j = 0; j < kQuads; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int key = (j * kSlices + slice) * 4 + e;
        s_[j][e] = state != nullptr && key < key_dim ? state[key * stride] : 0.0f;
      }
  }
  __device__ void Write(float* state, int64_t stride, int slice, int64_t key_dim) const {
#pragma unroll
    for (int j = 0; j < kQuads; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int key = (j * kSlices + slice) * 4 + e;
        if (key < key_dim) state[key * stride] = s_[j][e];
      }
  }

  // One row. Returns the output, the same on all lanes of the column. The order of additions
  // depends on kKeys alone: four sums of a lane, then the lanes.
  __device__ float Step(const float* q, const float* k, float v, float decay, float step,
                        int slice) {
    float4 sums = {0, 0, 0, 0};
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      const float4 key = Quad(k, j, slice);
      sums.x = __fmaf_rn(key.x, s_[j][0], sums.x);
      sums.y = __fmaf_rn(key.y, s_[j][1], sums.y);
      sums.z = __fmaf_rn(key.z, s_[j][2], sums.z);
      sums.w = __fmaf_rn(key.w, s_[j][3], sums.w);
    }
    const float predicted = __fmul_rn(decay, Sum(sums));
    const float delta = __fmul_rn(step, __fsub_rn(v, predicted));
    sums = {0, 0, 0, 0};
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      const float4 key = Quad(k, j, slice), query = Quad(q, j, slice);
      s_[j][0] = __fmaf_rn(key.x, delta, __fmul_rn(decay, s_[j][0]));
      s_[j][1] = __fmaf_rn(key.y, delta, __fmul_rn(decay, s_[j][1]));
      s_[j][2] = __fmaf_rn(key.z, delta, __fmul_rn(decay, s_[j][2]));
      s_[j][3] = __fmaf_rn(key.w, delta, __fmul_rn(decay, s_[j][3]));
      sums.x = __fmaf_rn(query.x, s_[j][0], sums.x);
      sums.y = __fmaf_rn(query.y, s_[j][1], sums.y);
      sums.z = __fmaf_rn(query.z, s_[j][2], sums.z);
      sums.w = __fmaf_rn(query.w, s_[j][3], sums.w);
    }
    return Sum(sums);
  }

 private:
  static __device__ __forceinline__ float4 Quad(const float* row, int j, int slice) {
    return reinterpret_cast<const float4*>(row)[j * kSlices + slice];
  }
  static __device__ __forceinline__ float Sum(float4 sums) {
    float sum = (sums.x + sums.y) + (sums.z + sums.w);
#pragma unroll
    for (int distance = kWarpColumns; distance < kWarp; distance *= 2)
      sum += __shfl_xor_sync(~0u, sum, distance);
    return sum;
  }

  float s_[kQuads][4];
};

// The rows of a span that are computed one by one. If others are chunked, the state after them is
// in slot `to`, and copies of it have been made.
__device__ __forceinline__ StateSpan RowByRow(const GatedDeltaParams& p, int64_t sequence) {
  StateSpan span = p.sequences[sequence];
  if (!p.chunked || span.chunked == 0) return span;
  span.row_begin += span.chunked;
  span.rows -= span.chunked;
  span.from = span.to;
  for (StateSpan::Copy& copy : span.copies) copy.rows -= span.chunked;
  return span;
}

template <bool kAligned, int kKeys>
__global__ void __launch_bounds__(kDeltaThreads, kKeys <= 128 ? 4 : 2)
    DeltaKernel(const GatedDeltaParams p, int blocks_each) {
  __shared__ __align__(16) Stage<kKeys> stages[2];
  LaunchDependents();
  const StateSpan span = RowByRow(p, blockIdx.x);  // uploaded by the host
  const int block = static_cast<int>(blockIdx.y);
  const int64_t first_column = int64_t{block % blocks_each} * kColumns;
  const int lane = threadIdx.x % kWarp, slice = lane / kWarpColumns;
  const int column = threadIdx.x / kWarp * kWarpColumns + lane % kWarpColumns;  // in the block
  const bool exists = first_column + column < p.value_dim;
  const DeltaRows<kAligned, kKeys> rows(p, span, block / blocks_each, first_column);
  for (Stage<kKeys>& stage : stages) rows.Clear(stage);
  WaitForPriorKernels();
  if (span.rows == 0) return;
  rows.Load(0, stages[0]);
  __pipeline_commit();
  StatePart<kKeys> state;
  state.Read(exists && span.from >= 0 ? rows.StateOf(span.from) + column : nullptr, p.value_dim,
             slice, p.key_dim);
  const auto write = [&](int32_t slot) {
    if (exists) state.Write(rows.StateOf(slot) + column, p.value_dim, slice, p.key_dim);
  };

  for (int begin = 0; begin < span.rows; begin += kRows) {
    Stage<kKeys>& stage = stages[begin / kRows % 2];
    if (begin + kRows < span.rows) rows.Load(begin + kRows, stages[(begin / kRows + 1) % 2]);
    __pipeline_commit();
    __pipeline_wait_prior(1);
    __syncthreads();
    const int end = min(kRows, span.rows - begin);
    for (int row = 0; row < end; ++row) {
      const float out = state.Step(stage.q[row], stage.k[row], stage.v[row][column],
                                   stage.gates[row][0], stage.gates[row][1], slice);
      if (slice == 0 && exists) rows.Out(begin + row)[column] = out;
      for (const StateSpan::Copy& copy : span.copies)
        if (copy.slot >= 0 && copy.rows == begin + row + 1) write(copy.slot);
    }
    __syncthreads();  // before the next copies to this stage
  }
  if (span.to >= 0) write(span.to);
}

// Launches the kernel whose registers have room for the keys.
template <bool kAligned>
cudaError_t StartDelta(const GatedDeltaParams& p, const PdlStream& chain) {
  constexpr int kFewKeys = 128;
  const auto blocks_each = static_cast<int>(CeilDiv(p.value_dim, kColumns));
  const dim3 grid(static_cast<unsigned>(p.num_sequences),
                  static_cast<unsigned>(p.value_heads * blocks_each));
  const auto kernel = p.key_dim <= kFewKeys ? DeltaKernel<kAligned, kFewKeys>
                                            : DeltaKernel<kAligned, kernels::kMaxGpuKeyDim>;
  return LaunchWithPdl(kernel, grid, kDeltaThreads, 0, chain, p, blocks_each);
}

template <bool kAligned>
__global__ void __launch_bounds__(kNormThreads) GatedNormKernel(const GatedNormParams p) {
  LaunchDependentsAndWait();
  const int64_t at = Warp::Row(), row = at / p.heads, head = at % p.heads;
  if (row >= p.m) return;
  float* x = p.x + row * p.ldx + head * p.n;
  const float* z = p.z + row * p.ldz + head / p.group * p.z_stride + head % p.group * p.n;
  const float scale = ScaleOf(RowSquares<Warp, kAligned>(x, p.n), p.n, p.eps);
  for (int64_t i = Warp::Rank() * 4; i < p.n; i += Warp::kSize * 4) {
    const float4 gate = LoadRow4<kAligned>(z, i, p.n);
    float4 y = Scaled(LoadRow4<kAligned>(x, i, p.n), scale, LoadRow4<kAligned>(p.weight, i, p.n));
    y.x *= Silu(gate.x), y.y *= Silu(gate.y), y.z *= Silu(gate.z), y.w *= Silu(gate.w);
    StoreRow4<kAligned>(x, i, p.n, y);
  }
}

dim3 WarpBlocks(int64_t warps) {
  return dim3(static_cast<unsigned>(CeilDiv(warps, Warp::kRowsPerBlock)));
}

}  // namespace

cudaError_t GatedDelta(const GatedDeltaParams& p, const PdlStream& chain) {
  if (p.m == 0 || p.num_sequences == 0 || p.value_heads == 0) return cudaSuccess;
  if (p.key_dim > kernels::kMaxGpuKeyDim) return cudaErrorInvalidValue;
  const bool keys_aligned = RowsAligned(p.q, p.ld, p.key_dim) && p.q_stride % 4 == 0 &&
                            Aligned16(p.k) && p.k_stride % 4 == 0;
  const bool aligned = keys_aligned && RowsAligned(p.v, p.ld, p.value_dim) && p.v_stride % 4 == 0;
  const auto prepare = keys_aligned ? PrepareKernel<true> : PrepareKernel<false>;
  cudaError_t error =
      LaunchWithPdl(prepare, WarpBlocks(2 * p.m * p.key_heads), kNormThreads, 0, chain, p);
  if (error == cudaSuccess && p.chunked) error = GatedDeltaChunks(p, chain);
  if (error != cudaSuccess) return error;
  return aligned ? StartDelta<true>(p, chain) : StartDelta<false>(p, chain);
}

cudaError_t GatedNorm(const GatedNormParams& p, const PdlStream& chain) {
  if (p.m == 0 || p.heads == 0 || p.n == 0) return cudaSuccess;
  const bool aligned = RowsAligned(p.x, p.ldx, p.n) && Aligned16(p.weight) &&
                       RowsAligned(p.z, p.ldz, p.n) && p.z_stride % 4 == 0;
  const auto kernel = aligned ? GatedNormKernel<true> : GatedNormKernel<false>;
  return LaunchWithPdl(kernel, WarpBlocks(p.m * p.heads), kNormThreads, 0, chain, p);
}

}  // namespace switchyard::cuda::ops
