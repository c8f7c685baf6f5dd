// Tensor core attention of prompts on Hopper: warp-specialized FlashAttention (the scheme of
// FlashAttention-3, Shah et al. 2024) with the arithmetic of attention_tile.cuh, so that a row has
// the same bits as in a decode tile.
//
// Tiling: 128 query rows by blocks of 64 keys. A thread block has two consumer warpgroups of 64
// rows each and a producer warpgroup, which finds work items and copies keys, values and queries.
// The producer runs ahead by the stages of the ring, across tiles, so that the tensor cores do not
// wait at the start of a tile. The consumers never wait for each other: one computes its softmax
// while the other multiplies.
//
// Shared memory: two buffers of queries, kStages of keys and values. Barriers per buffer and stage:
// `full` (copied) and `empty` (read by all consumer warps).
#pragma once

#include <cstddef>

#include "kernels/cuda/attention_tile_products.cuh"
#include "kernels/cuda/attention_tile_results.cuh"
#include "kernels/cuda/attention_tile_softmax.cuh"
#include "kernels/cuda/gemm_tiles.cuh"
#include "kernels/cuda/kernel_chain.cuh"

namespace switchyard::cuda {

// A work item as the producer hands it to the consumers.
struct PromptItem {
  AttentionWorkItem unit;  // sequence −1: no more items
  TileKeys keys;
  int row_begin;   // of the sequence's rows in the batch
  int begin, end;  // keys to process
  bool partial;    // the keys are one split of several
};

template <int kHeadDim, int kStages_>
struct PromptShape : TileShape<kHeadDim, kHeadDim, false, 8, 1, kStages_, true> {
  using Base = TileShape<kHeadDim, kHeadDim, false, 8, 1, kStages_, true>;
  static constexpr int kConsumerThreads = Base::kThreads, kProducerThreads = 128;
  static constexpr int kThreads = kConsumerThreads + kProducerThreads;
  // Registers per thread; together those of the launch (168 for each of 384 threads).
  static constexpr int kConsumerRegisters = 224, kProducerRegisters = 56;
  static constexpr int kQueryBuffers = 2;
  static_assert(Base::kRows == 128);
};

template <typename Shape>
struct PromptShared {
  char queries[Shape::kQueryBuffers][Shape::kQBytes];
  char stages[Shape::kStages][Shape::kStageBytes];
  uint32_t ones[Shape::kOnesBytes / 4];
  PromptItem items[Shape::kQueryBuffers];
  uint64_t queries_full[Shape::kQueryBuffers], queries_empty[Shape::kQueryBuffers];
  uint64_t full[Shape::kStages], empty[Shape::kStages];

  __device__ void InitBarriers() {
    constexpr uint32_t kReaders = Shape::kConsumerThreads / 32 * ptx::kWarpArrivals;
    for (int i = 0; i < Shape::kQueryBuffers; ++i) {
      ptx::BarrierInit(&queries_full[i], Shape::kProducerThreads + 1);  // and one for the item
      ptx::BarrierInit(&queries_empty[i], kReaders);
    }
    for (int i = 0; i < Shape::kStages; ++i) {
      ptx::BarrierInit(&full[i], Shape::kProducerThreads);
      ptx::BarrierInit(&empty[i], kReaders);
    }
    ptx::FenceBarrierInit();
  }
};

// Iterates over every kStep-th row of a tile without divisions.
template <int kStep>
class TileRow {
 public:
  __device__ TileRow(const TiledAttention& p, const PromptItem& item, int row)
      : group_(p.schedule.group),
        queries_(kStep / group_),
        heads_(kStep % group_),
        flat_(item.keys.begin_row + row),
        end_(item.keys.end_row) {
    const int query = flat_ / group_;
    head_ = flat_ - query * group_;
    query_ = item.row_begin + query;
    first_head_ = item.unit.kv_head * group_;
  }
  __device__ bool IsReal() const { return flat_ < end_; }  // false behind the tile's last row
  // The first element of the row's head in an array with this row stride.
  __device__ int64_t Offset(int64_t stride, int head_dim) const {
    return query_ * stride + int64_t{first_head_ + head_} * head_dim;
  }
  __device__ void Next() {
    flat_ += kStep;
    query_ += queries_;
    head_ += heads_;
    if (head_ >= group_) head_ -= group_, ++query_;
  }

