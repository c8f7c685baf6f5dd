// Work partition of tensor core attention. A tile is a set of query rows (and of heads that share
// keys) of one sequence. A work item (unit) is a tile and a key-value head with either all visible
// keys or one split of them. The partial result of a split goes to the item's own scratch slot.
// Lengths are on the device only, so every block computes its work items itself. The partition does
// not affect the bits of a result.
#pragma once

#include <climits>
#include <cstdint>

#include "kernels/cuda/attention/attention.h"

namespace switchyard::cuda {

// The first key of a sequence that is not in its pages; INT_MAX: all of them are.
__device__ __forceinline__ int BranchBegin(const SequenceTable& table, int sequence) {
  return table.branches == nullptr ? INT_MAX
                                   : table.branches[int64_t{sequence} * table.branch_stride];
}

// The cache slot of a key (SequenceSpan::SlotOf).
__device__ __forceinline__ int SlotOfKey(const SequenceTable& table, int sequence, int key) {
  int page_table = sequence;
  if (table.branches != nullptr) {
    const int32_t* const branch = table.branches + int64_t{sequence} * table.branch_stride;
    if (key >= branch[0]) return branch[SequenceTable::kBranchHeader + key - branch[0]];
    page_table = branch[1];
  }
  const int page = static_cast<unsigned>(key) / static_cast<unsigned>(table.page_size);
  return table.pages[int64_t{page_table} * table.max_pages + page] * table.page_size +
         (key - page * table.page_size);
}

// The keys are split at fixed positions, which are part of the reduction order: 2^fine keys per
// split before position `fine_end`, 2^coarse keys after it. Smaller splits spread a sequence over
// more SMs; larger ones leave less to merge. Powers of two, because every block computes the splits
// of all sequences before it starts.
struct KeySplits {
  int fine = 0, fine_end = 0, coarse = 0;

  // Of: the index of the split that contains a key. Begin: the first key of a split.
  __host__ __device__ constexpr int Of(int key) const {
    return key < fine_end ? key >> fine : (fine_end >> fine) + ((key - fine_end) >> coarse);
  }
  __host__ __device__ constexpr int Begin(int split) const {
    const int after = split - (fine_end >> fine);
    return after < 0 ? split << fine : fine_end + (after << coarse);
  }
};

// The first key that the query at a position sees. It does not decrease with the position.
__host__ __device__ constexpr int FirstKey(int position, int window, int chunk) {
  if (chunk > 0) return position - position % chunk;
  return window > 0 && position >= window ? position - window + 1 : 0;
}

struct AttentionSchedule {
  const int32_t* rows = nullptr;    // SequenceTable::rows
  const int32_t* kv_len = nullptr;  // SequenceTable::kv_len
  int num_sequences = 0;
  int group = 1;  // query heads of a key-value head
  int kv_heads = 1;
  int window = 0, chunk = 0;  // 0: none
  int tile_rows = 0;          // a power of two
  KeySplits splits;
  // Sequences before this index are not split if they have at most `whole_splits` splits: a block
  // processes all keys of a tile.
  int whole_sequences = 0, whole_splits = 1;
  // Sequences with rows · group outside of this range belong to another launch.
  int min_rows = 0, max_rows = 0;
  int slots = 0;  // scratch slots, in order of sequence; a sequence without slots is not split

  __device__ int FirstKeyOf(int position) const { return FirstKey(position, window, chunk); }
};

struct AttentionWorkItem {
  int sequence;  // −1: no work item
  int tile, kv_head;
  int split;  // relative to the tile's first visible split; −1: all keys
  int slot;
};

// Number of tiles of a sequence, and of splits visible to any of them.
struct SequenceWork {
  int tiles = 0, splits = 0;
  bool whole = false;
  // Number of work items if the keys are split; each has a scratch slot.
  __device__ int Units(const AttentionSchedule& s) const {
    return whole ? 0 : tiles * splits * s.kv_heads;
  }
};
__device__ __forceinline__ SequenceWork PartOf(const AttentionSchedule& s, int sequence) {
  const int rows = s.rows[sequence], flat = rows * s.group, keys = s.kv_len[sequence];
  if (rows <= 0 || flat < s.min_rows || flat > s.max_rows) return {};
  const int begin = s.FirstKeyOf(keys - rows);
  const int splits = s.splits.Of(keys - 1) - s.splits.Of(begin) + 1;
  return {.tiles = (flat + s.tile_rows - 1) >> (31 - __clz(s.tile_rows)),
          .splits = splits,
          .whole = splits <= (sequence < s.whole_sequences ? s.whole_splits : 1)};
}

__device__ __forceinline__ int WarpSumBefore(int x, int lane) {
  int sum = x;
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    const int other = __shfl_up_sync(~0u, sum, lanes);
    if (lane >= lanes) sum += other;
  }
  return sum - x;
}

