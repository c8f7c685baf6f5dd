// Problem: attention of all heads to a window of rows and to compressed entries, which are keys and
// values (kernels/compressed.h).
// Tiling: grid (query rows, groups of eight heads). A block of 256 threads computes one query row
// and up to eight heads.
// Pipeline: an online softmax (Milakov and Gimelshein 2018) over blocks of 64 rows and entries, one
// after the other: the sink, the window, then the entries.
// Measured: not measured.
#include <algorithm>

#include "core/cuda/runtime.h"
#include "kernels/cuda/attention/key_blocks.cuh"
#include "kernels/cuda/entries/entries.h"
#include "kernels/cuda/entries/entry_rows.cuh"

namespace switchyard::cuda {
namespace {

using kernels::EntryAttentionParams;

using key_blocks::kBlockKeys;
using key_blocks::kHeads;
using key_blocks::kThreads;

constexpr int kMaxWidth = static_cast<int>(kernels::kMaxGpuEntryWidth);
constexpr int kMaxColumns = (kMaxWidth + kThreads - 1) / kThreads;  // columns per thread

// Device functions cannot read a std::span, so these are the fields of EntryAttentionParams.
struct Launch {
  const float* q = nullptr;
  int64_t ldq = 0;
  const void* cache = nullptr;
  int heads = 0, width = 0, window = 0;
  const std::byte* entries = nullptr;
  int64_t entry_stride = 0;  // bytes
  int span = 1, ratio = 0;
  const int32_t* selected = nullptr;
  int topk = 0;
  const float* sinks = nullptr;
  float scale = 1.0f;
  const float* cos_sin = nullptr;
  int rotary_dim = 0;
  float* out = nullptr;
  int64_t ldo = 0;
  SequenceTable table;
};

// The rows that a query attends to, in order: those of its window, then entries.
template <typename T>
class Attended {
 public:
  __device__ Attended(const Launch& p, int row)
      : p_(p), sequence_(p.table.row_sequence[row]), row_(row) {
    if (sequence_ < 0) return;
    position_ =
        p.table.kv_len[sequence_] - p.table.rows[sequence_] + row - p.table.row_begin[sequence_];
    first_ = max(0, position_ - p.window + 1);
    in_window_ = position_ + 1 - first_;
    if (p.ratio == 0) return;
    entries_ = (position_ + 1) / p.ratio;
    selects_ = p.selected != nullptr && entries_ > p.topk;
    if (selects_) entries_ = p.topk;
  }

  __device__ bool exists() const { return sequence_ >= 0; }
  __device__ int position() const { return position_; }
  __device__ int count() const { return in_window_ + entries_; }
  __device__ const T* At(int i) const {
    if (i < in_window_) return static_cast<const T*>(p_.cache) + SlotOf(first_ + i) * p_.width;
    const int at = i - in_window_;
    const int entry = selects_ ? p_.selected[int64_t{row_} * p_.topk + at] : at;
    const int64_t slot = SlotOf((entry + 1) * p_.ratio - 1);
    return reinterpret_cast<const T*>(p_.entries + slot / p_.span * p_.entry_stride);
  }

 private:
  __device__ int64_t SlotOf(int position) const {
    const int page = position / p_.table.page_size;
    return int64_t{p_.table.pages[int64_t{sequence_} * p_.table.max_pages + page]} *
               p_.table.page_size +
           (position - page * p_.table.page_size);
  }

  const Launch& p_;
  int sequence_, row_;
  int position_ = 0, first_ = 0, in_window_ = 0, entries_ = 0;
  bool selects_ = false;
};

template <typename T>
struct Shared {
  const T* rows[kBlockKeys];
  key_blocks::Scores scores;
  float sum[kHeads];
};

template <typename T>
__global__ void __launch_bounds__(kThreads) AttendKernel(const __grid_constant__ Launch p) {
  extern __shared__ float q[];  // [kHeads, width]: the queries, then the outputs
  __shared__ Shared<T> shared;
  const int row = static_cast<int>(blockIdx.x), first_head = static_cast<int>(blockIdx.y) * kHeads;
  const Attended<T> attended(p, row);
  if (!attended.exists()) return;
  const int heads = min(kHeads, p.heads - first_head);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int i = static_cast<int>(threadIdx.x); i < kHeads * p.width; i += kThreads)
    q[i] = i < heads * p.width ? p.q[row * p.ldq + int64_t{first_head} * p.width + i] : 0.0f;

