#include "kernels/cpu/attention_partition.h"

#include <gmock/gmock.h>

#include <vector>

#include "kernels/cpu/heuristics.h"
#include "kernels/cpu/kernel_table.h"

namespace switchyard::kernels::cpu {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int32_t kPart = kKeyPart;

AttentionPartition PartitionOf(const std::vector<SequenceSpan>& sequences, int threads,
                               int64_t kv_heads = 1, int64_t group = 8, int64_t window = 0,
                               int64_t v_width = 128, int64_t chunk = 0) {
  AttentionPartition partition;
  PartitionAttention({.sequences = sequences,
                      .kv_heads = kv_heads,
                      .group = group,
                      .window = window,
                      .chunk = chunk,
                      .v_width = v_width},
                     threads, partition);
  return partition;
}

TEST(AttentionPartitionTest, ALongSequenceIsSharedByThreads) {
  const AttentionPartition partition = PartitionOf({{.rows = 1, .kv_len = 4 * kPart}}, 4);
  EXPECT_THAT(partition.blocks, SizeIs(1));
  EXPECT_THAT(partition.tasks, SizeIs(4));
  EXPECT_THAT(partition.merges, SizeIs(1));
  EXPECT_EQ(partition.head_parts, 1) << "heads that share keys are not split";
  EXPECT_EQ(partition.partial_floats, 4 * partition.partial_stride);
}

TEST(AttentionPartitionTest, WithEnoughTasksKeysStayTogether) {
  EXPECT_THAT(PartitionOf({{.rows = 1, .kv_len = 4 * kPart}}, 1).merges, IsEmpty()) << "one thread";
  EXPECT_THAT(PartitionOf({{.rows = 1, .kv_len = 4 * kPart}}, 2, /*kv_heads=*/4).merges, IsEmpty());
  EXPECT_THAT(PartitionOf(std::vector<SequenceSpan>(8, {.rows = 1, .kv_len = 4 * kPart}), 4).merges,
              IsEmpty());
  EXPECT_THAT(PartitionOf({{.rows = 512, .kv_len = 4 * kPart}}, 4).merges, IsEmpty());
  EXPECT_THAT(PartitionOf({{.rows = 1, .kv_len = kPart}}, 4).merges, IsEmpty()) << "one part";
}

TEST(AttentionPartitionTest, OneLongSequenceAmongShortOnesIsShared) {
  std::vector<SequenceSpan> sequences(31, {.rows = 1, .kv_len = 100});
  sequences.push_back({.rows = 1, .kv_len = 4 * kPart});
  const AttentionPartition partition = PartitionOf(sequences, 4);
  EXPECT_THAT(partition.tasks, SizeIs(31 + 4));
  ASSERT_THAT(partition.merges, SizeIs(1));
  EXPECT_EQ(partition.blocks[partition.merges[0]].sequence, &sequences.back());
}

TEST(AttentionPartitionTest, HeadsAreSplitWhereKeysAreTooFew) {
  const AttentionPartition few = PartitionOf({{.rows = 1, .kv_len = 100}}, 4);
  EXPECT_EQ(few.heads, 2);
  EXPECT_EQ(few.head_parts, 4);
  const AttentionPartition two = PartitionOf({{.rows = 1, .kv_len = 2 * kPart}}, 4);
  EXPECT_THAT(two.tasks, SizeIs(2));
  EXPECT_EQ(two.head_parts, 2);
  EXPECT_EQ(two.partial_floats, 4 * two.partial_stride);
}

TEST(AttentionPartitionTest, AWindowExcludesParts) {
  const AttentionPartition partition =
      PartitionOf({{.rows = 1, .kv_len = 10 * kPart + 5}}, 4, 1, 8, /*window=*/kPart);
  ASSERT_THAT(partition.blocks, SizeIs(1));
  EXPECT_EQ(partition.blocks[0].part_begin, 9);
  EXPECT_EQ(partition.blocks[0].part_end, 11);
  EXPECT_THAT(partition.tasks, SizeIs(2));
}

TEST(AttentionPartitionTest, AChunkExcludesParts) {
  const AttentionPartition partition =
      PartitionOf({{.rows = 2, .kv_len = 10 * kPart + 5}}, 4, 1, 8, 0, 128, /*chunk=*/3 * kPart);
  ASSERT_THAT(partition.blocks, SizeIs(1));
  EXPECT_EQ(partition.blocks[0].part_begin, 9);
  EXPECT_EQ(partition.blocks[0].part_end, 11);
}

TEST(AttentionPartitionTest, BlocksOfRowsHaveTheirOwnParts) {
  // The first block of 8 rows ends before the second part; the second block reaches into it.
  const AttentionPartition partition = PartitionOf({{.rows = 16, .kv_len = kPart + 8}}, 1);
  ASSERT_THAT(partition.blocks, SizeIs(2));
  EXPECT_EQ(partition.blocks[0].part_end, 1);
  EXPECT_EQ(partition.blocks[1].part_end, 2);
}

TEST(AttentionPartitionTest, SumsOfPartsAreBounded) {
  const std::vector<SequenceSpan> sequences(64, {.rows = 1, .kv_len = 64 * kPart});
  const AttentionPartition partition =
      PartitionOf(sequences, 64, 1, /*group=*/64, 0, /*v_width=*/512);
  EXPECT_LE(partition.partial_floats, kMaxPartialFloats);
  EXPECT_THAT(partition.merges, IsEmpty());
  EXPECT_THAT(partition.tasks, SizeIs(64));
}

}  // namespace
}  // namespace switchyard::kernels::cpu