 private:
  const int group_, queries_, heads_;  // a step in queries and heads
  int flat_, end_, head_, first_head_;
  int64_t query_;
};

// The producer warpgroup; all of its threads call Run.
template <typename Shape>
class PromptProducer {
 public:
  __device__ PromptProducer(const TiledAttention& p, PromptShared<Shape>& shared)
      : p_(p), shared_(shared), thread_(threadIdx.x - Shape::kConsumerThreads) {}

  __device__ void Run() {
    const bool split = p_.schedule.slots > 0;
    const WorkItemFinder splits(p_.schedule);
    TileFinder tiles(p_.schedule);
    const int blocks = static_cast<int>(gridDim.x), rank = static_cast<int>(blockIdx.x);
    for (int round = 0;; ++round) {
      // Tiles are ordered by length. Every other round is reversed, so that all blocks get about
      // the same number of keys.
      PromptItem item;
      const int index = round * blocks + (round % 2 == 0 ? rank : blocks - 1 - rank);
      item.unit = split ? splits.Find(p_.schedule, index) : tiles.Find(p_.schedule, index);
      if (item.unit.sequence >= 0) {
        item.keys = TileKeysOf(p_.schedule, item.unit.sequence, item.unit.tile);
        if (item.unit.split >= item.keys.splits) continue;
        SetRange(item);
      }
      ptx::BarrierWait(&shared_.queries_empty[buffer_.stage], buffer_.parity ^ 1);
      if (thread_ == 0) {
        shared_.items[buffer_.stage] = item;
        ptx::BarrierArrive(&shared_.queries_full[buffer_.stage]);
      }
      if (item.unit.sequence < 0) {
        ptx::BarrierArrive(&shared_.queries_full[buffer_.stage]);
        return;
      }
      CopyKeys(item, [&] { CopyQueries(item); });
    }
  }

 private:
  __device__ void SetRange(PromptItem& item) const {
    constexpr KeySplits kSplits = Shape::kSplits;
    item.row_begin = p_.launch.table.row_begin[item.unit.sequence];
    item.partial = item.unit.split >= 0 && item.keys.splits > 1;
    const int split = item.keys.first_split + max(item.unit.split, 0);
    item.begin = item.partial ? max(item.keys.begin, kSplits.Begin(split)) : item.keys.begin;
    item.end = item.partial ? min(item.keys.end, kSplits.Begin(split + 1)) : item.keys.end;
  }

  // The cache slot of a key that this lane copies; −1: not visible to the tile. The first 16 lanes
  // of a warp look up one of its 16 keys of the block each.
  __device__ int SlotOf(const PromptItem& item, int block) const {
    const SequenceTable& table = p_.launch.table;
    const int key = block * Shape::kKeys + thread_ / 32 * 16 + thread_ % 16;
    if (key < item.begin || key >= item.end) return -1;
    const int page = static_cast<unsigned>(key) / static_cast<unsigned>(table.page_size);
    return table.pages[int64_t{item.unit.sequence} * table.max_pages + page] * table.page_size +
           (key - page * table.page_size);
  }

  // Copies all keys and values of the item. Slots are looked up one block ahead. `after_first` runs
  // after the first block.
  __device__ void CopyKeys(const PromptItem& item, const auto& after_first) {
    const int first = item.begin / Shape::kKeys, last = (item.end - 1) / Shape::kKeys;
    const int64_t column = int64_t{item.unit.kv_head} * Shape::kQkDim + threadIdx.x % 8 * 8;
    const auto* k = static_cast<const __nv_bfloat16*>(p_.launch.k) + column;
    const auto* v = static_cast<const __nv_bfloat16*>(p_.launch.v) + column;
    int slot = SlotOf(item, first);
    for (int block = first; block <= last; ++block) {
      const int next_slot = SlotOf(item, block + 1);
      CopyBlock(k, v, slot);
      slot = next_slot;
      if (block == first) after_first();
    }
  }

