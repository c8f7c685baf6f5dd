// Problem: the rules of recurrent states over rows of many sequences: gated delta rule (Yang, Kautz
// and Hatamizadeh, arXiv 2412.06464), Kimi Delta Attention (arXiv 2510.26692) and Mamba-2 (Dao and
// Gu, arXiv 2405.21060). kernels/recurrent.h has the definitions.
// Tiling: two kernels.
//   PrepareKernel  a warp takes q or k of one row and key head: divides it by its norm, and
//   computes
//                  the gates of the head's value heads. For Mamba-2 StepsKernel computes only
//                  gates, with one thread for each row and value head
//   DeltaKernel    a block takes one sequence, one value head and kColumns columns of its state,
//                  for all rows of the sequence in turn. Four lanes share a column, each with a
//                  quarter of its keys in registers. Grid: sequences × heads · blocks of columns
// Pipeline: DeltaKernel copies q, k, v and gates of a few rows at a time to shared memory
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
using kernels::StateRule;
using kernels::StateSpan;

using Warp = RowThreads<false>;  // the threads of one head of a row

__device__ __forceinline__ float SoftPlus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

// The decay of a key with kKeyDelta.
__device__ __forceinline__ float KeyDecay(const GatedDeltaParams& p, int64_t head, float x) {
  const float rate = p.rate[head];
  return expf(p.bound < 0.0f ? p.bound / (1.0f + expf(rate * x)) : rate * SoftPlus(x));
}

// Places in GatedDeltaParams::gates: a decay and a step for each row and value head. With kKeyDelta
// all decays [m, value_heads, key_dim], which are aligned as keys are, then all steps.
template <StateRule kRule>
struct Gates {
  static constexpr bool kByKey = kRule == StateRule::kKeyDelta;

  static __device__ __forceinline__ float* Decays(const GatedDeltaParams& p, int64_t row,
                                                  int64_t head) {
    return p.gates + (row * p.value_heads + head) * (kByKey ? p.key_dim : 2);
  }
  static __device__ __forceinline__ float* Step(const GatedDeltaParams& p, int64_t row,
                                                int64_t head) {
    const int64_t at = row * p.value_heads + head;
    return p.gates + (kByKey ? p.m * p.value_heads * p.key_dim + at : 2 * at + 1);
  }
};

// The delta rules.
template <StateRule kRule, bool kAligned>
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
  const int64_t group = p.value_heads / p.key_heads;
  const float* a = p.a + row * p.ld_gates + g * p.a_stride;
  if (is_key) {
    if constexpr (Gates<kRule>::kByKey) {
      for (int64_t head = g * group; head < (g + 1) * group; ++head, a += p.key_dim) {
        float* decays = Gates<kRule>::Decays(p, row, head);
        for (int64_t i = Warp::Rank(); i < p.key_dim; i += Warp::kSize)
          decays[i] = KeyDecay(p, head, a[i] + p.bias[head * p.key_dim + i]);
      }
    }
    return;
  }
  for (int64_t i = Warp::Rank(); i < group; i += Warp::kSize) {
    const int64_t head = g * group + i;
    const float b = p.b[row * p.ld_gates + g * p.b_stride + i];
    if constexpr (!Gates<kRule>::kByKey)
      *Gates<kRule>::Decays(p, row, head) = expf(p.rate[head] * SoftPlus(a[i] + p.bias[head]));
    *Gates<kRule>::Step(p, row, head) = 1.0f / (1.0f + expf(-b));
  }
}

// Mamba-2, and kFixed without `a`.
__global__ void __launch_bounds__(kNormThreads) StepsKernel(const GatedDeltaParams p) {
  LaunchDependentsAndWait();
  using MambaGates = Gates<StateRule::kMamba2>;
  const int64_t at = int64_t{blockIdx.x} * kNormThreads + threadIdx.x;
  const int64_t row = at / p.value_heads, head = at % p.value_heads;
  if (row >= p.m) return;
  float step = 1.0f;
  if (p.a != nullptr) {
    const int64_t group = p.value_heads / p.key_heads;
    const float a = p.a[row * p.ld_gates + head / group * p.a_stride + head % group];
    step = SoftPlus(a + p.bias[head]);
    step = step < p.min_step ? p.min_step : step;  // NaN stays NaN
  }
  *MambaGates::Decays(p, row, head) = expf(p.rate[head] * step);
  *MambaGates::Step(p, row, head) = step;
}

