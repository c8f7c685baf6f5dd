// Driver of SelectKeys, and InheritKeys. First, tasks score blocks of keys for a few query rows.
// Then each row selects its keys. Rows are processed in waves, so that the scores of a long prompt
// need bounded memory.
#include <algorithm>
#include <bit>
#include <functional>
#include <utility>
#include <vector>

#include "core/check.h"
#include "kernels/cache_rows.h"
#include "kernels/cpu/driver.h"
#include "kernels/ops.h"
#include "kernels/reference.h"

namespace switchyard::kernels {
namespace {

constexpr int32_t kTileRows = 16;                  // query rows that share converted keys
constexpr int64_t kBlockKeys = 128;                // keys that a task scores
constexpr int64_t kWaveScores = int64_t{1} << 22;  // scores of a wave, unless one tile has more

// Some query rows of a sequence, and the place of their scores [rows, keys] in the wave's.
struct Tile {
  const SequenceSpan* sequence = nullptr;
  int32_t begin = 0, end = 0;  // rows of the sequence
  int64_t scores = 0;

  int64_t rows() const { return end - begin; }
  int64_t KeysOf(int64_t row) const { return sequence->kv_len - sequence->rows + row + 1; }
  int64_t keys() const { return KeysOf(end - 1); }
};

struct Block {
  int32_t tile = 0;
  int64_t begin = 0;  // its first key
};

struct Wave {
  std::vector<Tile> tiles;
  std::vector<Block> blocks;
  std::vector<std::pair<int32_t, int32_t>> rows;  // tile, row of its sequence
  int64_t scores = 0;

