// Who computes what of attention with matrix units. A tile is some query rows (and heads that share
// keys) of one sequence; a unit is a tile and a key-value head with all keys that it sees, or with
// one split of them, whose partial result goes to the unit's own slot of the scratch. Lengths are
// on the device only, so every block finds its units by itself; no bit of a result depends on
// this file.
#pragma once

#include <cstdint>

namespace switchyard::cuda {

struct AttentionSchedule {
  const int32_t* rows = nullptr;    // of SequenceTable
  const int32_t* kv_len = nullptr;  // of SequenceTable
  int num_sequences = 0;
  int group = 1, kv_heads = 1;  // query heads of a key-value head
  int window = 0;
  int tile_rows = 0, split_keys = 0;
  // Sequences whose rows · group are outside are left to another launch.
  int min_rows = 0, max_rows = 0;
  int slots = 0;  // of the scratch: first come, first split
};

struct AttentionUnit {
  int sequence;  // −1: there is none
  int tile, kv_head;
  int split;  // counted from the first one that the tile sees; −1: all
  int slot;
};

// Tiles of a sequence, and splits that any of them sees.
struct AttentionPart {
  int tiles = 0, splits = 0;
  __device__ int Units(const AttentionSchedule& s) const { return tiles * splits * s.kv_heads; }
};
__device__ __forceinline__ AttentionPart PartOf(const AttentionSchedule& s, int sequence) {
  const int rows = s.rows[sequence], flat = rows * s.group, keys = s.kv_len[sequence];
  if (rows <= 0 || flat < s.min_rows || flat > s.max_rows) return {};
  const int begin = s.window > 0 ? max(0, keys - rows - s.window + 1) : 0;
  return {.tiles = (flat + s.tile_rows - 1) / s.tile_rows,
          .splits = (keys - 1) / s.split_keys - begin / s.split_keys + 1};
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

// Unit `index` of the launch; called by a whole warp. Every lane looks at a run of sequences.
__device__ inline AttentionUnit FindUnit(const AttentionSchedule& s, int index) {
  const int lane = threadIdx.x % 32, run = (s.num_sequences + 31) / 32;
  const int begin = min(s.num_sequences, lane * run), end = min(s.num_sequences, begin + run);
  int split_units = 0;
  for (int i = begin; i < end; ++i) split_units += PartOf(s, i).Units(s);
  int slot = WarpSumBefore(split_units, lane), units = 0;
  const int first_slot = slot;
  for (int i = begin; i < end; ++i) {
    const AttentionPart part = PartOf(s, i);
    slot += part.Units(s);
    units += slot <= s.slots ? part.Units(s) : part.tiles * s.kv_heads;
  }
  const int before = WarpSumBefore(units, lane);
  const bool mine = index >= before && index < before + units;
  AttentionUnit unit = {.sequence = -1};
  if (mine) {
    int offset = index - before;
    slot = first_slot;
    for (int i = begin; i < end; ++i) {
      const AttentionPart part = PartOf(s, i);
      const bool split = slot + part.Units(s) <= s.slots;
      const int here = split ? part.Units(s) : part.tiles * s.kv_heads;
      if (offset < here) {
        const int j = offset / s.kv_heads;
        unit = {.sequence = i,
                // Later tiles see more keys: longest first.
                .tile = split ? j / part.splits : part.tiles - 1 - j,
                .kv_head = offset % s.kv_heads,
                .split = split ? j % part.splits : -1,
                .slot = slot + offset};
        break;
      }
      offset -= here;
      slot += part.Units(s);
    }
  }
  const unsigned owner = __ballot_sync(~0u, mine);
  if (owner == 0) return {.sequence = -1};
  const int from = __ffs(static_cast<int>(owner)) - 1;
  return {.sequence = __shfl_sync(~0u, unit.sequence, from),
          .tile = __shfl_sync(~0u, unit.tile, from),
          .kv_head = __shfl_sync(~0u, unit.kv_head, from),
          .split = __shfl_sync(~0u, unit.split, from),
          .slot = __shfl_sync(~0u, unit.slot, from)};
}

// The slot of (tile 0, split 0, key-value head 0) of a sequence; −1: its tiles see all keys at
// once, or are another launch's. Called by a whole warp.
__device__ inline int FirstSlot(const AttentionSchedule& s, int sequence) {
  int sum = 0;
  for (int i = threadIdx.x % 32; i < sequence; i += 32) sum += PartOf(s, i).Units(s);
  sum = __reduce_add_sync(~0u, sum);
  const int units = PartOf(s, sequence).Units(s);
  return units > 0 && sum + units <= s.slots ? sum : -1;
}

// Which keys a tile sees.
struct TileKeys {
  int begin_row = 0, end_row = 0;  // of the tile, in rows · group + head of the group
  int first_position = 0;          // of its first row
  int begin = 0, end = 0;          // keys
  int first_split = 0, splits = 0;
};
__device__ __forceinline__ TileKeys KeysOf(const AttentionSchedule& s, int sequence, int tile) {
  const int rows = s.rows[sequence], start = s.kv_len[sequence] - rows;
  TileKeys k;
  k.begin_row = tile * s.tile_rows;
  k.end_row = min(k.begin_row + s.tile_rows, rows * s.group);
  k.first_position = start + k.begin_row / s.group;
  k.begin = s.window > 0 ? max(0, k.first_position - s.window + 1) : 0;
  k.end = start + (k.end_row - 1) / s.group + 1;
  k.first_split = k.begin / s.split_keys;
  k.splits = (k.end - 1) / s.split_keys - k.first_split + 1;
  return k;
}

}  // namespace switchyard::cuda