  // Copies a block into the next stage; zeros for keys without a slot. Eight lanes copy 128 bytes
  // of a key at a time.
  __device__ void CopyBlock(const __nv_bfloat16* k, const __nv_bfloat16* v, int slot) {
    const int64_t stride = int64_t{p_.launch.kv_heads} * Shape::kQkDim;
    const int lane = thread_ % 32;
    ptx::BarrierWait(&shared_.empty[stage_.stage], stage_.parity ^ 1);
    const uint32_t to = ptx::SharedAddress(shared_.stages[stage_.stage]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = thread_ / 32 * 16 + 4 * i + lane / 8;
      const int from_slot = __shfl_sync(~0u, slot, 4 * i + lane / 8);
      const int64_t from = max(from_slot, 0) * stride;
      const uint32_t row_to = to + SwizzledOffset<Shape::kKeys>(row, lane % 8);
#pragma unroll
      for (int panel = 0; panel < Shape::kQkDim / 64; ++panel) {
        const uint32_t panel_to = row_to + panel * (Shape::kKeys * 128);
        ptx::CopyAsync16(panel_to, k + from + 64 * panel, from_slot >= 0);
        ptx::CopyAsync16(panel_to + Shape::kKBytes, v + from + 64 * panel, from_slot >= 0);
      }
    }
    ptx::BarrierArriveAfterCopies(&shared_.full[stage_.stage]);
    stage_.Next(Shape::kStages);
  }

  // Copies the tile's queries as bfloat16 into the buffer; zeros beyond the last row.
  __device__ void CopyQueries(const PromptItem& item) {
    if (p_.launch.bf16_queries) {
      TileRow<kRowsAtOnce> row(p_, item, thread_ / kRowPieces);
#pragma unroll 4
      for (int i = 0; i < Shape::kRows / kRowsAtOnce; ++i, row.Next()) {
        const int64_t at = row.IsReal() ? row.Offset(p_.launch.ldq, Shape::kQkDim) : 0;
        const auto* from = reinterpret_cast<const uint4*>(p_.launch.q + at);
        ptx::CopyAsync16(QueryPlace(thread_ + i * Shape::kProducerThreads),
                         from + thread_ % kRowPieces, row.IsReal());
      }
      ptx::BarrierArriveAfterCopies(&shared_.queries_full[buffer_.stage]);
    } else {
      RoundQueries(item);
      ptx::FenceAsyncProxy();
      ptx::BarrierArrive(&shared_.queries_full[buffer_.stage]);
    }
    buffer_.Next(Shape::kQueryBuffers);
  }

  __device__ void RoundQueries(const PromptItem& item) const {
    constexpr int kInFlight = 4;
    for (int begin = thread_; begin < kQueryPieces; begin += kInFlight * Shape::kProducerThreads) {
      float4 q[kInFlight][2] = {};
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        const int at = begin + i * Shape::kProducerThreads;
        const auto* from = reinterpret_cast<const float4*>(QueryOf(item, at / kRowPieces));
        if (from == nullptr) continue;
        q[i][0] = from[at % kRowPieces * 2];
        q[i][1] = from[at % kRowPieces * 2 + 1];
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        const auto& [a, b] = q[i];
        ptx::StoreShared16(
            QueryPlace(begin + i * Shape::kProducerThreads),
            {PackBf16(a.x, a.y), PackBf16(a.z, a.w), PackBf16(b.x, b.y), PackBf16(b.z, b.w)});
      }
    }
  }

  static constexpr int kRowPieces = Shape::kQkDim / 8;  // of eight elements
  static constexpr int kRowsAtOnce = Shape::kProducerThreads / kRowPieces;
  static constexpr int kQueryPieces = Shape::kRows * kRowPieces;

  // The query of a row of the tile; null beyond the last row.
  __device__ const float* QueryOf(const PromptItem& item, int row) const {
    const int group = p_.schedule.group, flat = item.keys.begin_row + row;
    if (flat >= item.keys.end_row) return nullptr;
    const int query = static_cast<unsigned>(flat) / static_cast<unsigned>(group);
    const int head = item.unit.kv_head * group + flat - query * group;
    return p_.launch.q + int64_t{item.row_begin + query} * p_.launch.ldq +
           int64_t{head} * Shape::kQkDim;
  }
  __device__ uint32_t QueryPlace(int piece) const {
    return ptx::SharedAddress(shared_.queries[buffer_.stage]) +
           SwizzledOffset<Shape::kRows>(piece / kRowPieces, piece % kRowPieces);
  }

