// Problem: attention on tensor cores: FlashAttention over tiles of query rows, with optional splits
// of the keys (split-KV). A row's mma.sync result does not depend on the other rows.
// Tiling: the query heads of a key-value head are rows of one tile, so that decode loads each key
// once. The tile shapes for decode and prefill share every row's arithmetic:
//   for each split of the keys, for each of its blocks of kKeys at fixed positions:
//     s = q · kᵀ (along the head, 16 at a time), new maximum, p = 2^(s − max) in bfloat16
//     sums = sums · 2^(old max − max) + p · v, weights likewise with ones for v (16 keys at a time)
//   The maximum rises only if a score exceeds it by kMaxSlack (ToProbabilities). Masked keys have
//   p = 0. Splits are merged in order (attention_merge.cuh).
// Pipeline: kStages key blocks are in flight by cp.async. During the last blocks of a work item,
// the first blocks of the block's next work item are copied. Measured on one H200, Qwen3-30B-A3B,
// 32 sequences of 4096 keys: 69 % of 4.8 TB/s.
#pragma once

#include "kernels/cuda/attention/attention_merge.cuh"
#include "kernels/cuda/attention/attention_ptx.cuh"
#include "kernels/cuda/attention/attention_tile_shape.cuh"
#include "kernels/cuda/attention/attention_tile_softmax.cuh"
#include "kernels/cuda/device/kernel_chain.cuh"
#include "kernels/cuda/device/ptx.cuh"

namespace switchyard::cuda {

// A work item with what all threads need to know about it.
struct TileItem {
  AttentionWorkItem unit;
  TileKeys keys;
  int first, last;  // key blocks; first > last: none
  int row_begin;    // the sequence's first row
};

template <typename Shape>
__device__ __forceinline__ TileItem TileItemOf(const TiledAttention& p,
                                               const AttentionWorkItem& unit) {
  TileItem item = {.unit = unit, .keys = {}, .first = 0, .last = -1, .row_begin = 0};
  if (unit.sequence < 0) return item;
  item.keys = TileKeysOf(p.schedule, unit.sequence, unit.tile);
  item.row_begin = p.launch.table.row_begin[unit.sequence];
  const TileKeys& keys = item.keys;
  if (unit.split >= keys.splits) return item;
  constexpr KeySplits kSplits = Shape::kSplits;
  const bool partial = unit.split >= 0 && keys.splits > 1;
  const int split = keys.first_split + max(unit.split, 0);
  const int begin = partial ? max(keys.begin, kSplits.Begin(split)) : keys.begin;
  const int end = partial ? min(keys.end, kSplits.Begin(split + 1)) : keys.end;
  item.first = begin / Shape::kKeys;
  item.last = (end - 1) / Shape::kKeys;
  return item;
}

// Copies of queries, keys and values to shared memory. All threads of the thread block call the
// functions together.
template <typename Shape>
class TileLoader {
 public:
  __device__ TileLoader(const TiledAttention& p, char* shared)
      : p_(p), shared_(ptx::SharedAddress(shared)), shared_bytes_(shared) {}

  // The row of this thread's key of a key block in the cache, which has kv_heads rows in each slot;
  // −1 if the key is not visible to the tile, or the block is beyond the last one.
  __device__ int RowOf(const TileItem& item, int block) const {
    const SequenceTable& table = p_.launch.table;
    const int key = block * Shape::kKeys + threadIdx.x;
    if (key < item.keys.begin || key >= item.keys.end || block > item.last) return -1;
    const int page = static_cast<unsigned>(key) / static_cast<unsigned>(table.page_size);
    const int slot =
        table.pages[int64_t{item.unit.sequence} * table.max_pages + page] * table.page_size +
        (key - page * table.page_size);
    return slot * p_.launch.kv_heads + item.unit.kv_head;
  }
  // In shared memory: the cache rows of the key block in a stage, one per key.
  __device__ int* Rows(int stage) const {
    return reinterpret_cast<int*>(shared_bytes_ + Shape::kSlotsAt) + stage * Shape::kKeys;
  }

