// Tuning parameters of the CPU kernels, with their reasons: tile sizes, thresholds between code
// paths, prefetch distances. None of them changes a bit of a result.
#pragma once

#include <cstdint>

namespace switchyard::kernels::cpu {

// Float32 products (simd/linear.h): weight rows converted at a time, and columns per pass of a
// register tile. In a pass, a tile's rows of x stay in L1, and the 32 × 1024 part of the panel in
// L2.
constexpr int64_t kPanelRows = 32;
constexpr int64_t kPanelDepth = 1024;
// Rows of x that are multiplied with 1024 columns of a panel in L2 before the next 1024 columns. In
// bfloat16 (avx512/bf16_rows.cc): rows of x that stay in L2 while a task's weights stream through.
constexpr int64_t kPanelBatch = 96;
// Maximum number of row tiles for which weights are converted inside the product. Repeating a cheap
// conversion per tile costs less than writing a panel to L2 and reading it back.
constexpr int64_t kDirectTiles16Bits = 6, kDirectTiles8Bits = 2;
// Prefetch distance of weights in bytes, over all rows of a tile together: more than a core reads
// during one memory access. With half the distance, one thread on Zen 4 lost a tenth to a quarter
// of memory bandwidth; twice as much gave no gain.
constexpr int64_t kPrefetchBytes = 8192;
// Prefetch distance in bytes if several tiles prefetch in turns (simd/weight_prefetch.h): a
// minimum, rounded up to whole blocks of weight rows.
constexpr int64_t kBlockPrefetchBytes = 16384;

// Bfloat16 products of few rows of x: weight rows of at most this many bytes are multiplied several
// at a time and without prefetches. The lanes of 16 products are then reduced together. One by one
// this would take about as long as the products of such a short row. Longer rows stream faster one
// after another.
constexpr int64_t kShortRowBytes = 1024;

// Int8 products of few rows of x with unpacked weights (avx512/int8_vnni.cc): weight rows per tile.
// Up to kInt8SingleStreamRows rows of x a tile has one weight row, which hardware prefetches
// fastest. Measured against four weight rows: 1.2 to 1.3 times as fast with 1 and 2 rows of x, 1.1
// to 1.2 times with 3 and 4. With more rows of x, reloading x for each weight row leaves a core no
// load slots to read ahead. Up to kInt8NoPrefetchRows rows, software prefetch takes more time than
// it saves.
constexpr int kInt8SingleStreamRows = 5, kInt8NoPrefetchRows = 2;

// Weight rows of at most kShortInt8Row codes are multiplied several at a time and without
// prefetches, as short rows of bfloat16. The reduction of a tile's lanes takes longer than the
// products of such a row, and with one weight row per tile most of it is wasted. With at most
// kShortInt8Rows rows of x, AVX-512 reduces sixteen products together, one row of x after another.
constexpr int64_t kShortInt8Row = 512, kShortInt8Rows = 4;

// Weight panels (avx512/panels.h): outputs per panel, halved if the panel would exceed
// kMaxPanelBytes. With K = 2048 in int8 a panel is 128 KiB, an eighth to a half of an L2 cache.
// The same amount of the next panel is prefetched meanwhile. Halving was not measured.
constexpr int64_t kMaxPanelCols = 64;
constexpr int64_t kMaxPanelBytes = int64_t{512} << 10;
// Below this number of rows of x, products use unpacked weights. Packing 1 KiB of weights takes as
// long as multiplying it with about five rows of x. Packing saves a fifth of each product's time,
// because sums need no reduction across lanes. Measured: 16 rows are equally fast either way, 20
// rows a tenth faster in panels.
constexpr int64_t kInt8PanelMinRows = 20;
// Prefetch of weight rows while packing: distance in bytes (past a row's end: into the rows packed
// next), and bytes per burst. Sixteen parallel rows are more streams than the hardware prefetcher
// tracks. Bursts of 512 bytes were a tenth faster than single lines.
constexpr int64_t kPackPrefetchDistance = 1024, kPackPrefetchBytes = 512;

// Products of few int8 rows with stored panels (simd/stored_panels.h): prefetch distance beyond the
// scales of a panel. Measured on Zen 5 with one row of MXFP4, of 41 GB/s: 29 GB/s with 2 KiB, 33
// with 4, 35 with 8, and 31 if the next panel is prefetched evenly. 16 KiB is slower than 8 with
// two rows (36 against 39), and equal with four.
constexpr int64_t kStreamPrefetchBytes = 8192;

// Products of many int8 rows with stored panels (simd/wide_panels.h): from kWideMinRows rows of x
// on. kWideBatch rows of x stay in L2 while a task's panels stream through. kWidePartBytes of codes
// stay in L1 while all tiles of a batch are multiplied with them.
constexpr int64_t kWideMinRows = 9, kWideBatch = 96;
constexpr int64_t kWidePartBytes = int64_t{16} << 10;

// AMX tiles, from Intel's throughput figures; not measured yet. A product of 16 rows of x with 1
// KiB of weights takes 16 cycles; packing 1 KiB of either operand takes about 64 (shuffles, one per
// cycle). x is packed, once per task, if it has at most kTilesMaxPackedRows rows and no more rows
// than the task has weight rows. With 128 weight rows, packing x adds 8 cycles to each such
// product. Packing weights (amx/tile_panels.h) adds 64 cycles per KiB, once for all rows of x.
constexpr int64_t kTilesMaxPackedRows = 64;
// Int8 products of fewer rows use AVX-512 VNNI, which takes about 10 cycles per row and has no
// other cost.
constexpr int64_t kInt8TilesMinRows = 8;

// Work of a task, at least: bytes of its weights times rows of x. A task of this size takes about
// 0.2 µs, in which a core reads a few cache lines of another core. Products of less than two such
// tasks run on the calling thread.
constexpr int64_t kTaskWork = 40'000;

// Columns per task of an expert's products. Many columns make long weight streams and amortise the
// preparation of x rows: 512 against 128 saves 2 to 7 % of an int8 layer's time at 32 to 512
// tokens. A task is at most 1 / kExpertTasksPerThread of a thread's even share. One token's few
// experts, or one expert chosen by all tokens, then still occupy every thread.
constexpr int64_t kMinExpertColumns = 128, kMaxExpertColumns = 512;
constexpr int64_t kExpertTasksPerThread = 8;
// Products of experts with at most kFewExpertRows rows take the time in which their weights are
// read, so that an idle thread is lost bandwidth. Their tasks are halved, down to the height of a
// weight panel, until at most an eighth of the threads' time is idle. One expert of 1536 × 4096 on
// 15 threads has 12 tasks of 128 columns, or 96 of 16. Not measured yet.
constexpr int64_t kFewExpertRows = 4, kFinestExpertColumns = 16;
// Returns the columns per task. `rows`: rows of all experts. `max_expert_rows`: rows of the expert
// with the most rows, at least 1. `prepares`: each task prepares rows of x, as AMX tiles do for
// bfloat16 rows, so that small tasks would cost more than idle threads. All blocks of an expert
// have equal size except the last; the size is a multiple of kFinestExpertColumns. Always inline:
// see kernel_table.h.
[[gnu::always_inline]] constexpr int64_t ExpertTaskColumns(int64_t rows, int64_t max_expert_rows,
                                                           int64_t width, int threads,
                                                           bool prepares = false) {
  int64_t most = rows * width / (kExpertTasksPerThread * threads * max_expert_rows);
  if (most < kMinExpertColumns) most = kMinExpertColumns;
  if (most > kMaxExpertColumns) most = kMaxExpertColumns;
  most -= most % kMinExpertColumns;
  const int64_t blocks = (width + most - 1) / most;
  if (blocks < 1) return kMinExpertColumns;
  const int64_t each = (width + blocks - 1) / blocks;
  int64_t columns = (each + kMinExpertColumns - 1) / kMinExpertColumns * kMinExpertColumns;
  if (prepares || max_expert_rows > kFewExpertRows) return columns;
  const int64_t experts = rows < max_expert_rows ? 1 : rows / max_expert_rows;  // at least
  while (columns % (2 * kFinestExpertColumns) == 0) {
    const int64_t tasks = experts * ((width + columns - 1) / columns);
    const int64_t turns = (tasks + threads - 1) / threads;  // of the busiest thread
    if (8 * tasks >= 7 * turns * threads) break;
    columns /= 2;
  }
  return columns;
}

// Attention: the keys of a sequence are split over threads if a task of its query rows would exceed
// a thread's even share / kKeyPartTasks. Tasks are then small enough that threads finish at about
// the same time.
constexpr int64_t kKeyPartTasks = 2;
// Limit of partial sums in floats (64 MiB). Calls over the limit do not split keys; they have
// enough tasks anyway.
constexpr int64_t kMaxPartialFloats = int64_t{16} << 20;

}  // namespace switchyard::kernels::cpu
