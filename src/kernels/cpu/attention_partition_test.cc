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

AttentionPartition Cut(const std::vector<SequenceSpan>& sequences, int threads,
                       int64_t kv_heads = 1, int64_t group = 8, int64_t window = 0,
                       int64_t v_width = 128) {
  AttentionPartition cut;
  PartitionAttention({.sequences = sequences,
                      .kv_heads = kv_heads,
                      .group = group,
                      .window = window,
                      .v_width = v_width},
                     threads, cut);
  return cut;
}

TEST(AttentionCutTest, ALongSequenceIsSharedByThreads) {
  const AttentionPartition cut = Cut({{.rows = 1, .kv_len = 4 * kPart}}, 4);
  EXPECT_THAT(cut.blocks, SizeIs(1));
  EXPECT_THAT(cut.tasks, SizeIs(4));
  EXPECT_THAT(cut.merges, SizeIs(1));
  EXPECT_EQ(cut.head_parts, 1) << "heads that share keys are not split";
  EXPECT_EQ(cut.partial_floats, 4 * cut.partial_stride);
}

TEST(AttentionCutTest, WithEnoughTasksKeysStayTogether) {
  EXPECT_THAT(Cut({{.rows = 1, .kv_len = 4 * kPart}}, 1).merges, IsEmpty()) << "one thread";
  EXPECT_THAT(Cut({{.rows = 1, .kv_len = 4 * kPart}}, 2, /*kv_heads=*/4).merges, IsEmpty());
  EXPECT_THAT(Cut(std::vector<SequenceSpan>(8, {.rows = 1, .kv_len = 4 * kPart}), 4).merges,
              IsEmpty());
  EXPECT_THAT(Cut({{.rows = 512, .kv_len = 4 * kPart}}, 4).merges, IsEmpty());
  EXPECT_THAT(Cut({{.rows = 1, .kv_len = kPart}}, 4).merges, IsEmpty()) << "one part";
}

TEST(AttentionCutTest, OneLongSequenceAmongShortOnesIsShared) {
  std::vector<SequenceSpan> sequences(31, {.rows = 1, .kv_len = 100});
  sequences.push_back({.rows = 1, .kv_len = 4 * kPart});
  const AttentionPartition cut = Cut(sequences, 4);
  EXPECT_THAT(cut.tasks, SizeIs(31 + 4));
  ASSERT_THAT(cut.merges, SizeIs(1));
  EXPECT_EQ(cut.blocks[cut.merges[0]].sequence, &sequences.back());
}

TEST(AttentionCutTest, HeadsPartWhereKeysAreTooFew) {
  const AttentionPartition few = Cut({{.rows = 1, .kv_len = 100}}, 4);
  EXPECT_EQ(few.heads, 2);
  EXPECT_EQ(few.head_parts, 4);
  const AttentionPartition two = Cut({{.rows = 1, .kv_len = 2 * kPart}}, 4);
  EXPECT_THAT(two.tasks, SizeIs(2));
  EXPECT_EQ(two.head_parts, 2);
  EXPECT_EQ(two.partial_floats, 4 * two.partial_stride);
}

TEST(AttentionCutTest, AWindowLeavesPartsOut) {
  const AttentionPartition cut =
      Cut({{.rows = 1, .kv_len = 10 * kPart + 5}}, 4, 1, 8, /*window=*/kPart);
  ASSERT_THAT(cut.blocks, SizeIs(1));
  EXPECT_EQ(cut.blocks[0].part_begin, 9);
  EXPECT_EQ(cut.blocks[0].part_end, 11);
  EXPECT_THAT(cut.tasks, SizeIs(2));
}

TEST(AttentionCutTest, BlocksOfRowsSeeTheirOwnParts) {
  // The first block of 8 rows ends before the second part; the second block reaches into it.
  const AttentionPartition cut = Cut({{.rows = 16, .kv_len = kPart + 8}}, 1);
  ASSERT_THAT(cut.blocks, SizeIs(2));
  EXPECT_EQ(cut.blocks[0].part_end, 1);
  EXPECT_EQ(cut.blocks[1].part_end, 2);
}

TEST(AttentionCutTest, SumsOfPartsAreBounded) {
  const std::vector<SequenceSpan> sequences(64, {.rows = 1, .kv_len = 64 * kPart});
  const AttentionPartition cut = Cut(sequences, 64, 1, /*group=*/64, 0, /*v_width=*/512);
  EXPECT_LE(cut.partial_floats, kMaxPartialFloats);
  EXPECT_THAT(cut.merges, IsEmpty());
  EXPECT_THAT(cut.tasks, SizeIs(64));
}

}  // namespace
}  // namespace switchyard::kernels::cpu