constexpr int kDeltaThreads = 128;
constexpr int kSlices = 4;                         // lanes that share a column
constexpr int kWarpColumns = kWarp / kSlices;      // 32 bytes of a row of the state
constexpr int kColumns = kDeltaThreads / kSlices;  // of a block

// Rows in shared memory. Two stages fit into 48 KB.
template <StateRule kRule, int kKeys>
struct Stage {
  static constexpr bool kByKey = Gates<kRule>::kByKey;
  static constexpr int kRows = kByKey && kKeys > 128 ? 4 : 8;
  static constexpr int kDecays = kByKey ? kKeys : 1;

  float q[kRows][kKeys], k[kRows][kKeys];  // zeros after key_dim
  float v[kRows][kColumns];
  float decays[kRows][kDecays];  // by key: zeros after key_dim
  float steps[kRows];
};

// The rows of one sequence, for one head and one block of columns.
template <StateRule kRule, bool kAligned, int kKeys>
class DeltaRows {
 public:
  using Rows = Stage<kRule, kKeys>;

  __device__ DeltaRows(const GatedDeltaParams& p, const StateSpan& span, int64_t head,
                       int64_t first_column)
      : p_(p),
        span_(span),
        head_(head),
        group_(p.value_heads / p.key_heads),
        key_head_(head / group_),
        first_column_(first_column) {}

  // Zeros of the parts of a stage that Load does not write.
  __device__ void Clear(Rows& stage) const {
    if (p_.key_dim < kKeys) {
      for (int i = threadIdx.x; i < Rows::kRows * kKeys; i += kDeltaThreads) {
        const int row = i / kKeys, key = i % kKeys;
        if (key < p_.key_dim) continue;
        stage.q[row][key] = stage.k[row][key] = 0.0f;
        if constexpr (Rows::kByKey) stage.decays[row][key] = 0.0f;
      }
    }
    if (p_.value_dim < first_column_ + kColumns) {
      for (int i = threadIdx.x; i < Rows::kRows * kColumns; i += kDeltaThreads)
        if (first_column_ + i % kColumns >= p_.value_dim)
          stage.v[i / kColumns][i % kColumns] = 0.0f;
    }
  }

  // Starts the copy of up to Rows::kRows rows from `begin` on.
  __device__ void Load(int begin, Rows& stage) const {
    const int rows = min(Rows::kRows, span_.rows - begin);
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
    if constexpr (Rows::kByKey) {
      for (int i = threadIdx.x; i < rows * (kKeys / 4); i += kDeltaThreads) {
        const int row = i / (kKeys / 4), key = i % (kKeys / 4) * 4;
        CopyFour<kAligned>(&stage.decays[row][key],
                           Gates<kRule>::Decays(p_, first + row, head_) + key, p_.key_dim - key);
      }
    }
    for (int row = threadIdx.x; row < rows; row += kDeltaThreads) {
      if constexpr (!Rows::kByKey)
        __pipeline_memcpy_async(&stage.decays[row][0], Gates<kRule>::Decays(p_, first + row, head_),
                                sizeof(float));
      __pipeline_memcpy_async(&stage.steps[row], Gates<kRule>::Step(p_, first + row, head_),
                              sizeof(float));
    }
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

  // Row `row` of a stage. Returns the output, the same on all lanes of the column. The order of
  // additions depends on kKeys alone: four sums of a lane, then the lanes.
  template <StateRule kRule>
  __device__ float Step(const Stage<kRule, kKeys>& stage, int row, float v, float skip, int slice) {
    constexpr bool kByKey = Gates<kRule>::kByKey;
    const float *q = stage.q[row], *k = stage.k[row];
    if constexpr (kByKey) Decay(stage.decays[row], slice);
    const float decay = kByKey ? 1.0f : stage.decays[row][0];
    float delta = __fmul_rn(stage.steps[row], v);
    if constexpr (kRule != StateRule::kMamba2) {
      const float product = Product(k, slice);
      const float predicted = kByKey ? product : __fmul_rn(decay, product);
      delta = __fmul_rn(stage.steps[row], __fsub_rn(v, predicted));
    }
    float4 sums = {0, 0, 0, 0};
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      const float4 key = Quad(k, j, slice), query = Quad(q, j, slice);
      if constexpr (!kByKey) {
#pragma unroll
        for (int e = 0; e < 4; ++e) s_[j][e] = __fmul_rn(decay, s_[j][e]);
      }
      s_[j][0] = __fmaf_rn(key.x, delta, s_[j][0]);
      s_[j][1] = __fmaf_rn(key.y, delta, s_[j][1]);
      s_[j][2] = __fmaf_rn(key.z, delta, s_[j][2]);
      s_[j][3] = __fmaf_rn(key.w, delta, s_[j][3]);
      sums.x = __fmaf_rn(query.x, s_[j][0], sums.x);
      sums.y = __fmaf_rn(query.y, s_[j][1], sums.y);
      sums.z = __fmaf_rn(query.z, s_[j][2], sums.z);
      sums.w = __fmaf_rn(query.w, s_[j][3], sums.w);
    }
    const float out = Sum(sums);
    return kRule == StateRule::kMamba2 ? __fmaf_rn(skip, v, out) : out;
  }