  // Issues the copies of the keys and values of a stage's block, with zeros for keys whose row is
  // −1. Branch-free, because wgmma in flight does not allow branches. Eight threads copy one row of
  // a panel.
  __device__ void LoadKeys(int stage) {
    constexpr int kRowsAtOnce = Shape::kThreads / 8;
    const int column = threadIdx.x % 8 * 8;
    const __nv_bfloat16* k = static_cast<const __nv_bfloat16*>(p_.launch.k) + column;
    const __nv_bfloat16* v = static_cast<const __nv_bfloat16*>(p_.launch.v) + column;
    const uint32_t to = shared_ + Shape::kQBytes + stage * Shape::kStageBytes;
    const int* rows = Rows(stage);
#pragma unroll
    for (int i = 0; i < Shape::kKeys / kRowsAtOnce; ++i) {
      const int row = threadIdx.x / 8 + i * kRowsAtOnce, from = rows[row];
      const __nv_bfloat16* const key = k + int64_t{max(from, 0)} * Shape::kQkDim;
      const __nv_bfloat16* const value = v + int64_t{max(from, 0)} * Shape::kVDim;
      const uint32_t row_to = to + SwizzledOffset<Shape::kKeys>(row, threadIdx.x % 8);
#pragma unroll
      for (int panel = 0; panel < Shape::kQkDim / 64; ++panel) {
        const uint32_t panel_to = row_to + panel * (Shape::kKeys * 128);
        ptx::CopyAsync16(panel_to, key + 64 * panel, from >= 0);
        if constexpr (!Shape::kLatent) {
          if (panel < Shape::kVDim / 64)
            ptx::CopyAsync16(panel_to + Shape::kKBytes, value + 64 * panel, from >= 0);
        }
      }
    }
    ptx::CommitCopies();
  }

  // Loads the tile's queries as bfloat16; zeros beyond the last row.
  __device__ void LoadQueries(const TileItem& item) {
    constexpr int kPieces = Shape::kQkDim / 8;
    const int group = p_.schedule.group;
    constexpr int kCount = Shape::kRows * kPieces;
    constexpr int kInFlight = (kCount + Shape::kThreads - 1) / Shape::kThreads < 6
                                  ? (kCount + Shape::kThreads - 1) / Shape::kThreads
                                  : 6;  // loads in flight
    for (int begin = threadIdx.x; begin < kCount; begin += kInFlight * Shape::kThreads) {
      float4 q[kInFlight][2] = {};
      uint4 rounded[kInFlight] = {};
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        const int at = begin + i * Shape::kThreads, row = at / kPieces, piece = at - row * kPieces;
        const int flat = item.keys.begin_row + row;
        if (row >= Shape::kRows || flat >= item.keys.end_row) continue;
        const int query = flat / group, head = item.unit.kv_head * group + flat - query * group;
        const float4* from = reinterpret_cast<const float4*>(
            p_.launch.q + int64_t{item.row_begin + query} * p_.launch.ldq +
            int64_t{head} * Shape::kQkDim);
        if (p_.launch.bf16_queries) {
          rounded[i] = reinterpret_cast<const uint4*>(from)[piece];
        } else {
          q[i][0] = from[2 * piece];
          q[i][1] = from[2 * piece + 1];
        }
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        const int at = begin + i * Shape::kThreads, row = at / kPieces, piece = at - row * kPieces;
        if (row >= Shape::kRows) break;
        const auto& [a, b] = q[i];
        if (!p_.launch.bf16_queries)
          rounded[i] = {PackBf16(a.x, a.y), PackBf16(a.z, a.w), PackBf16(b.x, b.y),
                        PackBf16(b.z, b.w)};
        *reinterpret_cast<uint4*>(shared_bytes_ + SwizzledOffset<Shape::kRows>(row, piece)) =
            rounded[i];
      }
    }
  }

 private:
  const TiledAttention& p_;
  const uint32_t shared_;
  char* const shared_bytes_;
};

