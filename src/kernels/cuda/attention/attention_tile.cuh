// Problem: attention on tensor cores: FlashAttention over tiles of query rows, with optional splits
// of the keys (split-KV). A row's mma.sync result does not depend on the other rows.
// Tiling: the query heads of a key-value head are rows of one tile, so that decode loads each key
// once. The tile shapes for decode and prefill share every row's arithmetic:
//   for each split of the keys, for each of its blocks of kKeys at fixed positions:
//     s = q · kᵀ (along the head, 16 at a time), new maximum, p = 2^(s − max) in bfloat16
//     sums = sums · 2^(old max − max) + p · v, weights likewise with ones for v (16 keys at a time)
//   The maximum rises only if a score exceeds it by kMaxSlack (ToProbabilities). Masked keys have
//   p = 0. Splits are merged in order (attention_merge.cuh).
// Pipeline: kStages key blocks are in flight by cp.async. Codes of a cache in e4m3 are converted in
// registers, or in large tiles by the threads that have copied them. Measured on one H200,
// Qwen3-30B-A3B, 32 sequences of 4096 keys: 69 % of 4.8 TB/s.
#pragma once

#include "kernels/cuda/attention/attention_merge.cuh"
#include "kernels/cuda/attention/attention_ptx.cuh"
#include "kernels/cuda/attention/attention_tile_codes.cuh"
#include "kernels/cuda/attention/attention_tile_shape.cuh"
#include "kernels/cuda/attention/attention_tile_softmax.cuh"
#include "kernels/cuda/device/kernel_chain.cuh"
#include "kernels/cuda/device/ptx.cuh"

namespace switchyard::cuda {

// Copies of queries, keys and values to shared memory for tensor core attention.

// Copies for one work item. All threads of the thread block call the functions together.
template <typename Shape>
class TileLoader {
 public:
  __device__ TileLoader(const TiledAttention& p, const AttentionWorkItem& unit,
                        const TileKeys& keys, char* shared)
      : p_(p),
        unit_(unit),
        keys_(keys),
        shared_(ptx::SharedAddress(shared)),
        shared_bytes_(shared) {}

  // The cache slot of this thread's key of a key block; −1 if the key is not visible to the tile,
  // or the block is beyond the last one.
  __device__ int SlotOf(int block, int last) const {
    const int key = block * Shape::kKeys + threadIdx.x;
    if (key < keys_.begin || key >= keys_.end || block > last) return -1;
    return SlotOfKey(p_.launch.table, unit_.sequence, key);
  }
  // In shared memory: the cache slots of the key block in a stage, one per key.
  __device__ int* Slots(int stage) const {
    return reinterpret_cast<int*>(shared_bytes_ + Shape::kSlotsAt) + stage * Shape::kKeys;
  }

  // Issues the copies of the keys and values of a stage's block, with zeros for keys whose slot is
  // −1. Branch-free, because wgmma in flight does not allow branches. Eight threads copy one row of
  // a panel.
  __device__ void LoadKeys(int stage) {
    if constexpr (Shape::kCodes) return LoadCodes(stage);
    constexpr int kRowsAtOnce = Shape::kThreads / 8;
    const int kv_heads = p_.launch.kv_heads, column = threadIdx.x % 8 * 8;
    const int64_t k_stride = int64_t{kv_heads} * Shape::kQkDim;
    const int64_t v_stride = int64_t{kv_heads} * Shape::kVDim;
    const __nv_bfloat16* k = static_cast<const __nv_bfloat16*>(p_.launch.k) +
                             int64_t{unit_.kv_head} * Shape::kQkDim + column;
    const __nv_bfloat16* v = static_cast<const __nv_bfloat16*>(p_.launch.v) +
                             int64_t{unit_.kv_head} * Shape::kVDim + column;
    const uint32_t to = shared_ + Shape::kQBytes + stage * Shape::kStageBytes;
    const int* slots = Slots(stage);
#pragma unroll
    for (int i = 0; i < Shape::kKeys / kRowsAtOnce; ++i) {
      const int row = threadIdx.x / 8 + i * kRowsAtOnce, slot = slots[row];
      const __nv_bfloat16* const key = k + max(slot, 0) * k_stride;
      const __nv_bfloat16* const value = v + max(slot, 0) * v_stride;
      const uint32_t row_to = to + SwizzledOffset<Shape::kKeys>(row, threadIdx.x % 8);
#pragma unroll
      for (int panel = 0; panel < Shape::kQkDim / 64; ++panel) {
        const uint32_t panel_to = row_to + panel * (Shape::kKeys * 128);
        ptx::CopyAsync16(panel_to, key + 64 * panel, slot >= 0);
        if constexpr (!Shape::kLatent) {
          if (panel < Shape::kVDim / 64)
            ptx::CopyAsync16(panel_to + Shape::kKBytes, value + 64 * panel, slot >= 0);
        }
      }
    }
    ptx::CommitCopies();
  }