 private:
  // Multiplies the keys of the state by their decays.
  __device__ __forceinline__ void Decay(const float* decays, int slice) {
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      const float4 decay = Quad(decays, j, slice);
      s_[j][0] = __fmul_rn(decay.x, s_[j][0]);
      s_[j][1] = __fmul_rn(decay.y, s_[j][1]);
      s_[j][2] = __fmul_rn(decay.z, s_[j][2]);
      s_[j][3] = __fmul_rn(decay.w, s_[j][3]);
    }
  }
  // The product of the column and a row of keys.
  __device__ __forceinline__ float Product(const float* keys, int slice) const {
    float4 sums = {0, 0, 0, 0};
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      const float4 key = Quad(keys, j, slice);
      sums.x = __fmaf_rn(key.x, s_[j][0], sums.x);
      sums.y = __fmaf_rn(key.y, s_[j][1], sums.y);
      sums.z = __fmaf_rn(key.z, s_[j][2], sums.z);
      sums.w = __fmaf_rn(key.w, s_[j][3], sums.w);
    }
    return Sum(sums);
  }
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

// The next copy of a state (StateSpan::copies).
class NextCopy {
 public:
  __device__ explicit NextCopy(const StateSpan& span) : copies_(span.copies) {
    while (Exists() && copies_[index_].rows <= 0) ++index_;  // among the chunked rows
  }
  // The slot of the state after `rows` rows; −1: none. Call it for ascending rows.
  __device__ int32_t SlotAfter(int rows) {
    return Exists() && copies_[index_].rows == rows ? copies_[index_++].slot : -1;
  }

