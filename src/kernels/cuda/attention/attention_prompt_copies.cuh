// Producer of prompt attention: work items, their queries, keys and values (attention_prompt.cuh).
#pragma once

#include "kernels/cuda/attention/attention_merge.cuh"
#include "kernels/cuda/attention/attention_ptx.cuh"
#include "kernels/cuda/attention/attention_tile_shape.cuh"
#include "kernels/cuda/device/ptx.cuh"
#include "kernels/cuda/gemm/gemm_tiles.cuh"

namespace switchyard::cuda {

// A work item as the producer hands it to the consumers.
struct PromptItem {
  AttentionWorkItem unit;  // sequence −1: no more items
  TileKeys keys;
  int row_begin;   // index of the sequence's first row in the batch
  int begin, end;  // keys to process
  bool partial;    // the keys are one split of several
};

// TMA maps, unused if box_keys is 0.
struct PromptMaps {
  CUtensorMap k, v;  // the caches as [slots, kv_heads · head_dim], boxes of box_keys × 64
  CUtensorMap q;     // [rows, heads, head_dim], boxes of the queries of a tile by 64 columns
  int box_keys = 0;
  bool has_q = false;
};

template <int kHeadDim, int kStages_, bool kCodes>
struct PromptShape : TileShape<kHeadDim, kHeadDim, false, 8, 1, kStages_, true, kCodes> {
  using Base = TileShape<kHeadDim, kHeadDim, false, 8, 1, kStages_, true, kCodes>;
  static constexpr int kConsumerThreads = Base::kThreads, kProducerThreads = 128;
  static constexpr int kThreads = kConsumerThreads + kProducerThreads;
  // Registers per thread after setmaxnreg. The total of two consumer warpgroups and one producer is
  // that of the launch: 384 threads with 168 registers each.
  static constexpr int kConsumerRegisters = 216, kProducerRegisters = 72;
  static constexpr int kQueryBuffers = 2;
  static constexpr int kCodeStages = 2;  // blocks of codes on their way to a stage
  static_assert(Base::kRows == 128);
};

template <typename Shape>
struct PromptShared {
  alignas(1024) char queries[Shape::kQueryBuffers][Shape::kQBytes];
  char stages[Shape::kStages][Shape::kStageBytes];
  char codes[Shape::kCodeStages][Shape::kCodes ? Shape::kCodeBytes : 16];
  uint32_t ones[Shape::kOnesBytes / 4];
  PromptItem items[Shape::kQueryBuffers];
  uint64_t queries_full[Shape::kQueryBuffers], queries_empty[Shape::kQueryBuffers];
  uint64_t full[Shape::kStages], empty[Shape::kStages];

