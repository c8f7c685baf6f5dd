// Problem: the exact top-k of the scores of each query row (SelectKeys of kernels/ops.h and
// SelectEntries of kernels/compressed.h), selected keys of earlier rows (InheritKeys), and the
// table of attention to the selected keys. Tiling: one block of 1024 threads for each row.
// Pipeline: none. The lowest selected score is found in four passes over the scores, eight bits in
// each (radix selection). A last pass stores the slots in the order of their positions.
// Measured: not measured.
#include <algorithm>

#include "core/cuda/runtime.h"
#include "kernels/cuda/attention/attention_schedule.cuh"
#include "kernels/cuda/attention/select_keys.cuh"
#include "kernels/cuda/attention/select_keys.h"

namespace switchyard::cuda {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / 32;
constexpr int kDigits = 256;
constexpr int64_t kMaxRows = 65535;  // of a wave: the largest height of a grid

struct Shared {
  int counts[kDigits];  // keys with a digit
  int digit, wanted;
  // For each warp, the number of keys above the lowest score, and 2^16 times the number of keys
  // with it. Rounds alternate between two buffers.
  unsigned of_warps[2][kWarps];
};

// The lowest selected score, and how many of the keys with this score are selected.
struct Lowest {
  uint32_t score;
  int equal;
};

__device__ Lowest FindLowest(const uint32_t* scores, int keys, int topk, Shared& shared) {
  const int lane = threadIdx.x % 32;
  uint32_t prefix = 0;
  int wanted = topk;
  for (int shift = 24; shift >= 0; shift -= 8) {
    if (threadIdx.x < kDigits) shared.counts[threadIdx.x] = 0;
    __syncthreads();
    for (int begin = 0; begin < keys; begin += kThreads) {
      const int key = begin + static_cast<int>(threadIdx.x);
      const uint32_t score = key < keys ? scores[key] : 0;
      const bool counts = key < keys && (score >> shift >> 8) == prefix;
      const unsigned lanes = __ballot_sync(~0u, counts);
      if (!counts) continue;
      // One addition for all lanes with the same digit, because most scores share a few exponents.
      const uint32_t digit = score >> shift & (kDigits - 1);
      const unsigned same = __match_any_sync(lanes, digit);
      if (lane == __ffs(static_cast<int>(same)) - 1) atomicAdd(&shared.counts[digit], __popc(same));
    }
    __syncthreads();
    if (threadIdx.x < 32) {
      constexpr int kEach = kDigits / 32;
      const int highest = kDigits - 1 - kEach * lane;  // of this lane's digits
      int sum = 0;
#pragma unroll
      for (int i = 0; i < kEach; ++i) sum += shared.counts[highest - i];
      int before = WarpSumBefore(sum, lane);
      if (before < wanted && wanted <= before + sum) {
        int digit = highest;
        for (; before + shared.counts[digit] < wanted; --digit) before += shared.counts[digit];
        shared.digit = digit;
        shared.wanted = wanted - before;
      }
    }
    __syncthreads();
    prefix = prefix << 8 | static_cast<uint32_t>(shared.digit);
    wanted = shared.wanted;
  }
  return {prefix, wanted};
}

// Stores the slots of the keys above the lowest score, and of the first `equal` ones with it.
__device__ void StoreSelected(const KeySelection& p, int row, int keys, const Lowest& lowest,
                              Shared& shared) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const unsigned earlier_lanes = (1u << lane) - 1;
  const int sequence = p.table.row_sequence[row];
  const uint32_t* const scores = p.ScoresOf(row);
  int32_t* const to = p.selected + int64_t{row} * p.topk;
  int above = 0, same = 0;  // among the keys of earlier rounds
  for (int begin = 0, buffer = 0; begin < keys; begin += kThreads, buffer ^= 1) {
    const int key = begin + static_cast<int>(threadIdx.x);
    const uint32_t score = key < keys ? scores[key] : 0;
    const bool is_above = key < keys && score > lowest.score;
    const bool is_same = key < keys && score == lowest.score;
    const unsigned above_lanes = __ballot_sync(~0u, is_above);
    const unsigned same_lanes = __ballot_sync(~0u, is_same);
    if (lane == 0)
      shared.of_warps[buffer][warp] =
          static_cast<unsigned>(__popc(above_lanes) | __popc(same_lanes) << 16);
    __syncthreads();
    const unsigned of_lane = shared.of_warps[buffer][lane];
    const unsigned all = __reduce_add_sync(~0u, of_lane);
    const unsigned before = __reduce_add_sync(~0u, lane < warp ? of_lane : 0u);
    const int same_before =
        same + static_cast<int>(before >> 16) + __popc(same_lanes & earlier_lanes);
    if (is_above || (is_same && same_before < lowest.equal)) {
      const int above_before =
          above + static_cast<int>(before & 0xffff) + __popc(above_lanes & earlier_lanes);
      to[above_before + min(same_before, lowest.equal)] = p.ResultOf(sequence, key);
    }
    above += static_cast<int>(all & 0xffff);
    same += static_cast<int>(all >> 16);
    if (above + min(same, lowest.equal) == p.topk) break;
  }
}