  // Converts the codes of a stage that this thread has copied. With codes, but not kDirect.
  __device__ void ConvertCodes(int stage) const {
    const char* const from = shared_bytes_ + Shape::kCodesAt + stage * Shape::kCodeBytes;
    char* const to = shared_bytes_ + Shape::kQBytes;
    Convert<Shape::kQkDim>(from, to);
    if constexpr (!Shape::kLatent)
      Convert<Shape::kVDim>(from + Shape::kKeys * Shape::kQkDim, to + Shape::kKBytes);
  }

  // Loads the tile's queries as bfloat16; zeros beyond the last row.
  __device__ void LoadQueries() {
    constexpr int kPieces = Shape::kQkDim / 8;
    const int group = p_.schedule.group;
    const int row_begin = p_.launch.table.row_begin[unit_.sequence];
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
        const int flat = keys_.begin_row + row;
        if (row >= Shape::kRows || flat >= keys_.end_row) continue;
        const int query = flat / group, head = unit_.kv_head * group + flat - query * group;
        const float4* from = reinterpret_cast<const float4*>(
            p_.launch.q + int64_t{row_begin + query} * p_.launch.ldq +
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
  // LoadKeys for codes. A piece is 16 codes; thread t has pieces t + i · kThreads of the block.
  __device__ void LoadCodes(int stage) const {
    const uint32_t to = shared_ + Shape::kCodesAt + stage * Shape::kCodeBytes;
    CopyCodes<Shape::kQkDim>(p_.launch.k, stage, to);
    if constexpr (!Shape::kLatent)
      CopyCodes<Shape::kVDim>(p_.launch.v, stage, to + Shape::kKeys * Shape::kQkDim);
    ptx::CommitCopies();
  }
  template <int kDim>
  __device__ void CopyCodes(const void* cache, int stage, uint32_t to) const {
    constexpr int kPieces = kDim / 16, kCount = Shape::kKeys * kPieces / Shape::kThreads;
    static_assert(Shape::kKeys * kPieces % Shape::kThreads == 0);
    const int64_t stride = int64_t{p_.launch.kv_heads} * kDim;
    const char* const from = static_cast<const char*>(cache) + int64_t{unit_.kv_head} * kDim;
    const int* const slots = Slots(stage);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int at = threadIdx.x + i * Shape::kThreads, row = at / kPieces;
      const int slot = slots[row], piece = at - row * kPieces;
      const int place = Shape::kDirect ? SwizzledCodes<kDim>(row, piece) : at * 16;
      ptx::CopyAsync16(to + place, from + max(slot, 0) * stride + piece * 16, slot >= 0);
    }
  }
  template <int kDim>
  __device__ void Convert(const char* from, char* to) const {
    constexpr int kPieces = kDim / 16, kCount = Shape::kKeys * kPieces / Shape::kThreads;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int at = threadIdx.x + i * Shape::kThreads, row = at / kPieces;
      StoreCodes<Shape::kKeys>(to, row, at - row * kPieces,
                               *reinterpret_cast<const uint4*>(from + at * 16));
    }
  }