  float sums[kMaxColumns][kHeads] = {};
  // The softmax of head `warp`.
  const bool sinks = p.sinks != nullptr && warp < heads;
  key_blocks::Softmax softmax;
  if (sinks) softmax = {.top = p.sinks[first_head + warp], .sum = 1.0f};
  for (int begin = 0; begin < attended.count(); begin += kBlockKeys) {
    const int count = min(kBlockKeys, attended.count() - begin);
    __syncthreads();  // the last block's weights have been read, and the queries are written
    if (static_cast<int>(threadIdx.x) < count)
      shared.rows[threadIdx.x] = attended.At(begin + static_cast<int>(threadIdx.x));
    __syncthreads();
    const auto key = [&](int j) { return shared.rows[j]; };
    key_blocks::Score(0, count, key, q, p.width, p.scale, shared.scores);
    __syncthreads();
    softmax.Add(shared.scores);
    __syncthreads();
    const auto value = [&](int j, int d) { return shared.rows[j][d]; };
    key_blocks::AddValues(0, count, p.width, value, shared.scores, sums);
  }

  if (lane == 0) shared.sum[warp] = softmax.sum;
  __syncthreads();  // all queries have been read, too
#pragma unroll
  for (int c = 0; c < kMaxColumns; ++c) {
    const int d = static_cast<int>(threadIdx.x) + c * kThreads;
    if (d >= p.width) break;
#pragma unroll
    for (int h = 0; h < kHeads; ++h) q[h * p.width + d] = sums[c][h] / shared.sum[h];
  }
  __syncthreads();
  const float* const cos_sin = p.cos_sin + int64_t{attended.position()} * p.rotary_dim;
  for (int i = static_cast<int>(threadIdx.x); i < heads * p.width; i += kThreads) {
    const int h = i / p.width, d = i - h * p.width;
    p.out[row * p.ldo + int64_t{first_head} * p.width + i] =
        entries::Rotated(q + h * p.width, d, p.width, p.rotary_dim, cos_sin, -1.0f);
  }
}

}  // namespace

void AttendToEntries(const EntryAttentionParams& p, const SequenceTable& table,
                     cudaStream_t stream) {
  if (table.num_sequences == 0 || table.num_rows == 0) return;
  const Launch launch = {.q = p.q,
                         .ldq = p.ldq,
                         .cache = p.cache,
                         .heads = static_cast<int>(p.heads),
                         .width = static_cast<int>(p.width),
                         .window = static_cast<int>(p.window),
                         .entries = static_cast<const std::byte*>(p.entries.data),
                         .entry_stride = p.entries.stride,
                         .span = static_cast<int>(p.entries.span),
                         .ratio = static_cast<int>(p.ratio),
                         .selected = p.selected,
                         .topk = static_cast<int>(p.topk),
                         .sinks = p.sinks,
                         .scale = p.scale,
                         .cos_sin = p.cos_sin,
                         .rotary_dim = static_cast<int>(p.rotary_dim),
                         .out = p.out,
                         .ldo = p.ldo,
                         .table = table};
  const dim3 grid(static_cast<unsigned>(table.num_rows),
                  static_cast<unsigned>((p.heads + kHeads - 1) / kHeads));
  const size_t bytes = sizeof(float) * kHeads * static_cast<size_t>(p.width);
  const bool fits = p.heads > 0 && p.width > 0 && p.width <= kMaxWidth && p.window > 0 &&
                    (p.ratio == 0 || p.entries.dtype == p.dtype) &&
                    entries::WithElement(p.dtype, [&]<typename T>(T /*element*/) {
                      AttendKernel<T><<<grid, kThreads, bytes, stream>>>(launch);
                    });
  Check(fits ? cudaGetLastError() : cudaErrorInvalidValue, "attention to entries");
}

}  // namespace switchyard::cuda