// One block's computation of its work items, one after the other.
template <typename Shape>
class TileWorker {
 public:
  __device__ TileWorker(const TiledAttention& p, const WorkItemFinder& finder, TileItem& found,
                        char* shared)
      : p_(p),
        finder_(finder),
        found_(found),
        copies_(p, shared),
        shared_(ptx::SharedAddress(shared)),
        shared_bytes_(shared) {}

  // Computes `item`. Meanwhile looks up work item `next` and stores it in `found`.
  __device__ void Run(const TileItem& item, int next) {
    if (item.first > item.last) {
      __syncthreads();  // all threads have read the item
      Find(next);
      __syncthreads();
      copied_ = false;
      return;
    }
    const AttentionWorkItem& unit = item.unit;
    const bool partial = unit.split >= 0 && item.keys.splits > 1;
    constexpr KeySplits kSplits = Shape::kSplits;
    rows_ = TileRowsOf(p_, unit, item.keys, item.row_begin, thread_);
    // The look-up takes longer than a short item, whose successor therefore starts anew.
    const bool copies_next = item.last - item.first >= Shape::kStages;
    const bool searches = copied_;
    if (!copied_) {
      StartCopies(item);
      Find(next);
    }
    copies_.LoadQueries(item);
    part_.Clear();
    TileEpilogue<Shape> results(p_, unit, item.keys, thread_, rows_);
    for (int block = item.first; block <= item.last; ++block) {
      ptx::WaitCopies<Shape::kStages - 2>();
      if constexpr (Shape::kHopper) ptx::FenceAsyncProxy();
      __syncthreads();  // copies of all threads are visible, and the previous stage is free
      if (searches && block == item.first) Find(next);
      int row = -1;
      if (threadIdx.x < Shape::kKeys) {
        const int after = block + Shape::kStages - item.last - 1;  // blocks after the last one
        if (after < 0) {
          row = copies_.RowOf(item, block + Shape::kStages);
        } else if (copies_next && found_.unit.sequence >= 0) {
          row = copies_.RowOf(found_, found_.first + after);
        }
      }
      ProcessKeyBlock(item, block, stage_);
      if (threadIdx.x < Shape::kKeys) copies_.Rows(stage_)[threadIdx.x] = row;
      stage_ = stage_ + 1 == Shape::kStages ? 0 : stage_ + 1;
      const int this_split = kSplits.Of(block * Shape::kKeys);
      if (this_split == kSplits.Of((block + 1) * Shape::kKeys) && block != item.last) continue;
      if (partial) {
        results.Store(part_);
      } else {
        results.Add(part_, this_split == item.keys.first_split, block == item.last);
        part_.Clear();
      }
    }
    __syncthreads();  // shared memory is free for the next work item
    copied_ = copies_next;
  }

 private:
  // Starts the copies of the first kStages − 1 key blocks of an item. Those that contain only keys
  // of earlier steps are copied before WaitForPriorKernels. The kernels that compute the queries
  // and store the new keys may still run then, but do not write these keys.
  __device__ void StartCopies(const TileItem& item) {
    ptx::WaitCopies<0>();  // zeros beyond the last block of the previous item
    stage_ = 0;
    if (threadIdx.x < Shape::kKeys) {
#pragma unroll
      for (int i = 0; i < Shape::kStages; ++i)
        copies_.Rows(i)[threadIdx.x] = copies_.RowOf(item, item.first + i);
    }
    __syncthreads();
    const int old_blocks = item.keys.first_new / Shape::kKeys - item.first;
    const int early = min(max(old_blocks, 0), Shape::kStages - 1);
    for (int i = 0; i < early; ++i) copies_.LoadKeys(i);
    WaitForPriorKernels();
    for (int i = early; i < Shape::kStages - 1; ++i) copies_.LoadKeys(i);
  }

  // Called by all threads, after they have read the present contents of `found`.
  __device__ void Find(int index) const {
    if (thread_.warp > 0) return;
    const AttentionWorkItem unit = finder_.Find(p_.schedule, index);
    if (thread_.lane == 0) found_ = TileItemOf<Shape>(p_, unit);
  }