  const TiledAttention& p_;
  const AttentionWorkItem& unit_;
  const TileKeys& keys_;
  const uint32_t shared_;
  char* const shared_bytes_;
};

// One block's computation of one work item.
template <typename Shape>
class TileWorker {
 public:
  __device__ TileWorker(const TiledAttention& p, const WorkItemFinder& finder,
                        const AttentionWorkItem& unit, const TileKeys& keys, char* shared)
      : p_(p),
        finder_(finder),
        unit_(unit),
        keys_(keys),
        copies_(p, unit, keys, shared),
        shared_(ptx::SharedAddress(shared)),
        shared_bytes_(shared),
        scale_(ScoreScale<Shape::kCodes>(p.launch, unit.kv_head)) {}

  // Computes the work item. Meanwhile looks up work item `next` and stores it in `found`.
  __device__ void Run(int next, AttentionWorkItem& found) {
    const bool partial = unit_.split >= 0 && keys_.splits > 1;
    const int split = keys_.first_split + max(unit_.split, 0);
    if (unit_.split >= keys_.splits) {
      __syncthreads();
      Find(next, found);
      __syncthreads();
      return;
    }
    constexpr KeySplits kSplits = Shape::kSplits;
    const int begin = partial ? max(keys_.begin, kSplits.Begin(split)) : keys_.begin;
    const int end = partial ? min(keys_.end, kSplits.Begin(split + 1)) : keys_.end;
    const int first = begin / Shape::kKeys, last = (end - 1) / Shape::kKeys;
    rows_ = TileRowsOf(p_, unit_, keys_, p_.launch.table.row_begin[unit_.sequence], thread_);
    if (threadIdx.x < Shape::kKeys) {
#pragma unroll
      for (int i = 0; i < Shape::kStages; ++i)
        copies_.Slots(i)[threadIdx.x] = copies_.SlotOf(first + i, last);
    }
    __syncthreads();
    // Blocks that contain only keys of earlier steps are copied before WaitForPriorKernels. The
    // kernels that compute the queries and store the new keys may still run then, but do not write
    // these keys. Keys of other branches of a tree are new too, so sequences with a branch wait.
    const bool branches = BranchBegin(p_.launch.table, unit_.sequence) != INT_MAX;
    const int old_blocks = branches ? 0 : keys_.first_new / Shape::kKeys - first;
    const int early = min(max(old_blocks, 0), Shape::kStages - 1);
    for (int i = 0; i < early; ++i) copies_.LoadKeys(i);
    WaitForPriorKernels();
    for (int i = early; i < Shape::kStages - 1; ++i) copies_.LoadKeys(i);
    copies_.LoadQueries();
    Find(next, found);
    part_.Clear();
    TileEpilogue<Shape> results(p_, unit_, keys_, thread_, rows_);
    int stage = 0;
    for (int block = first; block <= last; ++block) {
      ptx::WaitCopies<Shape::kStages - 2>();
      if constexpr (Shape::kHopper) ptx::FenceAsyncProxy();
      __syncthreads();  // copies of all threads are visible, and the previous stage is free
      if constexpr (Shape::kCodes && !Shape::kDirect) {
        copies_.ConvertCodes(stage);
        if constexpr (Shape::kHopper) ptx::FenceAsyncProxy();
        __syncthreads();
      }
      int slot = 0;
      if (threadIdx.x < Shape::kKeys) slot = copies_.SlotOf(block + Shape::kStages, last);
      ProcessKeyBlock(block, stage);
      if (threadIdx.x < Shape::kKeys) copies_.Slots(stage)[threadIdx.x] = slot;
      stage = stage + 1 == Shape::kStages ? 0 : stage + 1;
      const int this_split = kSplits.Of(block * Shape::kKeys);
      if (this_split == kSplits.Of((block + 1) * Shape::kKeys) && block != last) continue;
      if constexpr (Shape::kDirect) OrderColumns(thread_, part_.sums);
      if (partial) {
        results.Store(part_);
      } else {
        results.Add(part_, this_split == keys_.first_split, block == last);
        part_.Clear();
      }
    }
    __syncthreads();  // shared memory is free for the next work item
  }