// Exclusive prefix sum over the warp; `*all` gets the sum of all lanes.
__device__ __forceinline__ int WarpPrefix(int x, int lane, int* all) {
  const int before = WarpSumBefore(x, lane);
  *all = __shfl_sync(~0u, before + x, 31);
  return before;
}

// Finds work items of a launch; used by a whole warp. Each lane counts the work items of a
// contiguous range of sequences once, so that a look-up reads only the range that has the item.
class WorkItemFinder {
 public:
  __device__ explicit WorkItemFinder(const AttentionSchedule& s) {
    const int lane = threadIdx.x % 32, run = (s.num_sequences + 31) / 32;
    begin_ = min(s.num_sequences, lane * run);
    end_ = min(s.num_sequences, begin_ + run);
    int split_units = 0;
#pragma unroll 8  // loads in flight
    for (int i = begin_; i < end_; ++i) split_units += PartOf(s, i).Units(s);
    first_slot_ = WarpSumBefore(split_units, lane);
    int slot = first_slot_;
#pragma unroll 8
    for (int i = begin_; i < end_; ++i) {
      const SequenceWork part = PartOf(s, i);
      units_ += IsSplit(s, part, slot) ? part.Units(s) : part.tiles * s.kv_heads;
      slot += part.Units(s);
    }
    before_ = WarpSumBefore(units_, lane);
  }

  // Returns work item `index` of the launch; its sequence is −1 if there are fewer items.
  __device__ AttentionWorkItem Find(const AttentionSchedule& s, int index) const {
    const int lane = threadIdx.x % 32;
    const unsigned owner = __ballot_sync(~0u, index >= before_ && index < before_ + units_);
    if (owner == 0) return {.sequence = -1};
    const int from = __ffs(static_cast<int>(owner)) - 1;
    const int end = __shfl_sync(~0u, end_, from);
    int first = __shfl_sync(~0u, begin_, from), slot = __shfl_sync(~0u, first_slot_, from);
    int offset = index - __shfl_sync(~0u, before_, from);
    while (true) {  // ends, because the owner lane's range has the item
      const int i = first + lane;
      const SequenceWork part = i < end ? PartOf(s, i) : SequenceWork{};
      int slots, items;
      const int own_slot = slot + WarpPrefix(part.Units(s), lane, &slots);
      const bool split = IsSplit(s, part, own_slot);
      const int here = split ? part.Units(s) : part.tiles * s.kv_heads;
      const int own_offset = offset - WarpPrefix(here, lane, &items);
      const unsigned found = __ballot_sync(~0u, own_offset >= 0 && own_offset < here);
      if (found != 0) {
        const int j = own_offset / s.kv_heads, kv_head = own_offset - j * s.kv_heads;
        int tile = part.tiles - 1 - j;  // longest first
        int number = -1, own = own_slot;
        if (split) {
          tile = j / part.splits;
          // The last split of a sequence is short. Sequences begin with different splits, so that
          // blocks of one SM, which get items at a fixed distance, get splits of all lengths.
          number = (j + i) % part.splits;
          own += (tile * part.splits + number) * s.kv_heads + kv_head;
        }
        const int lane_of = __ffs(static_cast<int>(found)) - 1;
        return {.sequence = first + lane_of,
                .tile = __shfl_sync(~0u, tile, lane_of),
                .kv_head = __shfl_sync(~0u, kv_head, lane_of),
                .split = __shfl_sync(~0u, number, lane_of),
                .slot = __shfl_sync(~0u, own, lane_of)};
      }
      offset -= items;
      slot += slots;
      first += 32;
    }
  }

 private:
  // `slot`: the first scratch slot of the sequence.
  __device__ static bool IsSplit(const AttentionSchedule& s, const SequenceWork& part, int slot) {
    return part.Units(s) > 0 && slot + part.Units(s) <= s.slots;
  }