  __device__ void InitBarriers(int producer_warps) {
    constexpr uint32_t kReaders = Shape::kConsumerThreads / 32 * ptx::kWarpArrivals;
    const uint32_t writers = producer_warps * ptx::kWarpArrivals;
    for (int i = 0; i < Shape::kQueryBuffers; ++i) {
      ptx::BarrierInit(&queries_full[i], writers);
      ptx::BarrierInit(&queries_empty[i], kReaders);
    }
    for (int i = 0; i < Shape::kStages; ++i) {
      ptx::BarrierInit(&full[i], writers);
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
  __device__ bool IsReal() const { return flat_ < end_; }  // false after the tile's last row
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
  // group_: query heads per KV head. kStep rows are queries_ queries and heads_ heads.
  const int group_, queries_, heads_;
  int flat_, end_, head_, first_head_;
  int64_t query_;
};

// The producer warps; all of their threads call Run.
template <typename Shape>
class PromptProducer {
 public:
  // Number of producer warps.
  __device__ static int Warps(const PromptMaps& maps) { return maps.box_keys > 0 ? 1 : 4; }

  __device__ PromptProducer(const TiledAttention& p, const PromptMaps& maps,
                            PromptShared<Shape>& shared)
      : p_(p),
        maps_(maps),
        shared_(shared),
        warps_(Warps(maps)),
        warp_((threadIdx.x - Shape::kConsumerThreads) / 32),
        lane_(threadIdx.x % 32) {}

  __device__ void Run() {
    if (warp_ >= warps_) return;
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
      if (warp_ == 0 && lane_ == 0) shared_.items[buffer_.stage] = item;
      if (item.unit.sequence < 0) {
        ptx::BarrierArriveWarp(&shared_.queries_full[buffer_.stage]);
        return;
      }
      if constexpr (Shape::kCodes) {
        CopyAllCodes(item);
      } else {
        Copy(item);
      }
    }
  }

 private:
  static constexpr int kRowPieces = Shape::kQkDim / 8;  // pieces of eight elements in a row

  __device__ void SetRange(PromptItem& item) const {
    constexpr KeySplits kSplits = Shape::kSplits;
    item.row_begin = p_.launch.table.row_begin[item.unit.sequence];
    item.partial = item.unit.split >= 0 && item.keys.splits > 1;
    const int split = item.keys.first_split + max(item.unit.split, 0);
    item.begin = item.partial ? max(item.keys.begin, kSplits.Begin(split)) : item.keys.begin;
    item.end = item.partial ? min(item.keys.end, kSplits.Begin(split + 1)) : item.keys.end;
  }

  // Copies all keys and values of the item, and its queries after the first block.
  __device__ void Copy(const PromptItem& item) {
    const int first = item.begin / Shape::kKeys, last = (item.end - 1) / Shape::kKeys;
    // Blocks of keys that all exist, that the tile may read, and that are all in pages.
    const int first_whole = (item.begin + Shape::kKeys - 1) / Shape::kKeys;
    const SequenceTable& table = p_.launch.table;
    const int in_pages =
        min(table.kv_len[item.unit.sequence], BranchBegin(table, item.unit.sequence));
    const int whole_end = maps_.box_keys > 0 ? in_pages / Shape::kKeys : 0;
    for (int block = first; block <= last; ++block) {
      const bool whole = block >= first_whole && block < whole_end;
      const int boxes_slot =
          whole ? SlotOf(item, block * Shape::kKeys + lane_ % 4 * maps_.box_keys % Shape::kKeys)
                : 0;
      ptx::BarrierWait(&shared_.empty[stage_.stage], stage_.parity ^ 1);
      if (whole) {
        CopyBoxes(item, boxes_slot);
      } else {
        CopyRows(item, block);
      }
      ptx::BarrierArriveWarp(&shared_.full[stage_.stage]);
      stage_.Next(Shape::kStages);
      if (block == first) CopyQueries(item);
    }
  }

  // The cache slot of a key.
  __device__ int SlotOf(const PromptItem& item, int key) const {
    return SlotOfKey(p_.launch.table, item.unit.sequence, key);
  }

  // Copies a block into the stage by TMA. Lanes 0 to 3 have the slots of the boxes; a lane copies
  // its box of all panels of 64 columns.
  __device__ void CopyBoxes(const PromptItem& item, int slot) {
    uint64_t* const full = &shared_.full[stage_.stage];
    if (lane_ == 0) ptx::BarrierExpectOnly(full, Shape::kStageBytes);
    __syncwarp();
    if (lane_ * maps_.box_keys < Shape::kKeys) {
      char* to = shared_.stages[stage_.stage] + lane_ * maps_.box_keys * 128;
      const int column = item.unit.kv_head * Shape::kQkDim;
#pragma unroll
      for (int panel = 0; panel < Shape::kQkDim / 64; ++panel) {
        ptx::LoadBox(to, &maps_.k, column + panel * 64, slot, full);
        ptx::LoadBox(to + Shape::kKBytes, &maps_.v, column + panel * 64, slot, full);
        to += Shape::kKeys * 128;
      }
    }
  }

  // Copies a block into the stage by cp.async; zeros for keys that the tile must not read. Eight
  // lanes copy 128 bytes of a key at a time.
  __device__ void CopyRows(const PromptItem& item, int block) {
    const int64_t stride = int64_t{p_.launch.kv_heads} * Shape::kQkDim;
    const int64_t column = int64_t{item.unit.kv_head} * Shape::kQkDim + lane_ % 8 * 8;
    const auto* k = static_cast<const __nv_bfloat16*>(p_.launch.k) + column;
    const auto* v = static_cast<const __nv_bfloat16*>(p_.launch.v) + column;
    const uint32_t to = ptx::SharedAddress(shared_.stages[stage_.stage]);
    for (int part = warp_; part < 4; part += warps_) {  // each part is 16 keys
      const int key = block * Shape::kKeys + part * 16 + lane_ % 16;
      const int slot = key >= item.begin && key < item.end ? SlotOf(item, key) : -1;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = part * 16 + 4 * i + lane_ / 8;
        const int from_slot = __shfl_sync(~0u, slot, 4 * i + lane_ / 8);
        const int64_t from = max(from_slot, 0) * stride;
        const uint32_t row_to = to + SwizzledOffset<Shape::kKeys>(row, lane_ % 8);
#pragma unroll
        for (int panel = 0; panel < Shape::kQkDim / 64; ++panel) {
          const uint32_t panel_to = row_to + panel * (Shape::kKeys * 128);
          ptx::CopyAsync16(panel_to, k + from + 64 * panel, from_slot >= 0);
          ptx::CopyAsync16(panel_to + Shape::kKBytes, v + from + 64 * panel, from_slot >= 0);
        }
      }
    }
    ptx::BarrierAwaitCopies(&shared_.full[stage_.stage]);
  }