__global__ void __launch_bounds__(kThreads) SelectRows(const __grid_constant__ KeySelection p) {
  __shared__ Shared shared;
  const int row = p.first_row + static_cast<int>(blockIdx.x), keys = p.KeysOf(row);
  if (keys > p.topk) {
    const Lowest lowest = FindLowest(p.ScoresOf(row), keys, p.topk, shared);
    return StoreSelected(p, row, keys, lowest, shared);
  }
  for (int key = static_cast<int>(threadIdx.x); key < keys; key += kThreads)
    p.selected[int64_t{row} * p.topk + key] = p.ResultOf(p.table.row_sequence[row], key);
}

// Some columns of the selected keys that rows take from their parents.
struct Inheritance {
  KeySelection rows;  // of the batch; `selected` has the keys of the parents, later those of rows
  const int32_t* parents = nullptr;
  int32_t* collected = nullptr;  // [rows, columns]
  int first = 0, columns = 0;

  // The end of the row's columns that have a key.
  __device__ int EndOf(int keys) const { return min(first + columns, min(keys, rows.topk)); }
};

__global__ void __launch_bounds__(kThreads) CollectKeys(const __grid_constant__ Inheritance p) {
  const int row = static_cast<int>(blockIdx.x), keys = p.rows.KeysOf(row), topk = p.rows.topk;
  if (keys == 0) return;
  const int sequence = p.rows.table.row_sequence[row];
  // The parent of a row with topk + 1 keys may be from a pass without a selection.
  const int32_t* const of_parent =
      keys > topk + 1 ? p.rows.selected + int64_t{p.parents[row]} * topk : nullptr;
  int32_t* const to = p.collected + int64_t{row} * p.columns;
  for (int key = p.first + static_cast<int>(threadIdx.x); key < p.EndOf(keys); key += kThreads)
    to[key - p.first] = of_parent != nullptr ? of_parent[key] : p.rows.SlotOf(sequence, key);
}

__global__ void __launch_bounds__(kThreads) StoreKeys(const __grid_constant__ Inheritance p) {
  const int row = static_cast<int>(blockIdx.x), keys = p.rows.KeysOf(row);
  const int32_t* const from = p.collected + int64_t{row} * p.columns;
  int32_t* const to = p.rows.selected + int64_t{row} * p.rows.topk;
  for (int key = p.first + static_cast<int>(threadIdx.x); key < p.EndOf(keys); key += kThreads)
    to[key] = from[key - p.first];
}

// Fills the columns of the tables of SelectedSequences, [4, num_rows].
__global__ void FillColumns(SequenceTable table, int topk, int32_t* columns) {
  const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int rows = table.num_rows;
  if (row >= rows) return;
  const int sequence = table.row_sequence[row];
  int keys = 0;
  if (sequence >= 0)
    keys = table.kv_len[sequence] - table.rows[sequence] + row - table.row_begin[sequence] + 1;
  columns[row] = row % kSelectedRows;
  columns[rows + row] = sequence >= 0 ? 1 : 0;
  columns[2 * rows + row] = min(keys, topk);
  columns[3 * rows + row] = sequence >= 0 ? row % kSelectedRows : -1;
}

// nvcc does not compile CHECK.
void Require(bool holds) {
  Check(holds ? cudaSuccess : cudaErrorInvalidValue, "arguments of the selection of keys");
}

bool Aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

bool HasTiles(DType dtype, int64_t width, bool exact) {
  return !exact && dtype == DType::kBF16 && width % 16 == 0;
}

// Enqueues the kernels of all waves of rows. `all`: the fields that waves share.
void Select(const KeySelection& all, bool tiles, cudaStream_t stream,
            std::span<std::byte> scratch) {
  const SequenceTable& table = all.table;
  if (table.num_sequences == 0 || table.num_rows == 0) return;
  Require(all.kv_dtype == DType::kF32 || all.kv_dtype == DType::kBF16 ||
          all.kv_dtype == DType::kF16);
  Require(all.heads > 0 && all.head_dim > 0 && all.topk > 0);
  Require(!tiles || (Aligned(all.q) && Aligned(all.cache) && all.ldq % 4 == 0));
  const int64_t positions = int64_t{table.max_pages} * table.page_size;
  Require(positions > 0 && positions <= int64_t{1} << 30);
  const int64_t most_keys = std::max<int64_t>(all.ratio > 0 ? positions / all.ratio : positions, 1);
  const auto room = static_cast<int64_t>(scratch.size() / sizeof(uint32_t));
  const int64_t rows = std::min({int64_t{table.num_rows}, room / most_keys, kMaxRows});
  Require(rows > 0);
  KeySelection wave = all;
  wave.scores = reinterpret_cast<uint32_t*>(scratch.data());
  wave.most_keys = most_keys;
  for (int64_t first = 0; first < table.num_rows; first += rows) {
    wave.first_row = static_cast<int32_t>(first);
    wave.rows = static_cast<int32_t>(std::min(rows, table.num_rows - first));
    Check(StartIndexScores(wave, tiles, stream), "scores of the index");
    SelectRows<<<wave.rows, kThreads, 0, stream>>>(wave);
    Check(cudaGetLastError(), "selection of keys");
  }
}

}  // namespace

