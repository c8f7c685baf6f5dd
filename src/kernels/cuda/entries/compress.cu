// Problem: running softmaxes over the rows of each block of positions, and their finished entries
// (kernels/compressed.h).
// Tiling: one block for each row of the pass. Only the last rows of blocks, spans and copies
// compute: a thread adds the rows before them for one channel, from the first row of the block or
// from the state. So blocks of a prompt are computed in parallel, and each row is read once, or
// twice with overlapping entries.
// Pipeline: none. Measured: not measured.
#include <algorithm>

#include "core/cuda/runtime.h"
#include "kernels/cuda/device/warp.cuh"
#include "kernels/cuda/entries/entries.h"
#include "kernels/cuda/entries/entry_rows.cuh"
#include "kernels/recurrent.h"

namespace switchyard::cuda {
namespace {

using kernels::CompressParams;
using kernels::StateSpan;

constexpr int kMaxThreads = 512;
constexpr int kMaxWidth = static_cast<int>(kernels::kMaxGpuEntryWidth);

// The index of the span of `row`. Spans without rows are last and begin after all rows.
__device__ __forceinline__ int64_t SpanAt(const StateSpan* spans, int64_t count, int64_t row) {
  int64_t low = 0, high = count;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (spans[middle].row_begin <= row ? low : high) = middle;
  }
  return low;
}

// The running softmax of one channel. A sum of 0: nothing was added.
struct RunningSoftmax {
  float largest = 0.0f, sum = 0.0f, value = 0.0f;

  __device__ __forceinline__ void Add(float z, float row) {
    if (sum == 0.0f) {
      largest = z;
      sum = 1.0f;
      value = row;
      return;
    }
    const float top = fmaxf(largest, z);
    const float old = expf(largest - top), own = expf(z - top);
    largest = top;
    sum = sum * old + own;
    value = value * old + own * row;
  }
};

// The softmaxes of channel `c` of the rows up to row `t`, which is `row` rows after the beginning
// of its span.
struct Channel {
  const CompressParams& p;
  const StateSpan& span;
  int c;
  RunningSoftmax current, next;  // of the entry of the block, and of the entry after it

  __device__ Channel(const CompressParams& params, const StateSpan& of, int channel)
      : p(params), span(of), c(channel) {}

  // `place`: of row t in its block.
  __device__ void Run(int64_t t, int place) {
    const int64_t begin = span.row_begin, block = t - place;
    const int64_t own = c + (p.overlaps ? p.width : 0);
    if (block < begin) {  // the state has the rows of the block before the span
      Load();
      AddRows(begin, t, own, place);
      return;
    }
    if (p.overlaps) {
      // The rows of the block before give the first half of the entry.
      if (block - p.ratio < begin) Load();
      current = RunningSoftmax();
      for (int64_t row = max(block - p.ratio, begin); row < block; ++row)
        AddRow(next, row, static_cast<int>(row - (block - p.ratio)), c);
      current = next;
      next = RunningSoftmax();
    }
    AddRows(block, t, own, place);
  }

  __device__ void Save(int64_t slot) const {
    float* at = p.states + slot * p.state_stride + c;
    Put(current, at);
    if (p.overlaps) Put(next, at + 3 * p.width);
  }

