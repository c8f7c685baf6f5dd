// How products on CPUs are cut: rows and columns that belong together, which path takes how many
// rows, how far ahead memory is asked for, with the reasons; nothing of it changes a bit of a
// result.
#pragma once

#include <cstdint>

namespace switchyard::kernels::cpu {

// Products in float32 (simd/linear.h): weight rows converted at a time, and columns that a register
// tile runs over before it moves on: a part of the panel of 32 rows by 1024 stays in L1.
constexpr int64_t kPanelRows = 32;
constexpr int64_t kPanelDepth = 1024;
// Rows of x that share a converted panel from L2 before the next 1024 columns; in bfloat16
// (avx512/bf16_rows.cc) those that stay in L2 while a task's weights pass.
constexpr int64_t kPanelBatch = 96;
// Register tiles of rows up to which weights are converted as they are multiplied: repeating a
// cheap conversion for each costs less than a panel's way through L2.
constexpr int64_t kDirectTiles16Bits = 6, kDirectTiles8Bits = 2;
// Bytes ahead of a tile's weights that memory is asked for, all of its rows together: more than a
// core reads while one access is under way. With half of it one thread on Zen 4 had a tenth to a
// quarter less of memory's bandwidth; twice as much gave no more.
constexpr int64_t kAheadBytes = 8192;
// The same where several tiles take turns (simd/ahead.h): at least so much, in whole blocks of
// weight rows.
constexpr int64_t kBlocksAheadBytes = 16384;

// Few rows of x in int8 by weights as they lie (avx512/int8_vnni.cc). Weight rows of a tile: up to
// kInt8LoneStreamRows rows of x it is one, which hardware brings in soonest (measured 1.2 to 1.3
// times as fast as four side by side with 1 and 2 rows, 1.1 to 1.2 times with 3 and 4). With more
// the loads of x, repeated for each weight row, leave a core no room to read ahead. Up to
// kInt8UnaskedRows asking by software takes more time than it saves.
constexpr int kInt8LoneStreamRows = 5, kInt8UnaskedRows = 2;

// Panels of weights (avx512/panels.h): outputs of a panel, half of them where it would have more
// bytes than that. With K 2048 in int8 it is 128 KiB, an eighth to a half of an L2 cache, beside as
// much of the next panel that is on its way from memory. Halving was not measured.
constexpr int64_t kMostPanelCols = 64;
constexpr int64_t kMostPanelBytes = int64_t{512} << 10;
// Fewer rows of x multiply weights where they lie: packing 1 KiB of weights takes as long as about
// five rows' products with them, and saves a fifth of every product's time (sums are not added
// across lanes). Measured: 16 rows are as fast either way, 20 a tenth faster in panels.
constexpr int64_t kInt8PanelFewestRows = 20;
// Bytes of a weight row that packing asks for before it is there, at a row's end in the rows that
// it packs next, and how many at once: sixteen rows side by side are more streams than hardware
// follows. Runs of 512 bytes came a tenth faster than single lines.
constexpr int64_t kPackAhead = 1024, kAskBytes = 512;

// AMX's tiles, by Intel's figures of throughput: not measured yet. A product of 16 rows of x with 1
// KiB of weights is 16 cycles, packing the one or the other about 64 (shuffles, one a cycle). Up to
// kTilesFewRows, and to a task's weight rows, x is packed, once for the task: for 128 weight rows
// 8 cycles for each KiB of weights and 16 rows of x, where packing weights (amx/tile_panels.h)
// takes 64 for each KiB and any number of rows.
constexpr int64_t kTilesFewRows = 64;
// In int8 fewer rows take AVX-512: VNNI has about 10 cycles for each row, and adds nothing else.
constexpr int64_t kInt8TilesFewestRows = 8;

// Columns of an expert's products that are one task: many, so that streams of weights are long and
// rows of x are made ready seldom (512 against 128: 2 to 7 % of an int8 layer's time at 32 to 512
// tokens), but no task more than this part of a thread's even share, so that one token's few
// experts, and one that all tokens chose, occupy every thread.
constexpr int64_t kFewestExpertColumns = 128, kMostExpertColumns = 512;
constexpr int64_t kExpertTasksPerThread = 8;
// `rows` of all experts and of the fullest one, 1 at least; blocks of one expert are alike, but for
// the last. Always inline: see leaves.h.
[[gnu::always_inline]] constexpr int64_t ExpertTaskColumns(int64_t rows, int64_t fullest,
                                                           int64_t width, int threads) {
  int64_t most = rows * width / (kExpertTasksPerThread * threads * fullest);
  if (most < kFewestExpertColumns) most = kFewestExpertColumns;
  if (most > kMostExpertColumns) most = kMostExpertColumns;
  most -= most % kFewestExpertColumns;
  const int64_t blocks = (width + most - 1) / most;
  if (blocks < 1) return kFewestExpertColumns;
  const int64_t each = (width + blocks - 1) / blocks;
  return (each + kFewestExpertColumns - 1) / kFewestExpertColumns * kFewestExpertColumns;
}

// Attention: keys of a sequence are split over threads where a task of its query rows would be more
// than the threads' even share over this: few enough tasks that the last one ends soon after the
// others.
constexpr int64_t kKeyPartTasks = 2;
// Floats of the parts' sums, 64 MiB, beyond which keys are not split: there are tasks enough then.
constexpr int64_t kMostPartialFloats = int64_t{16} << 20;

}  // namespace switchyard::kernels::cpu