void SelectKeys(const kernels::SelectKeysParams& p, const SequenceTable& table, bool exact,
                cudaStream_t stream, std::span<std::byte> scratch) {
  Select({.q = p.q,
          .ldq = p.ldq,
          .weights = p.weights,
          .cache = p.cache,
          .stride = p.head_dim,
          .kv_dtype = p.kv_dtype,
          .heads = static_cast<int>(p.heads),
          .head_dim = static_cast<int>(p.head_dim),
          .topk = static_cast<int>(p.topk),
          .table = table,
          .selected = p.selected},
         HasTiles(p.kv_dtype, p.head_dim, exact), stream, scratch);
}

// A row may take the place of another one's parent. So all rows of some columns are collected
// before any is stored.
void InheritKeys(const kernels::InheritKeysParams& p, const SequenceTable& table,
                 cudaStream_t stream, std::span<std::byte> scratch) {
  if (table.num_sequences == 0 || table.num_rows == 0) return;
  const auto room = static_cast<int64_t>(scratch.size() / sizeof(int32_t));
  const int64_t columns = std::min(p.topk, room / table.num_rows);
  Require(columns > 0);
  Inheritance part = {
      .rows = {.topk = static_cast<int>(p.topk), .table = table, .selected = p.selected},
      .parents = p.parents,
      .collected = reinterpret_cast<int32_t*>(scratch.data()),
      .columns = static_cast<int>(columns)};
  for (int64_t first = 0; first < p.topk; first += columns) {
    part.first = static_cast<int>(first);
    CollectKeys<<<table.num_rows, kThreads, 0, stream>>>(part);
    StoreKeys<<<table.num_rows, kThreads, 0, stream>>>(part);
    Check(cudaGetLastError(), "inherited keys");
  }
}

void SelectEntries(const kernels::SelectEntriesParams& p, const SequenceTable& table, bool exact,
                   cudaStream_t stream, std::span<std::byte> scratch) {
  const kernels::EntryPlaces& entries = p.entries;
  const auto element = static_cast<int64_t>(SizeOf(entries.dtype));
  Require(p.ratio > 0 && entries.span > 0 && entries.stride % element == 0);
  // The places of entries have no alignment of their own.
  const bool aligned =
      Aligned(entries.data) && entries.stride % 16 == 0 && Aligned(p.q) && p.ldq % 4 == 0;
  Select({.q = p.q,
          .ldq = p.ldq,
          .weights = p.weights,
          .cache = entries.data,
          .stride = entries.stride / element,
          .kv_dtype = entries.dtype,
          .ratio = static_cast<int>(p.ratio),
          .span = static_cast<int>(entries.span),
          .heads = static_cast<int>(p.heads),
          .head_dim = static_cast<int>(p.width),
          .topk = static_cast<int>(p.topk),
          .table = table,
          .selected = p.selected},
         aligned && HasTiles(entries.dtype, p.width, exact), stream, scratch);
}

void FillSelectedSequences(const SequenceTable& table, int64_t topk, std::byte* memory,
                           cudaStream_t stream) {
  Require(table.num_rows > 0);
  constexpr int kEach = 256;
  FillColumns<<<(table.num_rows + kEach - 1) / kEach, kEach, 0, stream>>>(
      table, static_cast<int>(topk), reinterpret_cast<int32_t*>(memory));
  Check(cudaGetLastError(), "sequences of selected keys");
}

SequenceTable SelectedSequences(const SequenceTable& table, const int32_t* selected, int64_t topk,
                                const std::byte* memory, int32_t first) {
  Require(first % kSelectedRows == 0);
  const int64_t all = table.num_rows;
  const auto* const columns = reinterpret_cast<const int32_t*>(memory) + first;
  const int32_t rows = std::min(table.num_rows - first, kSelectedRows);
  return {.row_begin = columns,
          .rows = columns + all,
          .kv_len = columns + 2 * all,
          .pages = selected + first * topk,
          .row_sequence = columns + 3 * all,
          .num_sequences = rows,
          .num_rows = rows,
          .max_pages = static_cast<int32_t>(topk),
          .page_size = 1,
          .max_rows = 1};
}

}  // namespace switchyard::cuda
