// Problem: merges the partial results of key splits, for each query row and head, into the
// attention output (the combine kernel of split-KV FlashDecoding).
// Tiling: grid (query row, group of heads), 128 threads per block; a thread merges four columns of
// one head over all splits, in order.
// Pipeline: none; launched early (kernel_chain.cuh).
// Measured on one H200, Qwen3-30B-A3B, one query row: 4.4 µs.
#include "kernels/cuda/attention/attention_merge.cuh"
#include "kernels/cuda/attention/attention_tile_shape.cuh"
#include "kernels/cuda/device/kernel_chain.cuh"

namespace switchyard::cuda {
namespace {

constexpr int kThreads = 128;  // four columns per thread
constexpr int kInFlight = 16;  // loads in flight

__global__ void __launch_bounds__(kThreads) MergeParts(const __grid_constant__ TiledAttention p) {
  LaunchDependents();
  const AttentionLaunch& launch = p.launch;
  const AttentionSchedule& schedule = p.schedule;
  const SequenceTable& table = launch.table;
  // The scratch slots of the partial results follow from the sequence table alone. So they are
  // computed before the attention kernel has ended.
  const int row = blockIdx.x, sequence = table.row_sequence[row];
  const int threads = launch.v_dim / 4;  // threads per head
  const int head = blockIdx.y * (kThreads / threads) + threadIdx.x / threads;
  const int column = threadIdx.x % threads * 4;
  const int kv_head = head / schedule.group;
  int splits = 1;  // 1: there is nothing to merge
  int64_t first_row = 0;
  if (sequence >= 0) {
    const int first_slot = FirstSlot(schedule, sequence);  // all warps take part
    if (first_slot >= 0 && head < launch.heads) {
      const int flat =
          (row - table.row_begin[sequence]) * schedule.group + head - kv_head * schedule.group;
      const int tile = flat / schedule.tile_rows;
      const SequenceWork part = PartOf(schedule, sequence);
      splits = TileKeysOf(schedule, sequence, tile).splits;
      const int64_t slot = first_slot + tile * part.splits * schedule.kv_heads + kv_head;
      first_row = slot * schedule.tile_rows + flat - tile * schedule.tile_rows;
    }
  }
  const int64_t step = int64_t{schedule.kv_heads} * schedule.tile_rows;
  // Other threads need not wait: one block that waits keeps the order of the kernels.
  if (splits > 1 || blockIdx.x + blockIdx.y == 0) WaitForPriorKernels();
  if (splits == 1) return;
  SoftmaxState state;
  float4 sum = {};
  for (int begin = 0; begin < splits; begin += kInFlight) {
    float2 states[kInFlight];
    float4 parts[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (begin + i >= splits) continue;
      const int64_t from = first_row + (begin + i) * step;
      states[i] = p.states[from];
      parts[i] = *reinterpret_cast<const float4*>(p.parts + from * launch.v_dim + column);
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (begin + i >= splits) break;
      const MergeFactors f = MergeSoftmax(state, {.max = states[i].x, .sum = states[i].y});
      sum = {MergeSoftmax(f, sum.x, parts[i].x), MergeSoftmax(f, sum.y, parts[i].y),
             MergeSoftmax(f, sum.z, parts[i].z), MergeSoftmax(f, sum.w, parts[i].w)};
    }
  }
  const float factor = FinalFactor(state, launch.sinks ? launch.sinks + head : nullptr,
                                   ValueScale<true>(launch, kv_head));
  const int64_t at = row * launch.ldo + int64_t{head} * launch.v_dim + column;
  sum = {__fmul_rn(sum.x, factor), __fmul_rn(sum.y, factor), __fmul_rn(sum.z, factor),
         __fmul_rn(sum.w, factor)};
  if (launch.bf16_out) {
    *reinterpret_cast<uint2*>(launch.bf16_out + at) = {PackBf16(sum.x, sum.y),
                                                       PackBf16(sum.z, sum.w)};
  } else {
    *reinterpret_cast<float4*>(launch.out + at) = sum;
  }
}

}  // namespace

cudaError_t StartMergeOfParts(const TiledAttention& p, const PdlStream& chain) {
  const int heads_at_once = kThreads * 4 / p.launch.v_dim;
  const dim3 grid(p.launch.table.num_rows, (p.launch.heads + heads_at_once - 1) / heads_at_once);
  return LaunchWithPdl(MergeParts, grid, kThreads, 0, chain, p);
}

}  // namespace switchyard::cuda