 private:
  __device__ bool Exists() const {
    return index_ < kernels::kMaxStateCopies && copies_[index_].slot >= 0;
  }
  const StateSpan::Copy* copies_;
  int index_ = 0;
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

template <StateRule kRule, bool kAligned, int kKeys>
__global__ void __launch_bounds__(kDeltaThreads, kKeys <= 128 ? 4 : 2)
    DeltaKernel(const GatedDeltaParams p, int blocks_each) {
  using Rows = Stage<kRule, kKeys>;
  constexpr int kRows = Rows::kRows;
  __shared__ __align__(16) Rows stages[2];
  LaunchDependents();
  const StateSpan span = RowByRow(p, blockIdx.x);  // uploaded by the host
  const int block = static_cast<int>(blockIdx.y), head = block / blocks_each;
  const int64_t first_column = int64_t{block % blocks_each} * kColumns;
  const int lane = threadIdx.x % kWarp, slice = lane / kWarpColumns;
  const int column = threadIdx.x / kWarp * kWarpColumns + lane % kWarpColumns;  // in the block
  const bool exists = first_column + column < p.value_dim;
  const DeltaRows<kRule, kAligned, kKeys> rows(p, span, head, first_column);
  for (Rows& stage : stages) rows.Clear(stage);
  WaitForPriorKernels();
  if (span.rows == 0) return;
  const float skip = kRule == StateRule::kMamba2 && p.skip != nullptr ? p.skip[head] : 0.0f;
  rows.Load(0, stages[0]);
  __pipeline_commit();
  StatePart<kKeys> state;
  state.Read(exists && span.from >= 0 ? rows.StateOf(span.from) + column : nullptr, p.value_dim,
             slice, p.key_dim);
  const auto write = [&](int32_t slot) {
    if (exists) state.Write(rows.StateOf(slot) + column, p.value_dim, slice, p.key_dim);
  };

  NextCopy copy(span);
  for (int begin = 0; begin < span.rows; begin += kRows) {
    Rows& stage = stages[begin / kRows % 2];
    if (begin + kRows < span.rows) rows.Load(begin + kRows, stages[(begin / kRows + 1) % 2]);
    __pipeline_commit();
    __pipeline_wait_prior(1);
    __syncthreads();
    const int end = min(kRows, span.rows - begin);
    for (int row = 0; row < end; ++row) {
      const float out = state.Step(stage, row, stage.v[row][column], skip, slice);
      if (slice == 0 && exists) rows.Out(begin + row)[column] = out;
      if (const int32_t slot = copy.SlotAfter(begin + row + 1); slot >= 0) write(slot);
    }
    __syncthreads();  // before the next copies to this stage
  }
  if (span.to >= 0) write(span.to);
}

dim3 WarpBlocks(int64_t warps) {
  return dim3(static_cast<unsigned>(CeilDiv(warps, Warp::kRowsPerBlock)));
}

// `aligned`: q and k of each row.
template <StateRule kRule>
cudaError_t StartGates(const GatedDeltaParams& p, bool aligned, const PdlStream& chain) {
  if constexpr (kRule == StateRule::kMamba2) {
    const dim3 blocks(static_cast<unsigned>(CeilDiv(p.m * p.value_heads, int64_t{kNormThreads})));
    return LaunchWithPdl(StepsKernel, blocks, kNormThreads, 0, chain, p);
  } else {
    const auto kernel = aligned ? PrepareKernel<kRule, true> : PrepareKernel<kRule, false>;
    return LaunchWithPdl(kernel, WarpBlocks(2 * p.m * p.key_heads), kNormThreads, 0, chain, p);
  }
}

// Launches the kernel whose registers have room for the keys. `kAligned`: q, k, v and the decays of
// keys.
template <StateRule kRule, bool kAligned>
cudaError_t StartDelta(const GatedDeltaParams& p, const PdlStream& chain) {
  constexpr int kFewKeys = 128;
  const auto blocks_each = static_cast<int>(CeilDiv(p.value_dim, kColumns));
  const dim3 grid(static_cast<unsigned>(p.num_sequences),
                  static_cast<unsigned>(p.value_heads * blocks_each));
  const auto kernel = p.key_dim <= kFewKeys ? DeltaKernel<kRule, kAligned, kFewKeys>
                                            : DeltaKernel<kRule, kAligned, kernels::kMaxGpuKeyDim>;
  return LaunchWithPdl(kernel, grid, kDeltaThreads, 0, chain, p, blocks_each);
}

template <StateRule kRule>
cudaError_t Start(const GatedDeltaParams& p, const PdlStream& chain) {
  const bool keys_aligned = RowsAligned(p.q, p.ld, p.key_dim) && p.q_stride % 4 == 0 &&
                            Aligned16(p.k) && p.k_stride % 4 == 0;
  const bool aligned = keys_aligned && RowsAligned(p.v, p.ld, p.value_dim) && p.v_stride % 4 == 0 &&
                       Aligned16(p.gates);
  cudaError_t error = StartGates<kRule>(p, keys_aligned, chain);
  if (error == cudaSuccess && p.chunked) error = GatedDeltaChunks(p, chain);
  if (error != cudaSuccess) return error;
  return aligned ? StartDelta<kRule, true>(p, chain) : StartDelta<kRule, false>(p, chain);
}

}  // namespace

cudaError_t GatedDelta(const GatedDeltaParams& p, const PdlStream& chain) {
  if (p.m == 0 || p.num_sequences == 0 || p.value_heads == 0) return cudaSuccess;
  const bool chunks = p.chunked && p.rule != StateRule::kDelta;  // no kernel
  if (p.key_dim > kernels::kMaxGpuKeyDim || chunks) return cudaErrorInvalidValue;
  switch (p.rule) {
    case StateRule::kDelta:
      return Start<StateRule::kDelta>(p, chain);
    case StateRule::kKeyDelta:
      return Start<StateRule::kKeyDelta>(p, chain);
    case StateRule::kMamba2:
    case StateRule::kFixed:
      return Start<StateRule::kMamba2>(p, chain);
  }
  return cudaErrorInvalidValue;
}

}  // namespace switchyard::cuda::ops