  // As Copy, for codes and four warps. A piece is 16 codes: a thread copies pieces of the keys and
  // values by cp.async, and later converts the pieces that it has copied.
  __device__ void CopyAllCodes(const PromptItem& item) {
    const int first = item.begin / Shape::kKeys, last = (item.end - 1) / Shape::kKeys;
#pragma unroll
    for (int i = 0; i < Shape::kCodeStages; ++i) StartCodes(item, first + i, last, i);
    int from = 0;
    for (int block = first; block <= last; ++block) {
      ptx::WaitCopies<Shape::kCodeStages - 1>();
      ptx::BarrierWait(&shared_.empty[stage_.stage], stage_.parity ^ 1);
      char* const to = shared_.stages[stage_.stage];
#pragma unroll
      for (int i = 0; i < kThreadPieces; ++i) {
        const int row = Place(i), piece = lane_ % kCodePieces;
        const char* const codes = CodesAt(from, i);
        StoreCodes<Shape::kKeys>(to, row, piece, *reinterpret_cast<const uint4*>(codes));
        StoreCodes<Shape::kKeys>(
            to + Shape::kKBytes, row, piece,
            *reinterpret_cast<const uint4*>(codes + Shape::kKeys * Shape::kQkDim));
      }
      ptx::FenceAsyncProxy();
      ptx::BarrierArriveWarp(&shared_.full[stage_.stage]);
      stage_.Next(Shape::kStages);
      if (block == first) CopyQueries(item);
      StartCodes(item, block + Shape::kCodeStages, last, from);
      from = from + 1 == Shape::kCodeStages ? 0 : from + 1;
    }
  }

  static constexpr int kCodePieces = Shape::kQkDim / 16;  // pieces of a key
  static constexpr int kRowsOfWarp = 32 / kCodePieces;    // that a warp copies at a time
  static constexpr int kThreadPieces = Shape::kKeys / (4 * kRowsOfWarp);  // of keys
  static_assert(!Shape::kCodes || kThreadPieces * kRowsOfWarp == 16);

  // The key in the block of this thread's i-th piece, and the place of the piece.
  __device__ int Place(int i) const { return RowOfWarp(lane_ / kCodePieces, i); }
  __device__ int RowOfWarp(int j, int i) const { return (4 * i + warp_) * kRowsOfWarp + j; }
  __device__ char* CodesAt(int stage, int i) const {
    return shared_.codes[stage] + (Place(i) * kCodePieces + lane_ % kCodePieces) * 16;
  }