  int begin_, end_;         // sequences of this lane
  int first_slot_;          // scratch slots of earlier lanes
  int before_, units_ = 0;  // work items of earlier lanes, and of this lane
};

// Finds the tiles of a launch without splits, in another order: the last tile of every sequence,
// then the one before it, and so on. So tiles of similar length follow each other. Used by a whole
// warp.
class TileFinder {
 public:
  __device__ explicit TileFinder(const AttentionSchedule& s) {
    const int lane = threadIdx.x % 32, run = (s.num_sequences + 31) / 32;
    begin_ = min(s.num_sequences, lane * run);
    end_ = min(s.num_sequences, begin_ + run);
  }

  // Returns tile `index` of the launch; its sequence is −1 if the launch has fewer tiles. `index`
  // must not decrease from call to call.
  __device__ AttentionWorkItem Find(const AttentionSchedule& s, int index) {
    int active, all;  // numbers of sequences with more than rank_ tiles, per lane and in total
    while (true) {
      active = 0;
      int least = INT_MAX;  // fewest tiles of a sequence with more than rank_
      for (int i = begin_; i < end_; ++i) {
        const int tiles = PartOf(s, i).tiles;
        if (tiles > rank_) ++active, least = min(least, tiles);
      }
      all = __reduce_add_sync(~0u, active);
      if (all == 0) return {.sequence = -1};
      least = __reduce_min_sync(~0u, least);
      const int items = all * s.kv_heads * (least - rank_);
      if (index - before_ < items) break;
      before_ += items;
      rank_ = least;
    }
    const int lane = threadIdx.x % 32, per_rank = all * s.kv_heads;
    const int offset = index - before_, rank = rank_ + offset / per_rank;
    const int of_rank = offset % per_rank, number = of_rank / s.kv_heads;
    int skip = number - WarpSumBefore(active, lane);
    int sequence = -1, tiles = 0;
    if (skip >= 0 && skip < active) {
      for (sequence = begin_;; ++sequence) {
        tiles = PartOf(s, sequence).tiles;
        if (tiles > rank_ && skip-- == 0) break;
      }
    }
    const int from = __ffs(static_cast<int>(__ballot_sync(~0u, sequence >= 0))) - 1;
    return {.sequence = __shfl_sync(~0u, sequence, from),
            .tile = __shfl_sync(~0u, tiles, from) - 1 - rank,
            .kv_head = of_rank % s.kv_heads,
            .split = -1,
            .slot = 0};
  }

 private:
  int begin_, end_;            // sequences of this lane
  int rank_ = 0, before_ = 0;  // position from a sequence's end; tiles of lower positions
};

// The scratch slot of (tile 0, split 0, key-value head 0) of a sequence. −1 if its tiles process
// all keys in one work item or belong to another launch. Called by a whole warp.
__device__ inline int FirstSlot(const AttentionSchedule& s, int sequence) {
  const int units = PartOf(s, sequence).Units(s);
  if (units == 0) return -1;
  int sum = 0;
#pragma unroll 8  // loads in flight
  for (int i = threadIdx.x % 32; i < sequence; i += 32) sum += PartOf(s, i).Units(s);
  sum = __reduce_add_sync(~0u, sum);
  return sum + units <= s.slots ? sum : -1;
}

// The keys visible to a tile.
struct TileKeys {
  int begin_row = 0,
      end_row = 0;         // range of the tile; (row, head) has the number row · group + head
  int first_position = 0;  // position of its first row
  int begin = 0, end = 0;  // range of visible keys
  // Keys of a sequence without a branch, from here on, are stored in this step.
  int first_new = 0;
  int first_split = 0, splits = 0;
};
__device__ __forceinline__ TileKeys TileKeysOf(const AttentionSchedule& s, int sequence, int tile) {
  const int rows = s.rows[sequence], start = s.kv_len[sequence] - rows;
  TileKeys k;
  k.begin_row = tile * s.tile_rows;
  k.end_row = min(k.begin_row + s.tile_rows, rows * s.group);
  k.first_new = start;
  k.first_position = start + k.begin_row / s.group;
  k.begin = s.FirstKeyOf(k.first_position);
  k.end = start + (k.end_row - 1) / s.group + 1;
  k.first_split = s.splits.Of(k.begin);
  k.splits = s.splits.Of(k.end - 1) - k.first_split + 1;
  return k;
}

}  // namespace switchyard::cuda