 private:
  __device__ void Find(int index, AttentionWorkItem& found) const {
    if (thread_.warp > 0) return;
    const AttentionWorkItem unit = finder_.Find(p_.schedule, index);
    if (thread_.lane == 0) found = unit;
  }

  // Processes the key block in stage `number` and meanwhile starts the copies of a later block into
  // the previous stage.
  __device__ void ProcessKeyBlock(int block, int number) {
    const uint32_t stage =
        shared_ + Shape::kQBytes + (Shape::kCodes ? 0 : number * Shape::kStageBytes);
    const int codes = Shape::kCodesAt + number * Shape::kCodeBytes;
    const int next = number == 0 ? Shape::kStages - 1 : number - 1;
    TileScores<Shape> scores;
    if constexpr (Shape::kHopper) {
      ScoreByWarpgroup(
          thread_, shared_, stage, [&] { copies_.LoadKeys(next); }, scores);
    } else if constexpr (Shape::kDirect) {
      copies_.LoadKeys(next);
      ScoreCodes(thread_, shared_, shared_bytes_ + codes, scores);
    } else {
      copies_.LoadKeys(next);
      Score(thread_, shared_, stage, scores);
    }
    if (BlockHasMaskedKeys<Shape>(p_.schedule, keys_, block))
      Mask(thread_, rows_, block * Shape::kKeys + thread_.FirstKey(), scores);
    Apply(ToProbabilities(thread_, scale_, shared_bytes_, scores, part_.max), part_);
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
    } else if constexpr (Shape::kDirect) {
      AccumulateCodes(thread_, shared_ + codes, p, part_.sums, part_.weights);
    } else {
#pragma unroll
      for (int k = 0; k < Shape::kKeys / 16; ++k)
        AccumulateValues(thread_, stage, k, p[k], part_.sums, part_.weights);
    }
  }
  const TiledAttention& p_;
  const WorkItemFinder& finder_;
  const AttentionWorkItem& unit_;
  const TileKeys& keys_;
  TileLoader<Shape> copies_;
  const TileThread<Shape> thread_;
  const uint32_t shared_;
  char* const shared_bytes_;
  const float scale_;  // of scores

  TileRows rows_;
  TileAccumulator<Shape> part_;
};

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads)
    TiledAttentionKernel(const __grid_constant__ TiledAttention p) {
  extern __shared__ __align__(1024) char shared[];
  AttentionWorkItem& found = *reinterpret_cast<AttentionWorkItem*>(shared + Shape::kUnitAt);
  if constexpr (Shape::kHopper) {
    for (int i = threadIdx.x; i < Shape::kOnesBytes / 4; i += Shape::kThreads)
      reinterpret_cast<uint32_t*>(shared + Shape::kOnesAt)[i] = kBf16Ones;
  }
  LaunchDependents();
  const WorkItemFinder finder(p.schedule);  // used by the first warp
  if (threadIdx.x < 32) {
    const AttentionWorkItem first = finder.Find(p.schedule, blockIdx.x);
    if (threadIdx.x == 0) found = first;
  }
  __syncthreads();
  for (int index = blockIdx.x;; index += gridDim.x) {
    const AttentionWorkItem unit = found;
    if (unit.sequence < 0) break;
    const TileKeys keys = TileKeysOf(p.schedule, unit.sequence, unit.tile);
    TileWorker<Shape>(p, finder, unit, keys, shared)
        .Run(index + static_cast<int>(gridDim.x), found);
  }
  // A block without work items ends early, so that its SM is free for the next kernel. One block
  // that waits is enough to keep the order of the kernels.
  if (blockIdx.x == 0) WaitForPriorKernels();
}

}  // namespace switchyard::cuda
