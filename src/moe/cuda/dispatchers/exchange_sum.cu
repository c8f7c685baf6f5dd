// Problem: combine, receiving side: waits for the returned outputs of each token and sums them in
// slot or rank order, to [tokens, hidden].
// Tiling: a work item is two tokens, one token or a part of one, so that all blocks have work. A
// block has kSumThreads threads.
// Pipeline: runs beside exchange_return.cu and follows its flags; each lane has kSumVectors loads
// in flight.
// Measured: combine as a whole, see exchange_return.cu. With 4096 tokens on four H200, the sums
// take 205 µs by slot and 112 µs by rank, mostly after the rows have arrived.
#include "comm/device/cuda/wait.cuh"
#include "kernels/cuda/device/kernel_chain.cuh"
#include "moe/cuda/dispatchers/exchange_launch.h"
#include "moe/cuda/dispatchers/exchange_rows.cuh"

namespace switchyard::cuda {
namespace {

constexpr int kSumThreads = 256;
// Blocks of Sum per multiprocessor. Two of them fit on it together with a block of Return (64
// registers per thread), so Sum and Return can run concurrently. This requires that neither kernel
// has a shared-memory carveout preference: with one, they did not run concurrently (measured).
constexpr int kSumBlocks = 2;
constexpr int kSumVectors = 4;  // 16-byte vectors in flight per lane

// Partition of tokens over the warps of all blocks. A work item is two tokens, one token or a part
// of one token, depending on the number of tokens, so that all blocks have work.
struct TokenShares {
  int group = 2, slices = 1;  // tokens per work item; work items per token
  __device__ TokenShares(const ExchangeBatch& b, int steps) {
    const auto blocks = static_cast<int>(gridDim.x);
    if (b.tokens / 2 >= blocks) return;
    group = 1;
    slices = max(1, min(steps / Warps(), blocks / max(b.tokens, 1)));
  }
};

constexpr uint64_t kReportInterval = 10'000'000;  // nanoseconds

// Polls until all outputs of tokens [begin, end) have arrived; returns false on a timeout. Called
// by one warp of a block. Flags of one source may be raised in any order.
//
// To check for a reported error, a block reads host memory. Such reads are slow and serialized, and
// many blocks wait. So only block 0 checks repeatedly, and publishes the result to the others. It
// may have nothing to wait for itself, so a block that waits for long checks too, but rarely.
__device__ __forceinline__ bool WaitForOutputs(const ExchangeBatch& b, int begin, int end,
                                               uint32_t round, uint32_t active) {
  const int lane = Lane(), first = CountRowsBefore(b, begin), last = CountRowsBefore(b, end) - 1;
  bool here = true;
  if (active >> lane & 1u) {
    const uint32_t* arrived = FlagsOf(b, b.rank, b.layout.arrived) + lane * b.layout.chunks;
    const bool reads_report = blockIdx.x == 0;
    volatile uint32_t* timed_out = &b.state->timed_out;
    uint64_t start = 0, checked = 0;
    for (int chunk = first / kChunkRows; here && chunk * kChunkRows <= last;) {
      if (static_cast<int32_t>(LoadFlag(arrived + chunk) - round) >= 0) {
        ++chunk;
        continue;
      }
      __nanosleep(100);
      const uint64_t now = Nanoseconds();
      if (start == 0) start = checked = now;
      if (reads_report || now - start > b.limit.nanoseconds) {
        WaitLimit limit = b.limit;
        if (!reads_report) limit.nanoseconds = 0;
        here = WaitFlag(arrived + chunk, round, limit, WaitStage::kCombine, b.world_ranks[lane]);
        if (!here) *timed_out = 1;
      } else {
        here = *timed_out == 0;
        if (here && now - checked > kReportInterval) {
          checked = now;
          here = static_cast<const volatile WaitTimeoutReport*>(b.limit.report)->failed == 0;
        }
      }
    }
  }
  return __all_sync(~0u, here);
}

// Sums the outputs of each token as soon as they have arrived, while outputs of other tokens are in
// flight.
template <RowKind kRow, bool kByRank>
__global__ void __launch_bounds__(kSumThreads, 4)
    Sum(const __grid_constant__ ExchangeBatch b, float* y) {
  constexpr int kElements = Packing<kRow>::kElements;
  const uint32_t round = b.state->round, active = ActiveRanks(b) & b.state->active;
  const int lane = Lane(), vectors = b.hidden / kElements;
  const TokenShares shares(b, (vectors + 31) / 32);
  const int warps_of_token = Warps() / shares.group, parts = warps_of_token * shares.slices;
  const int units = (b.tokens + shares.group - 1) / shares.group * shares.slices;
  const std::byte* returned = b.slot[b.rank] + b.layout.returned;
  for (int unit = static_cast<int>(blockIdx.x); unit < units; unit += static_cast<int>(gridDim.x)) {
    const int begin = unit / shares.slices * shares.group;
    const int token = begin + Warp() / warps_of_token;
    const int part = unit % shares.slices * warps_of_token + Warp() % warps_of_token;
    const int64_t slot = static_cast<int64_t>(token) * b.top_k + lane;
    const bool is_slot = token < b.tokens && lane < b.top_k;
    const int rank = is_slot ? PlaceOf(b, b.ids[slot]).rank : -1;
    const bool adds = rank >= 0 && (active >> rank & 1u);
    const float weight = !kByRank && is_slot ? b.weights[slot] : 1.0f;
    // Bit mask of the slots that contribute to the token's sum; with kByRank, of the ranks.
    const uint32_t terms =
        kByRank ? __reduce_or_sync(~0u, adds ? 1u << rank : 0u) : __ballot_sync(~0u, adds);
    bool here = true;
    if (Warp() == 0)
      here = WaitForOutputs(b, begin, min(begin + shares.group, b.tokens), round, active);
    if (!__syncthreads_and(here)) break;
    if (token >= b.tokens) continue;
    const float last = WeightOf(b.addend, token);
    const int64_t row_of_token = static_cast<int64_t>(token) * (kByRank ? b.ranks : b.top_k);
    SumRun<kElements, kSumVectors>(
        PartOf(vectors, parts, part),
        [&](const auto& add) {
          for (uint32_t left = terms; left; left &= left - 1) {
            const int j = __ffs(left) - 1;
            add(reinterpret_cast<const uint4*>(returned +
                                               (row_of_token + j) * b.layout.combined_bytes),
                __shfl_sync(~0u, weight, j), !kByRank);
          }
        },
        [&](int i, const float(&sums)[kElements]) {
          const int64_t at =
              static_cast<int64_t>(token) * b.hidden + static_cast<int64_t>(i) * kElements;
#pragma unroll
          for (int e = 0; e < kElements; e += 4) {
            float4 sum = {sums[e], sums[e + 1], sums[e + 2], sums[e + 3]};
            if (b.addend.x) {
              const float4 x = __ldcg(reinterpret_cast<const float4*>(b.addend.x + at + e));
              sum = {__fadd_rn(sum.x, __fmul_rn(last, x.x)), __fadd_rn(sum.y, __fmul_rn(last, x.y)),
                     __fadd_rn(sum.z, __fmul_rn(last, x.z)),
                     __fadd_rn(sum.w, __fmul_rn(last, x.w))};
            }
            *reinterpret_cast<float4*>(y + at + e) = sum;
          }
        });
  }
  // Waits for the acks. Before the next dispatch, every rank must have read this rank's counts,
  // even if it received no row from this rank.
  if (blockIdx.x == 0 && Warp() == 0 && (active >> lane & 1u))
    WaitFlag(FlagsOf(b, b.rank, b.layout.acks) + lane, round, b.limit, WaitStage::kCombine,
             b.world_ranks[lane]);
  WaitForPriorKernels();
}

using Kernel = void (*)(ExchangeBatch, float*);

Kernel KernelFor(RowKind row, bool by_rank) {
  if (row == RowKind::kF32) return by_rank ? Sum<RowKind::kF32, true> : Sum<RowKind::kF32, false>;
  return by_rank ? Sum<RowKind::kBF16, true> : Sum<RowKind::kBF16, false>;
}

}  // namespace

cudaError_t LoadSumKernels() {
  cudaFuncAttributes attributes;
  cudaError_t error = cudaSuccess;
  for (const RowKind row : {RowKind::kF32, RowKind::kBF16}) {
    for (const bool by_rank : {false, true})
      if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, KernelFor(row, by_rank));
  }
  return error;
}

cudaError_t StartCombineSum(const ExchangeBatch& batch, float* y, int blocks, cudaStream_t stream) {
  return LaunchWithPdl(KernelFor(batch.combined, batch.sum_by_rank), kSumBlocks * blocks,
                       kSumThreads, 0, batch.early, stream, batch, y);
}

}  // namespace switchyard::cuda