  // Processes the key block in stage `number` and meanwhile starts the copies of a later block into
  // the previous stage.
  __device__ void ProcessKeyBlock(const TileItem& item, int block, int number) {
    const uint32_t stage = shared_ + Shape::kQBytes + number * Shape::kStageBytes;
    const int next = number == 0 ? Shape::kStages - 1 : number - 1;
    TileScores<Shape> scores;
    if constexpr (Shape::kHopper) {
      ScoreByWarpgroup(
          thread_, shared_, stage, [&] { copies_.LoadKeys(next); }, scores);
    } else {
      copies_.LoadKeys(next);
      Score(thread_, shared_, stage, scores);
    }
    if (BlockHasMaskedKeys<Shape>(p_.schedule, item.keys, block))
      Mask(thread_, rows_, block * Shape::kKeys + thread_.FirstKey(), scores);
    Apply(ToProbabilities(thread_, __fmul_rn(p_.launch.scale, kLog2E), shared_bytes_, scores,
                          part_.max),
          part_);
    uint32_t p[Shape::kKeys / 16][4];
    if constexpr (Shape::kShares) {
      ShareProbabilities(thread_, shared_bytes_, scores);
#pragma unroll
      for (int k = 0; k < Shape::kKeys / 16; ++k)
        ptx::LoadMatrices(p[k], shared_ + Shape::kPAt +
                                    SwizzledOffset<Shape::kRows>(thread_.row0 + thread_.lane % 16,
                                                                 2 * k + thread_.lane / 16));
    } else {
#pragma unroll
      for (int k = 0; k < Shape::kKeys / 16; ++k)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          p[k][i] = PackBf16(scores[8 * k + 2 * i], scores[8 * k + 2 * i + 1]);
    }
    if constexpr (Shape::kHopper) {
      AddValuesByWarpgroup(thread_, shared_ + Shape::kOnesAt, stage, p, part_.sums, part_.weights);
    } else {
#pragma unroll
      for (int k = 0; k < Shape::kKeys / 16; ++k)
        AccumulateValues(thread_, stage, k, p[k], part_.sums, part_.weights);
    }
  }

  const TiledAttention& p_;
  const WorkItemFinder& finder_;
  TileItem& found_;
  TileLoader<Shape> copies_;
  const TileThread<Shape> thread_;
  const uint32_t shared_;
  char* const shared_bytes_;

  int stage_ = 0;        // of the next key block
  bool copied_ = false;  // whether copies of the next item's first key blocks have been issued
  TileRows rows_;
  TileAccumulator<Shape> part_;
};

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads)
    TiledAttentionKernel(const __grid_constant__ TiledAttention p) {
  extern __shared__ __align__(1024) char shared[];
  static_assert(sizeof(TileItem) <= Shape::kSlotsAt - Shape::kUnitAt);
  TileItem& found = *reinterpret_cast<TileItem*>(shared + Shape::kUnitAt);
  if constexpr (Shape::kHopper) {
    for (int i = threadIdx.x; i < Shape::kOnesBytes / 4; i += Shape::kThreads)
      reinterpret_cast<uint32_t*>(shared + Shape::kOnesAt)[i] = kBf16Ones;
  }
  LaunchDependents();
  const WorkItemFinder finder(p.schedule);  // used by the first warp
  if (threadIdx.x < 32) {
    const AttentionWorkItem first = finder.Find(p.schedule, blockIdx.x);
    if (threadIdx.x == 0) found = TileItemOf<Shape>(p, first);
  }
  __syncthreads();
  TileWorker<Shape> worker(p, finder, found, shared);
  for (int index = blockIdx.x;; index += gridDim.x) {
    const TileItem item = found;
    if (item.unit.sequence < 0) break;
    worker.Run(item, index + static_cast<int>(gridDim.x));
  }
  // A block without work items ends early, so that its SM is free for the next kernel. One block
  // that waits is enough to keep the order of the kernels.
  if (blockIdx.x == 0) WaitForPriorKernels();
}

}  // namespace switchyard::cuda
