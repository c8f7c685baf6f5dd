// Problem: attention of prompts on Hopper's tensor cores: warp-specialized FlashAttention (the
// scheme of FlashAttention-3, Shah et al. 2024) with the arithmetic of attention_tile.cuh, so that
// a row has the same bits as in a decode tile.
//
// Tiling: 128 query rows by blocks of 64 keys.
// Pipeline: two consumer warpgroups of 64 rows each and a producer warpgroup, which finds work
// items and copies keys, values and queries. The producer runs ahead by the stages of the ring,
// across tiles, so that the tensor cores do not wait at the start of a tile. The consumers never
// wait for each other: one computes its softmax while the other multiplies.
//
// Copies: by TMA, which needs one producer warp. The last block of a sequence, of which some keys
// do not exist, is copied by cp.async, which fills with zeros: values after the end of the sequence
// may be NaN, whose product with a probability of zero is not zero. Blocks with keys of a branch
// are copied by cp.async too. Caches whose pages do not divide a block are copied by cp.async and
// four warps. Codes of an e4m3 cache too: the four warps convert them to bfloat16 in the stages
// (PromptProducer::CopyAllCodes).
//
// Shared memory: two buffers of queries, kStages of keys and values. Barriers per buffer and stage:
// `full` (copied) and `empty` (read by all consumer warps).
//
// Measured on one H200, Qwen3-30B-A3B, of 989 TFLOP/s: 49 % for a prompt of 4096, 53 % for 8192.
#pragma once

#include <cstddef>

#include "kernels/cuda/attention/attention_prompt_copies.cuh"
#include "kernels/cuda/attention/attention_tile_softmax.cuh"
#include "kernels/cuda/device/kernel_chain.cuh"

namespace switchyard::cuda {

// A consumer warpgroup. While the tensor cores multiply the probabilities of one block of keys by
// its values, the threads compute the probabilities of the next block.
template <typename Shape>
class PromptConsumer {
 public:
  __device__ PromptConsumer(const TiledAttention& p, PromptShared<Shape>& shared)
      : p_(p), shared_(shared), base_(&shared) {
    // The shuffle shows the compiler that all lanes have the same value. So wgmma descriptors and
    // barriers stay in uniform registers.
    thread_.warp = __shfl_sync(~0u, thread_.warp, 0);
    thread_.row0 = thread_.warp * 16;
    base_.address = __shfl_sync(~0u, base_.address, 0);
  }

  __device__ void Run() {
    while (true) {
      ptx::BarrierWait(&shared_.queries_full[buffer_.stage], buffer_.parity);
      const PromptItem item = shared_.items[buffer_.stage];
      if (item.unit.sequence < 0) return;
      Process(item);
      ptx::BarrierArriveWarp(&shared_.queries_empty[buffer_.stage]);
      buffer_.Next(Shape::kQueryBuffers);
    }
  }

 private:
  using Shared = PromptShared<Shape>;

  __device__ void Process(const PromptItem& item) {
    constexpr KeySplits kSplits = Shape::kSplits;
    const TileRows rows = TileRowsOf(p_, item.unit, item.keys, item.row_begin, thread_);
    if constexpr (Shape::kCodes) scale_ = ScoreScale<true>(p_.launch, item.unit.kv_head);
    const int first = item.begin / Shape::kKeys, last = (item.end - 1) / Shape::kKeys;
    TileEpilogue<Shape> results(p_, item.unit, item.keys, thread_, rows);
    part_.Clear();
    WaitForCopies(stage_);
    ptx::FenceAsyncProxy();
    ptx::WgmmaFence();
    EnqueueScores(thread_, Queries(), Stage(stage_), scores_);
    ptx::WgmmaWait<0>();
    ptx::PinRegisters(scores_);
    if (BlockHasMaskedKeys<Shape>(p_.schedule, item.keys, first))
      Mask(thread_, rows, first * Shape::kKeys, scores_);
    ToProbabilities(thread_, Scale(), nullptr, scores_, part_.max);
    PackProbabilities();
    float factor[2];
    for (int block = first; block < last; ++block) {
      PipelineState next = stage_;
      next.Next(Shape::kStages);
      if (block == first) WaitForCopies(next);
      ptx::FenceAsyncProxy();
      const int split = kSplits.Of(block * Shape::kKeys);
      const bool ends = split != kSplits.Of((block + 1) * Shape::kKeys);
      float max[2] = {ends ? -INFINITY : part_.max[0], ends ? -INFINITY : part_.max[1]};
      const TileRescale rescale = BlockHasMaskedKeys<Shape>(p_.schedule, item.keys, block + 1)
                                      ? Step<true>(next, rows, block + 1, block + 1 == last, max)
                                      : Step<false>(next, rows, block + 1, block + 1 == last, max);
      ptx::BarrierArriveWarp(Empty(stage_));
      if (ends) {
        results.Merge(part_, split == item.keys.first_split, false, factor);
        part_.Clear();
      } else {
        Apply(rescale, part_);
      }
      part_.max[0] = max[0];
      part_.max[1] = max[1];
      PackProbabilities();
      stage_ = next;
    }
    PinSums();
    ptx::WgmmaFence();
    EnqueueValues(thread_, Ones(), Stage(stage_), p_bf16_, part_.sums, part_.weights);
    ptx::WgmmaWait<0>();
    PinSums();
    ptx::BarrierArriveWarp(Empty(stage_));
    stage_.Next(Shape::kStages);
    if (item.partial) return results.Store(part_);
    results.Merge(part_, kSplits.Of(last * Shape::kKeys) == item.keys.first_split, true, factor);
    if (p_.launch.bf16_out == nullptr) return results.StoreTotals(factor);
    StoreRounded(item, results, factor);
  }

