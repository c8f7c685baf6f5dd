#include "kernels/cpu/heuristics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/simd/weight_prefetch.h"

namespace switchyard::kernels::cpu {
namespace {

TEST(HeuristicsTest, PanelsAreWholePartsOfATask) {
  // A task that ends inside a panel would leave part of its registers idle.
  EXPECT_EQ(kMinExpertColumns % kMaxPanelCols, 0);
  EXPECT_EQ(kMinExpertColumns % kPanelRows, 0);
}

TEST(HeuristicsTest, PanelsOfUsualDepthsFitTheCaches) {
  constexpr int64_t kL2 = 1 << 20, kDeep = 4096;
  // The current panel and the prefetched next one leave half of L2 for rows of x.
  EXPECT_LE(2 * kMaxPanelCols * kDeep, kL2 / 2);
  EXPECT_LE(kPanelRows * kDeep * static_cast<int64_t>(sizeof(float)), kL2 / 2);
}

TEST(HeuristicsTest, PackingCostsLittlePerRow) {
  constexpr int64_t kRowsThatPackingCosts = 5;
  EXPECT_GE(kInt8PanelMinRows, 4 * kRowsThatPackingCosts);
}

TEST(HeuristicsTest, FewRowsOfXAreWholeTiles) {
  constexpr int64_t kTileRows = 16;
  EXPECT_EQ(kTilesMaxPackedRows % kTileRows, 0);
  // Packing x must cost less than packing a task's weights would.
  EXPECT_LE(kTilesMaxPackedRows, kMinExpertColumns);
  EXPECT_LT(kInt8TilesMinRows, kTilesMaxPackedRows);
}

TEST(HeuristicsTest, NothingBeyondATasksRowsIsPrefetched) {
  constexpr int kRows = 4;
  constexpr int64_t kBytes = 8192;
  for (const int64_t row_bytes : {0, 1, 40, 1024, 2000, 2048, 2049, 7168}) {
    for (const int64_t gap : {0, 8}) {
      for (int64_t left = 1; left < 300; left += 7) {
        const int64_t stride = row_bytes + gap;
        const simd::WeightPrefetch<int, kRows, kBytes> ahead(row_bytes, stride, left);
        for (int64_t at = 0; at < row_bytes; at += 3) {
          const int64_t place = at + ahead.Of(at);
          ASSERT_GE(place, at);
          ASSERT_LT(place, left * stride) << row_bytes << " " << left << " " << at;
          // The target is inside a row, not in the gap between two rows.
          ASSERT_LT(place % stride, row_bytes);
        }
      }
    }
  }
}

TEST(HeuristicsTest, WeightsArePrefetchedAtTheGivenDistance) {
  constexpr int64_t kRow = 2048, kMany = 1000;
  // With one stream the target is four rows ahead. With four streams it is in the next four rows.
  EXPECT_EQ((simd::WeightPrefetch<int, 1, 4 * kRow>(kRow, kRow, kMany).Of(0)), 4 * kRow);
  EXPECT_EQ((simd::WeightPrefetch<int, 4, 4 * kRow>(kRow, kRow, kMany).Of(64)), 4 * kRow);
  // If a row is longer than the distance, the target is in the same row. For the last part of the
  // row, the target is at the start of the next row.
  const simd::WeightPrefetch<int, 1, kRow> deep(2 * kRow, 3 * kRow, kMany);
  EXPECT_EQ(deep.Of(0), kRow);
  EXPECT_EQ(kRow + deep.Of(kRow), 3 * kRow);
}

TEST(HeuristicsTest, ExpertsArePartitionedSoThatEveryThreadHasTasks) {
  constexpr int64_t kWidth = 1024;
  // Balanced experts have tasks of 512 columns while there are enough tasks.
  EXPECT_EQ(ExpertTaskColumns(256, 4, kWidth, 2), 512);
  EXPECT_EQ(ExpertTaskColumns(8, 1, kWidth, 2), 512) << "a token's eight experts: 16 tasks";
  EXPECT_EQ(ExpertTaskColumns(8, 1, kWidth, 4), 256);
  EXPECT_EQ(ExpertTaskColumns(8, 1, kWidth, 64), 128);
  // An expert with half of all rows gets smaller tasks.
  EXPECT_EQ(ExpertTaskColumns(256, 128, kWidth, 2), 128);
  EXPECT_EQ(ExpertTaskColumns(256, 256, kWidth, 1), 128);
  // No task exceeds its share, although blocks are multiples of 128 columns.
  EXPECT_EQ(ExpertTaskColumns(255, 81, kWidth, 2), 128) << "201 columns are allowed";
  EXPECT_EQ(ExpertTaskColumns(8, 1, 0, 2), 128) << "an empty shard";
  // All blocks of an expert have equal size.
  EXPECT_EQ(ExpertTaskColumns(256, 4, 768, 2), 384);
  EXPECT_EQ(ExpertTaskColumns(256, 4, 1408, 2), 512);
  EXPECT_EQ(ExpertTaskColumns(256, 4, 64, 2), 128);
}

// A decode step of one token, in which a rank computes one expert.
TEST(HeuristicsTest, FewRowsOccupyEveryThread) {
  EXPECT_EQ(ExpertTaskColumns(1, 1, 1536, 15), 16);
  EXPECT_EQ(ExpertTaskColumns(1, 1, 4096, 15), 32);
  EXPECT_EQ(ExpertTaskColumns(2, 1, 1536, 12), 128) << "two tasks for each thread";
  EXPECT_EQ(ExpertTaskColumns(64, 64, 1536, 15), 128) << "many rows";
  EXPECT_EQ(ExpertTaskColumns(1, 1, 1536, 15, /*prepares=*/true), 128);
  for (const int threads : {1, 2, 5, 15, 47, 96})
    for (const int64_t width : {64, 704, 1536, 2880, 7168})
      for (const int64_t experts : {1, 3, 8}) {
        const int64_t columns = ExpertTaskColumns(experts, 1, width, threads);
        EXPECT_EQ(columns % kFinestExpertColumns, 0);
        const int64_t tasks = experts * ((width + columns - 1) / columns);
        const int64_t turns = (tasks + threads - 1) / threads;
        if (columns > kFinestExpertColumns && columns % (2 * kFinestExpertColumns) == 0) {
          EXPECT_GE(8 * tasks, 7 * turns * threads) << threads << ' ' << width << ' ' << experts;
        }
      }
}

// The last rounds of a task prefetch the rows of the next task, as if they followed in memory.
TEST(HeuristicsTest, RowsOfTheNextTaskArePrefetchedAfterTheLastOnes) {
  constexpr int kRows = 4;
  constexpr int64_t kRow = 512, kBytes = 8 * kRow, kNextTask = 1000 * kRow;
  static char weights[kNextTask];
  const auto place = [&](int64_t left) {
    const char* first = weights + (16 - left) * kRow;
    return simd::WeightPrefetch<int, kRows, kBytes>(kRow, kRow, left, first, weights + kNextTask)
               .Of(0) +
           (16 - left) * kRow;
  };
  EXPECT_EQ(place(16), 8 * kRow);
  EXPECT_EQ(place(12), 12 * kRow);
  EXPECT_EQ(place(8), kNextTask);
  EXPECT_EQ(place(4), kNextTask + 4 * kRow);
  EXPECT_EQ(place(3), kNextTask + 4 * kRow) << "the last round is one row short";
}

TEST(HeuristicsTest, InterleavedTilesPrefetchEveryLineOnce) {
  constexpr int kLines = 32;
  for (const int64_t tiles : {2, 3, 5, 11}) {
    std::array<int, kLines> prefetches{};
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const simd::PrefetchTurns turns{.ahead = 64, .own = tile, .tiles = tiles};
      simd::PrefetchLines<simd::kPrefetchInTurns> lines(turns);
      for (int& times : prefetches) times += lines.Next(turns) ? 1 : 0;
    }
    EXPECT_THAT(prefetches, ::testing::Each(1)) << tiles << " tiles";
  }
}

TEST(HeuristicsTest, BlocksArePrefetchedWholeBlocksAhead) {
  constexpr int64_t kRows = 4, kRow = 2048, kBytes = 16384, kNextTask = 1000 * kRow;
  static char weights[kNextTask];
  const auto ahead = [&](int64_t row_bytes, int64_t left, const void* next) {
    return simd::PrefetchBlockOffset<int, kBytes>(kRows, row_bytes, row_bytes, left, weights, next);
  };
  EXPECT_EQ(ahead(2 * kRow, 100, nullptr), kRows * 2 * kRow) << "one block is exactly kBytes";
  EXPECT_EQ(ahead(kRow, 100, nullptr), 2 * kRows * kRow);
  EXPECT_EQ(ahead(7168, 100, nullptr), kRows * 7168) << "one block exceeds kBytes";
  EXPECT_EQ(ahead(kRow, 8, nullptr), 0) << "beyond the end of the task";
  EXPECT_EQ(ahead(kRow, 9, nullptr), 8 * kRow);
  // The last blocks prefetch the first blocks of the next task.
  EXPECT_EQ(ahead(kRow, 8, weights + kNextTask), kNextTask);
  EXPECT_EQ(ahead(kRow, 4, weights + kNextTask), kNextTask + 4 * kRow);
  EXPECT_EQ(ahead(kRow, 3, weights + kNextTask), kNextTask + 4 * kRow);
}

TEST(HeuristicsTest, PartsOfKeysAreWholeBlocks) {
  // If a part were not whole blocks, the grouping of keys into blocks would depend on where a task
  // begins.
  EXPECT_EQ(kKeyPart % kKeyBlock, 0);
}

}  // namespace
}  // namespace switchyard::kernels::cpu