  void Clear() {
    tiles.clear();
    blocks.clear();
    rows.clear();
    scores = 0;
  }
  void Add(Tile tile) {
    const auto index = static_cast<int32_t>(tiles.size());
    tile.scores = scores;
    scores += tile.rows() * tile.keys();
    for (int64_t key = 0; key < tile.keys(); key += kBlockKeys) blocks.push_back({index, key});
    for (int32_t row = tile.begin; row < tile.end; ++row) rows.emplace_back(index, row);
    tiles.push_back(tile);
  }
};

// A number with the order of the scores. 0 and −0 are equal, and NaN is the lowest.
uint32_t OrderOf(float score) {
  if (score != score) return 0;
  const auto bits = std::bit_cast<uint32_t>(score + 0.0f);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// Each key's score is summed over the heads in ascending order, and each product over the elements
// in the order of Linear. So it does not depend on the tile or on the block.
void ScoreBlock(const SelectKeysParams& p, const cpu::KernelTable& kernels, const Tile& tile,
                int64_t first, float* scores) {
  const int64_t count = std::min(kBlockKeys, tile.keys() - first);
  float* const keys =
      cpu::ThreadScratch(kBlockKeys * (p.head_dim + p.heads) + cpu::LinearScratch(p.head_dim));
  float* const products = keys + kBlockKeys * p.head_dim;  // [heads, kBlockKeys]
  float* const scratch = products + kBlockKeys * p.heads;
  const int64_t row_bytes = CacheRowBytes(p.kv_dtype, p.head_dim);
  for (int64_t j = 0; j < count; ++j) {
    const int64_t slot = tile.sequence->SlotOf(first + j, p.page_size);
    ReadCacheRow(p.kv_dtype, static_cast<const char*>(p.cache) + slot * row_bytes, p.head_dim,
                 keys + j * p.head_dim);
  }
  const WeightView matrix = {.format = WeightFormat::kF32,
                             .data = keys,
                             .stored_k = p.head_dim,
                             .n = count,
                             .k = p.head_dim};
  for (int32_t row = tile.begin; row < tile.end; ++row) {
    const int64_t place = tile.sequence->row_begin + row;
    kernels.linear({.w = cpu::MakeRef(matrix),
                    .x = {p.q + place * p.ldq, p.head_dim, nullptr},
                    .codes = {},
                    .m = p.heads,
                    .begin = 0,
                    .end = count,
                    .bias = nullptr,
                    .y = products,
                    .ldy = kBlockKeys,
                    .accumulate = false,
                    .scratch = scratch});
    float* const out = scores + tile.scores + (row - tile.begin) * tile.keys() + first;
    std::fill_n(out, count, 0.0f);
    for (int64_t h = 0; h < p.heads; ++h) {
      const float weight = p.weights[place * p.heads + h];
      const float* const product = products + h * kBlockKeys;
      for (int64_t j = 0; j < count; ++j)
        out[j] += weight * (product[j] < 0.0f ? 0.0f : product[j]);
    }
  }
}

void SelectRow(const SelectKeysParams& p, const Tile& tile, int32_t row, const float* scores) {
  const int64_t keys = tile.KeysOf(row);
  const float* const of_row = scores + tile.scores + (row - tile.begin) * tile.keys();
  auto* const order = reinterpret_cast<uint32_t*>(cpu::ThreadScratch(keys));
  for (int64_t j = 0; j < keys; ++j) order[j] = OrderOf(of_row[j]);
  std::nth_element(order, order + p.topk - 1, order + keys, std::greater());
  const uint32_t lowest = order[p.topk - 1];  // of the selected scores
  int64_t equal =
      p.topk - std::count_if(order, order + p.topk, [&](uint32_t value) { return value > lowest; });
  int32_t* to = p.selected + (tile.sequence->row_begin + row) * p.topk;
  for (int64_t j = 0; j < keys; ++j) {
    const uint32_t value = OrderOf(of_row[j]);
    if (value < lowest || (value == lowest && equal-- <= 0)) continue;
    *to++ = static_cast<int32_t>(tile.sequence->SlotOf(j, p.page_size));
  }
}

void RunWave(const SelectKeysParams& p, const cpu::KernelTable& kernels, const Wave& wave,
             ThreadPool& pool) {
  auto* const scores =
      reinterpret_cast<float*>(cpu::OpScratch(wave.scores * static_cast<int64_t>(sizeof(float))));
  cpu::RunTasks(pool, std::ssize(wave.blocks), [&](int64_t i) {
    const Block& block = wave.blocks[i];
    ScoreBlock(p, kernels, wave.tiles[block.tile], block.begin, scores);
  });
  cpu::RunTasks(pool, std::ssize(wave.rows), [&](int64_t i) {
    const auto& [tile, row] = wave.rows[i];
    SelectRow(p, wave.tiles[tile], row, scores);
  });
}

}  // namespace

void SelectKeys(const SelectKeysParams& p, ThreadPool& pool) {
  CHECK(p.topk > 0 && IsCacheType(p.kv_dtype));
  const cpu::KernelTable* kernels = cpu::ActiveKernels();
  if (kernels == nullptr) return reference::SelectKeys(p);
  static thread_local Wave kept;
  Wave& wave = kept;  // the calling thread's object, read by the tasks of all threads
  wave.Clear();
  for (const SequenceSpan& s : p.sequences) {
    const int64_t before = s.kv_len - s.rows;
    for (auto row = static_cast<int32_t>(std::clamp<int64_t>(p.topk - before, 0, s.rows));
         row < s.rows; row += kTileRows) {
      const Tile tile = {.sequence = &s, .begin = row, .end = std::min(s.rows, row + kTileRows)};
      if (!wave.tiles.empty() && wave.scores + tile.rows() * tile.keys() > kWaveScores) {
        RunWave(p, *kernels, wave, pool);
        wave.Clear();
      }
      wave.Add(tile);
    }
  }
  if (!wave.tiles.empty()) RunWave(p, *kernels, wave, pool);
}

// A row may take the place of another one's parent, so all rows are collected before any is stored.
void InheritKeys(const InheritKeysParams& p, ThreadPool& pool) {
  struct Row {
    const SequenceSpan* sequence;
    int64_t place, keys;
  };
  std::vector<Row> rows;  // those with more than topk keys
  for (const SequenceSpan& s : p.sequences)
    for (int64_t row = 0; row < s.rows; ++row)
      if (const int64_t keys = s.kv_len - s.rows + row + 1; keys > p.topk)
        rows.push_back({&s, s.row_begin + row, keys});
  if (rows.empty()) return;
  auto* const collected = reinterpret_cast<int32_t*>(
      cpu::OpScratch(std::ssize(rows) * p.topk * static_cast<int64_t>(sizeof(int32_t))));
  cpu::RunTasks(pool, std::ssize(rows), [&](int64_t i) {
    const Row& row = rows[i];
    int32_t* const to = collected + i * p.topk;
    if (row.keys > p.topk + 1) {
      std::copy_n(p.selected + p.parents[row.place] * p.topk, p.topk, to);
    } else {
      for (int64_t j = 0; j < p.topk; ++j)
        to[j] = static_cast<int32_t>(row.sequence->SlotOf(j, p.page_size));
    }
  });
  cpu::RunTasks(pool, std::ssize(rows), [&](int64_t i) {
    std::copy_n(collected + i * p.topk, p.topk, p.selected + rows[i].place * p.topk);
  });
}

}  // namespace switchyard::kernels