  // Starts the copies of a block's codes as a group of copies; zeros for keys that the tile must
  // not read. Blocks after the last one are an empty group.
  __device__ void StartCodes(const PromptItem& item, int block, int last, int stage) const {
    if (block <= last) {
      const int of_lane = RowOfWarp(lane_ % kRowsOfWarp, lane_ % 16 / kRowsOfWarp);
      const int key = block * Shape::kKeys + of_lane;
      const int slot = key >= item.begin && key < item.end ? SlotOf(item, key) : -1;
      const int64_t stride = int64_t{p_.launch.kv_heads} * Shape::kQkDim;
      const int64_t column = int64_t{item.unit.kv_head} * Shape::kQkDim + lane_ % kCodePieces * 16;
      const char* const k = static_cast<const char*>(p_.launch.k) + column;
      const char* const v = static_cast<const char*>(p_.launch.v) + column;
#pragma unroll
      for (int i = 0; i < kThreadPieces; ++i) {
        const int from_slot = __shfl_sync(~0u, slot, lane_ / kCodePieces + kRowsOfWarp * i);
        const int64_t from = max(from_slot, 0) * stride;
        const uint32_t to = ptx::SharedAddress(CodesAt(stage, i));
        ptx::CopyAsync16(to, k + from, from_slot >= 0);
        ptx::CopyAsync16(to + Shape::kKeys * Shape::kQkDim, v + from, from_slot >= 0);
      }
    }
    ptx::CommitCopies();
  }

  // Copies the tile's queries as bfloat16 into the buffer. Rows after the tile's last one are zeros
  // or other queries; their results are not stored.
  __device__ void CopyQueries(const PromptItem& item) {
    uint64_t* const full = &shared_.queries_full[buffer_.stage];
    char* const to = shared_.queries[buffer_.stage];
    if (maps_.has_q) {
      if (lane_ == 0) {
        const int group = p_.schedule.group;
        ptx::BarrierExpectOnly(full, Shape::kQBytes);
#pragma unroll
        for (int panel = 0; panel < Shape::kQkDim / 64; ++panel)
          ptx::LoadBox(to + panel * (Shape::kRows * 128), &maps_.q, panel * 64,
                       item.unit.kv_head * group, item.row_begin + item.keys.begin_row / group,
                       full);
      }
    } else if (p_.launch.bf16_queries) {
      constexpr int kRowsAtOnce = 32 / kRowPieces;  // rows that a warp copies at a time
      for (int part = warp_; part < 4; part += warps_) {
        const int first = part * (Shape::kRows / 4) + lane_ / kRowPieces;
        TileRow<kRowsAtOnce> row(p_, item, first);
        for (int i = 0; i < Shape::kRows / 4 / kRowsAtOnce; ++i, row.Next()) {
          const int64_t at = row.IsReal() ? row.Offset(p_.launch.ldq, Shape::kQkDim) : 0;
          const auto* from = reinterpret_cast<const uint4*>(p_.launch.q + at);
          ptx::CopyAsync16(
              ptx::SharedAddress(to) +
                  SwizzledOffset<Shape::kRows>(first + i * kRowsAtOnce, lane_ % kRowPieces),
              from + lane_ % kRowPieces, row.IsReal());
        }
      }
      ptx::BarrierAwaitCopies(full);
    } else {
      RoundQueries(item, to);
      ptx::FenceAsyncProxy();
    }
    ptx::BarrierArriveWarp(full);
    buffer_.Next(Shape::kQueryBuffers);
  }

  __device__ void RoundQueries(const PromptItem& item, char* to) const {
    constexpr int kRowsAtOnce = 32 / kRowPieces;
    const int piece = lane_ % kRowPieces;
    for (int part = warp_; part < 4; part += warps_) {
      const int first = part * (Shape::kRows / 4) + lane_ / kRowPieces;
      TileRow<kRowsAtOnce> row(p_, item, first);
      for (int i = 0; i < Shape::kRows / 4 / kRowsAtOnce; ++i, row.Next()) {
        float4 a = {}, b = {};
        if (row.IsReal()) {
          const auto* from = reinterpret_cast<const float4*>(
              p_.launch.q + row.Offset(p_.launch.ldq, Shape::kQkDim));
          a = from[2 * piece];
          b = from[2 * piece + 1];
        }
        *reinterpret_cast<uint4*>(to +
                                  SwizzledOffset<Shape::kRows>(first + i * kRowsAtOnce, piece)) = {
            PackBf16(a.x, a.y), PackBf16(a.z, a.w), PackBf16(b.x, b.y), PackBf16(b.z, b.w)};
      }
    }
  }

  const TiledAttention& p_;
  const PromptMaps& maps_;
  PromptShared<Shape>& shared_;
  const int warps_, warp_, lane_;
  PipelineState stage_, buffer_;
};

}  // namespace switchyard::cuda