  // Enqueues p · v of the block in stage_ and the scores of `block`, which is in stage `next`. Then
  // computes the probabilities of `block`. No branches, because they would serialize the products
  // in flight (C7514).
  template <bool kMasked>
  __device__ __forceinline__ TileRescale Step(const PipelineState& next, const TileRows& rows,
                                              int block, bool last, float (&max)[2]) {
    PinSums();
    ptx::WgmmaFence();
    EnqueueScores(thread_, Queries(), Stage(next), scores_);
    EnqueueValues(thread_, Ones(), Stage(stage_), p_bf16_, part_.sums, part_.weights);
    ptx::WgmmaWait<1>();
    ptx::PinRegisters(scores_);
    if constexpr (kMasked) Mask(thread_, rows, block * Shape::kKeys, scores_);
    const TileRescale rescale = ToProbabilities(thread_, Scale(), nullptr, scores_, max);
    // WaitForCopies is a loop, and the compiler does not move the softmax across it. Without the
    // loop here, the compiler would move the softmax after the wait for all products below.
    PipelineState after = next;
    if (!last) after.Next(Shape::kStages);
    WaitForCopies(after);
    ptx::WgmmaWait<0>();
    PinSums();
    return rescale;
  }

  __device__ __forceinline__ void PackProbabilities() {
#pragma unroll
    for (int k = 0; k < Shape::kKeys / 16; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        p_bf16_[k][i] = PackBf16(scores_[8 * k + 2 * i], scores_[8 * k + 2 * i + 1]);
  }

  // Stores the tile in bfloat16 through the buffer of its queries, so that every store instruction
  // writes whole rows.
  __device__ void StoreRounded(const PromptItem& item, const TileEpilogue<Shape>& results,
                               const float (&factor)[2]) {
    char* const tile = shared_.queries[buffer_.stage];
    ptx::NamedBarrier(1 + thread_.warp / 4, 128);  // all warps have read their queries
#pragma unroll
    for (int n = 0; n < Shape::kVDim / 8; n += 2) {
      uint32_t pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 y = results.Result(n + i / 2, i % 2, factor);
        pairs[i] = PackBf16(y.x, y.y);
      }
      const int row = thread_.row0 + thread_.lane % 16, piece = n + thread_.lane / 16;
      ptx::StoreMatrices(tile + SwizzledOffset<Shape::kRows>(row, piece), pairs[0], pairs[1],
                         pairs[2], pairs[3]);
    }
    __syncwarp();
    constexpr int kPieces = Shape::kVDim / 8, kRowsAtOnce = 32 / kPieces;
    const int piece = thread_.lane % kPieces, first = thread_.row0 + thread_.lane / kPieces;
    TileRow<kRowsAtOnce> row(p_, item, first);
#pragma unroll
    for (int i = 0; i < 16 / kRowsAtOnce; ++i, row.Next()) {
      if (!row.IsReal()) continue;
      __nv_bfloat16* to = p_.launch.bf16_out + row.Offset(p_.launch.ldo, Shape::kVDim) + piece * 8;
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(
          tile + SwizzledOffset<Shape::kRows>(first + i * kRowsAtOnce, piece));
    }
  }

  __device__ float Scale() const {
    if constexpr (Shape::kCodes) return scale_;
    return ScoreScale<false>(p_.launch, 0);
  }
  __device__ void PinSums() {
    ptx::PinRegisters(part_.sums);
    ptx::PinRegisters(part_.weights);
  }
  // Waits until the producer has copied a block of keys and, before it, the queries.
  __device__ __forceinline__ void WaitForCopies(const PipelineState& at) const {
    ptx::BarrierWait(base_.After(offsetof(Shared, full) + at.stage * sizeof(uint64_t)), at.parity);
  }
  __device__ ptx::SharedAddr Empty(const PipelineState& at) const {
    return base_.After(offsetof(Shared, empty) + at.stage * sizeof(uint64_t));
  }
  __device__ uint32_t Stage(const PipelineState& at) const {
    return base_.address + offsetof(Shared, stages) + at.stage * Shape::kStageBytes;
  }
  __device__ uint32_t Queries() const {
    return base_.address + offsetof(Shared, queries) + buffer_.stage * Shape::kQBytes;
  }
  __device__ uint32_t Ones() const { return base_.address + offsetof(Shared, ones); }

  const TiledAttention& p_;
  Shared& shared_;
  ptx::SharedAddr base_;
  TileThread<Shape> thread_;
  PipelineState stage_, buffer_;
  float scale_;  // of scores; only with codes

  TileAccumulator<Shape> part_;
  TileScores<Shape> scores_;
  uint32_t p_bf16_[Shape::kKeys / 16][4];  // probabilities of the block in stage_
};

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    PromptAttentionKernel(const __grid_constant__ TiledAttention p,
                          const __grid_constant__ PromptMaps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) char memory[];
  auto& shared = *reinterpret_cast<PromptShared<Shape>*>(memory);
  for (int i = threadIdx.x; i < Shape::kOnesBytes / 4; i += Shape::kThreads)
    shared.ones[i] = kBf16Ones;
  ptx::FenceAsyncProxy();
  if (threadIdx.x == 0) shared.InitBarriers(PromptProducer<Shape>::Warps(maps));
  LaunchDependentsAndWait();
  __syncthreads();
  if (threadIdx.x >= Shape::kConsumerThreads) {
    ptx::DeallocateRegisters<Shape::kProducerRegisters>();
    PromptProducer<Shape>(p, maps, shared).Run();
  } else {
    ptx::AllocateRegisters<Shape::kConsumerRegisters>();
    PromptConsumer<Shape>(p, shared).Run();
  }
#endif
}

}  // namespace switchyard::cuda
