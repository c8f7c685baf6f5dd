// Problem: short causal convolution of each channel, then SiLU, over rows of many sequences
// [m, groups · channels] with a state of the last inputs (kernels/recurrent.h).
// Tiling: a thread takes four channels of up to kRowsEach adjacent rows, whose inputs it keeps in
// registers if the width is kWidth. With few rows it takes one row, so that the GPU is full. The
// spans of the rows are found by binary search. The thread of the last row of a span, or of a copy,
// also writes the state. Grid: tiles of rows · blocks of channels.
// Pipeline: none. Lets the next kernel begin early (kernel_chain.cuh). Measured: not measured yet.
#include "kernels/cuda/device/kernel_chain.cuh"
#include "kernels/cuda/elementwise/ops_elements.cuh"
#include "kernels/cuda/recurrent/ops_recurrent.h"

namespace switchyard::cuda::ops {
namespace {

using kernels::ShortConvParams;
using kernels::StateSpan;

constexpr int kThreads = 256;
constexpr int kRowsEach = 8;
constexpr int64_t kFewRows = 1024;  // up to this number of rows, a thread takes one row
constexpr int kWidth = 4;           // the width of published models

// The index of the span of `row`. Spans without rows are last and begin after all rows.
__device__ __forceinline__ int64_t SpanAt(const StateSpan* spans, int64_t count, int64_t row) {
  int64_t low = 0, high = count;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (spans[middle].row_begin <= row ? low : high) = middle;
  }
  return low;
}

__device__ __forceinline__ float4 Fma(float4 a, float4 b, float4 sum) {
  return {__fmaf_rn(a.x, b.x, sum.x), __fmaf_rn(a.y, b.y, sum.y), __fmaf_rn(a.z, b.z, sum.z),
          __fmaf_rn(a.w, b.w, sum.w)};
}

// The inputs of four channels of the sequence of a span.
template <bool kAligned>
class Inputs {
 public:
  // `column`: the first of the four channels in their group.
  __device__ Inputs(const ShortConvParams& p, const StateSpan& span, int64_t group, int64_t column)
      : p_(p),
        x_(p.x + span.row_begin * p.ldx + group * p.group_stride),
        from_(span.from < 0 ? nullptr : p.states + span.from * p.state_stride + group * p.channels),
        column_(column) {}

  // `row` rows after the beginning of the span; at least 1 − width.
  __device__ float4 At(int64_t row) const {
    if (row >= 0) return LoadRow4<kAligned>(x_ + row * p_.ldx, column_, p_.channels);
    if (from_ == nullptr) return {0, 0, 0, 0};
    return LoadRow4<kAligned>(from_ + (row + p_.width - 1) * p_.groups * p_.channels, column_,
                              p_.channels);
  }

 private:
  const ShortConvParams& p_;
  const float* x_;
  const float* from_;  // null: zeros
  int64_t column_;
};

// kStatic: the width is kWidth. The order of additions is the same for any tile.
template <bool kStatic, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    ShortConvKernel(const ShortConvParams p, int64_t blocks_each, int64_t rows_each) {
  LaunchDependents();
  const int64_t runs = (p.channels + 3) / 4, all = p.groups * p.channels;
  const int64_t run = int64_t{blockIdx.x} % blocks_each * kThreads + threadIdx.x;
  if (run >= p.groups * runs) return;
  const int64_t group = run / runs, column = run % runs * 4, kept = p.width - 1;
  const int64_t begin = int64_t{blockIdx.x} / blocks_each * rows_each;
  const int64_t end = min(begin + rows_each, p.m);
  const auto weight = [&](int64_t j) {
    return LoadRow4<kAligned>(p.weight + j * all + group * p.channels, column, p.channels);
  };
  [[maybe_unused]] float4 weights[kWidth], window[kWidth - 1];
  if constexpr (kStatic) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) weights[j] = weight(j);
  }
  const float4 bias = p.bias == nullptr
                          ? float4{0, 0, 0, 0}
                          : LoadRow4<kAligned>(p.bias + group * p.channels, column, p.channels);

  int64_t index = SpanAt(p.sequences, p.num_sequences, begin);
  for (int64_t row = begin; row < end && index < p.num_sequences; ++index) {
    const StateSpan span = p.sequences[index];
    const Inputs<kAligned> inputs(p, span, group, column);
    // The state after the first `rows` rows of the span.
    const auto store = [&](int64_t rows, int32_t slot) {
      float* to = p.states + slot * p.state_stride + group * p.channels;
      for (int64_t j = 0; j < kept; ++j)
        StoreRow4<kAligned>(to + j * all, column, p.channels, inputs.At(rows - kept + j));
    };
    if constexpr (kStatic) {
#pragma unroll
      for (int j = 0; j < kWidth - 1; ++j)
        window[j] = inputs.At(row - span.row_begin - (kWidth - 1) + j);
    }
    const int64_t stop = min(end, int64_t{span.row_begin} + span.rows);
    for (; row < stop; ++row) {
      const int64_t at = row - span.row_begin;
      float4 sum = bias;
      if constexpr (kStatic) {
        const float4 x = inputs.At(at);
#pragma unroll
        for (int j = 0; j < kWidth - 1; ++j) sum = Fma(weights[j], window[j], sum);
        sum = Fma(weights[kWidth - 1], x, sum);
#pragma unroll
        for (int j = 0; j < kWidth - 2; ++j) window[j] = window[j + 1];
        window[kWidth - 2] = x;
      } else {
        for (int64_t j = 0; j < p.width; ++j) sum = Fma(weight(j), inputs.At(at - kept + j), sum);
      }
      StoreRow4<kAligned>(p.y + row * p.ldy + group * p.channels, column, p.channels,
                          {Silu(sum.x), Silu(sum.y), Silu(sum.z), Silu(sum.w)});
      for (const StateSpan::Copy& copy : span.copies) {
        if (copy.slot < 0) break;
        if (copy.rows == at + 1) store(copy.rows, copy.slot);
      }
      if (at + 1 == span.rows && span.to >= 0) store(span.rows, span.to);
    }
  }
}

bool Aligned(const ShortConvParams& p) {
  return RowsAligned(p.x, p.ldx, p.channels) && p.group_stride % 4 == 0 && Aligned16(p.weight) &&
         Aligned16(p.bias) && RowsAligned(p.states, p.state_stride, p.channels) &&
         RowsAligned(p.y, p.ldy, p.channels);
}

}  // namespace

cudaError_t ShortConv(const ShortConvParams& p, const PdlStream& chain) {
  const int64_t runs = p.groups * CeilDiv(p.channels, 4);
  if (p.m == 0 || p.num_sequences == 0 || runs == 0) return cudaSuccess;
  const int64_t rows_each = p.m <= kFewRows ? 1 : kRowsEach;
  const int64_t blocks_each = CeilDiv(runs, kThreads);
  const auto blocks = static_cast<unsigned>(CeilDiv(p.m, rows_each) * blocks_each);
  const bool aligned = Aligned(p);
  const auto kernel =
      p.width == kWidth ? (aligned ? ShortConvKernel<true, true> : ShortConvKernel<true, false>)
                        : (aligned ? ShortConvKernel<false, true> : ShortConvKernel<false, false>);
  kernel<<<blocks, kThreads, 0, chain.stream>>>(p, blocks_each, rows_each);
  return cudaGetLastError();
}

}  // namespace switchyard::cuda::ops