 private:
  // Rows [first, t], of which t is at `place` of its block.
  __device__ __forceinline__ void AddRows(int64_t first, int64_t t, int64_t own, int place) {
    for (int64_t row = first; row <= t; ++row) {
      const int at = place - static_cast<int>(t - row);
      AddRow(current, row, at, own);
      if (p.overlaps) AddRow(next, row, at, c);
    }
  }
  __device__ __forceinline__ void AddRow(RunningSoftmax& to, int64_t row, int place,
                                         int64_t column) const {
    const int64_t at = row * p.ld + column;
    to.Add(p.gates[at] + p.bias[place * p.ld + column], p.rows[at]);
  }
  __device__ void Load() {
    if (span.from < 0) return;
    const float* at = p.states + span.from * p.state_stride + c;
    current = Get(at);
    if (p.overlaps) next = Get(at + 3 * p.width);
  }
  __device__ RunningSoftmax Get(const float* at) const {
    return {at[0], at[p.width], at[2 * p.width]};
  }
  __device__ void Put(const RunningSoftmax& x, float* at) const {
    at[0] = x.largest;
    at[p.width] = x.sum;
    at[2 * p.width] = x.value;
  }
};

// The sum over the block, returned to every thread.
__device__ float BlockSum(float x) {
  __shared__ float parts[kMaxThreads / 32];
  x = WarpSum(x);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0.0f;
  for (int i = 0; i < static_cast<int>(blockDim.x) / 32; ++i) sum += parts[i];
  return sum;
}

// Norms, rotates and stores the entry that row t completes. `entry` [width] in shared memory.
template <typename T>
__device__ void FinishEntry(const CompressParams& p, int64_t t, float* entry) {
  const int width = static_cast<int>(p.width), step = static_cast<int>(blockDim.x);
  float squares = 0.0f;
  for (int c = static_cast<int>(threadIdx.x); c < width; c += step)
    squares = fmaf(entry[c], entry[c], squares);
  const float factor = 1.0f / sqrtf(BlockSum(squares) / static_cast<float>(width) + p.eps);
  for (int c = static_cast<int>(threadIdx.x); c < width; c += step)
    entry[c] = entry[c] * factor * p.norm[c];
  __syncthreads();
  const int64_t first = p.positions[t] - p.ratio + 1;
  auto* const to = reinterpret_cast<T*>(static_cast<std::byte*>(p.to.data) +
                                        p.slots[t] / p.to.span * p.to.stride);
  for (int c = static_cast<int>(threadIdx.x); c < width; c += step)
    entries::Store(to + c, entries::Rotated(entry, c, width, static_cast<int>(p.rotary_dim),
                                            p.cos_sin + first * p.rotary_dim, 1.0f));
}

template <typename T>
__global__ void __launch_bounds__(kMaxThreads)
    CompressKernel(const __grid_constant__ CompressParams p) {
  __shared__ float entry[kMaxWidth];
  const int64_t t = blockIdx.x;
  const StateSpan span = p.sequences[SpanAt(p.sequences, p.num_sequences, t)];
  const int64_t row = t - span.row_begin;
  if (span.to < 0 || row < 0 || row >= span.rows) return;  // padding
  const int place = static_cast<int>(p.positions[t] % p.ratio);
  const bool completes = place == p.ratio - 1, last = row + 1 == span.rows;
  bool kept = last;
  for (const StateSpan::Copy& copy : span.copies)
    kept = kept || (copy.slot >= 0 && copy.rows == row + 1);
  if (!completes && !kept) return;
  for (int c = static_cast<int>(threadIdx.x); c < p.width; c += static_cast<int>(blockDim.x)) {
    Channel channel(p, span, c);
    channel.Run(t, place);
    if (completes) entry[c] = channel.current.value / channel.current.sum;
    if (last) channel.Save(span.to);
    for (const StateSpan::Copy& copy : span.copies)
      if (!last && copy.slot >= 0 && copy.rows == row + 1) channel.Save(copy.slot);
  }
  if (completes) FinishEntry<T>(p, t, entry);
}

}  // namespace

void Compress(const CompressParams& p, cudaStream_t stream) {
  if (p.m == 0 || p.num_sequences == 0) return;
  const int threads = static_cast<int>(std::min<int64_t>((p.width + 31) / 32 * 32, kMaxThreads));
  const bool fits = p.width > 0 && p.width <= kMaxWidth && p.ratio > 0 &&
                    entries::WithElement(p.to.dtype, [&]<typename T>(T /*element*/) {
                      CompressKernel<T><<<static_cast<unsigned>(p.m), threads, 0, stream>>>(p);
                    });
  Check(fits ? cudaGetLastError() : cudaErrorInvalidValue, "compression of entries");
}

}  // namespace switchyard::cuda