  const TiledAttention& p_;
  PromptShared<Shape>& shared_;
  const int thread_;
  PipelineState stage_, buffer_;
};

// A consumer warpgroup. While the tensor cores multiply the probabilities of one block of keys by
// its values, the threads compute the probabilities of the next block.
template <typename Shape>
class PromptConsumer {
 public:
  __device__ PromptConsumer(const TiledAttention& p, PromptShared<Shape>& shared)
      : p_(p), shared_(shared), base_(&shared) {
    // The same for all lanes, so that wgmma descriptors and barriers stay in uniform registers.
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
    const int first = item.begin / Shape::kKeys, last = (item.end - 1) / Shape::kKeys;
    TileEpilogue<Shape> results(p_, item.unit, item.keys, thread_, rows);
    part_.Clear();
    WaitForBlock(stage_);
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
      WaitForBlock(next);
      const int split = kSplits.Of(block * Shape::kKeys);
      const bool ends = split != kSplits.Of((block + 1) * Shape::kKeys);
      float max[2] = {ends ? -INFINITY : part_.max[0], ends ? -INFINITY : part_.max[1]};
      const TileRescale rescale = BlockHasMaskedKeys<Shape>(p_.schedule, item.keys, block + 1)
                                      ? Step<true>(next, rows, block + 1, max)
                                      : Step<false>(next, rows, block + 1, max);
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

  // p · v of the block in stage_, and the probabilities of `block`, which is in stage `next`; its
  // scores. No branches, because they would serialize the products in flight (C7514).
  template <bool kMasked>
  __device__ __forceinline__ TileRescale Step(const PipelineState& next, const TileRows& rows,
                                              int block, float (&max)[2]) {
    PinSums();
    ptx::WgmmaFence();
    EnqueueScores(thread_, Queries(), Stage(next), scores_);
    EnqueueValues(thread_, Ones(), Stage(stage_), p_bf16_, part_.sums, part_.weights);
    ptx::WgmmaWait<1>();
    ptx::PinRegisters(scores_);
    if constexpr (kMasked) Mask(thread_, rows, block * Shape::kKeys, scores_);
    const TileRescale rescale = ToProbabilities(thread_, Scale(), nullptr, scores_, max);
    ptx::PinRegisters(scores_);  // computed before the wait
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

  __device__ float Scale() const { return __fmul_rn(p_.launch.scale, kLog2E); }
  __device__ void PinSums() {
    ptx::PinRegisters(part_.sums);
    ptx::PinRegisters(part_.weights);
  }
  // Waits for the producer's copies of a block of keys, and for those of the queries before it.
  __device__ void WaitForBlock(const PipelineState& at) const {
    ptx::BarrierWait(base_.After(offsetof(Shared, full) + at.stage * sizeof(uint64_t)), at.parity);
    ptx::FenceAsyncProxy();
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

  TileAccumulator<Shape> part_;
  TileScores<Shape> scores_;
  uint32_t p_bf16_[Shape::kKeys / 16][4];  // probabilities of the block in stage_
};

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    PromptAttentionKernel(const __grid_constant__ TiledAttention p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) char memory[];
  auto& shared = *reinterpret_cast<PromptShared<Shape>*>(memory);
  for (int i = threadIdx.x; i < Shape::kOnesBytes / 4; i += Shape::kThreads)
    shared.ones[i] = kBf16Ones;
  ptx::FenceAsyncProxy();
  if (threadIdx.x == 0) shared.InitBarriers();
  LaunchDependentsAndWait();
  __syncthreads();
  if (threadIdx.x >= Shape::kConsumerThreads) {
    ptx::DeallocateRegisters<Shape::kProducerRegisters>();
    PromptProducer<Shape>(p, shared).Run();
  } else {
    ptx::AllocateRegisters<Shape::kConsumerRegisters>();
    PromptConsumer<Shape>(p, shared).Run();
  }
#endif
}

}  // namespace switchyard::cuda
