#include "model/padded_batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace switchyard {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

ForwardBatch Decode(int rows, const int32_t* page) {
  ForwardBatch batch;
  for (int32_t i = 0; i < rows; ++i) {
    batch.tokens.push_back(10 + i);
    batch.positions.push_back(5);
    batch.slots.push_back(i);
    batch.sequences.push_back({.row_begin = i, .rows = 1, .kv_len = 6, .pages = page});
    batch.logit_rows.push_back(i);
  }
  batch.decode_tokens = rows;
  return batch;
}

TEST(PaddedTokensTest, FewSizesThatAreNeverTooSmall) {
  int sizes = 0;
  for (int64_t tokens = 1, last = 0; tokens <= 256; ++tokens) {
    const int64_t padded = PaddedTokens(tokens);
    EXPECT_GE(padded, tokens);
    EXPECT_GE(padded, last);
    EXPECT_EQ(PaddedTokens(padded), padded);
    sizes += padded != last;
    last = padded;
  }
  EXPECT_LT(sizes, 25);
}

TEST(PaddedBatchTest, RowsThatFillUpHaveAPageOfTheirOwn) {
  const int32_t page = 3;
  const ForwardBatch batch = Decode(3, &page);
  ASSERT_TRUE(IsPlainDecode(batch, 8));
  PaddedBatch padded;
  const ForwardBatch& filled = padded.Pad(batch, /*spare_page=*/7, /*page_size=*/16);
  EXPECT_THAT(filled.tokens, ElementsAre(10, 11, 12, 0));
  EXPECT_THAT(filled.positions, ElementsAre(5, 5, 5, 0));
  EXPECT_THAT(filled.slots, ElementsAre(0, 1, 2, 7 * 16));
  EXPECT_THAT(filled.logit_rows, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(filled.decode_tokens, 4);
  ASSERT_EQ(filled.sequences.size(), 4u);
  EXPECT_EQ(filled.sequences[2].pages, &page);
  EXPECT_EQ(filled.sequences[3].kv_len, 1);
  EXPECT_EQ(*filled.sequences[3].pages, 7);
}

TEST(PaddedBatchTest, SequencesWithDraftsLeaveEmptyOnes) {
  const int32_t page = 3;
  ForwardBatch batch = Decode(6, &page);  // three rows of each of two sequences
  batch.sequences = {{.row_begin = 0, .rows = 3, .kv_len = 6, .pages = &page},
                     {.row_begin = 3, .rows = 3, .kv_len = 6, .pages = &page}};
  ASSERT_TRUE(IsPlainDecode(batch, 8));
  PaddedBatch padded;
  const ForwardBatch& filled = padded.Pad(batch, 7, 16);
  std::vector<int32_t> rows;
  for (const auto& sequence : filled.sequences) rows.push_back(sequence.rows);
  EXPECT_THAT(rows, ElementsAre(3, 3, 1, 1, 0, 0, 0, 0));
  EXPECT_EQ(filled.sequences[4].row_begin, 8);
}

TEST(PaddedBatchTest, RowsThatFillUpHaveNoStates) {
  const int32_t page = 3;
  ForwardBatch batch = Decode(3, &page);
  for (int32_t i = 0; i < 3; ++i)
    batch.states.push_back({.row_begin = i, .rows = 1, .from = 2 * i, .to = 2 * i + 1});
  PaddedBatch padded;
  const ForwardBatch& filled = padded.Pad(batch, 7, 16, /*states=*/true);
  ASSERT_EQ(filled.states.size(), 4u);
  EXPECT_EQ(filled.states[2].to, 5);
  EXPECT_EQ(filled.states[3].row_begin, 3);
  EXPECT_EQ(filled.states[3].rows, 1);
  EXPECT_EQ(filled.states[3].from, -1);
  EXPECT_EQ(filled.states[3].to, -1);

  ForwardBatch empty;  // a group without rows
  empty.group_tokens = empty.group_decode_tokens = empty.group_logit_rows = {0, 5};
  EXPECT_THAT(padded.Pad(empty, 7, 16, true).states, ::testing::SizeIs(8));
}

TEST(PaddedBatchTest, LogitsOfSomeRowsHaveASizeOfTheirOwn) {
  const int32_t page = 3;
  const float hidden = 0;
  ForwardBatch batch = Decode(6, &page);
  batch.logit_rows = {1, 3, 5};
  batch.hidden = &hidden;
  batch.hidden_rows = {4, 5, 6, 7, 8, 9};
  ASSERT_TRUE(IsPlainDecode(batch, 8));
  ASSERT_FALSE(HasAllLogits(batch));
  PaddedBatch padded;
  const ForwardBatch& filled = padded.Pad(batch, 7, 16);
  EXPECT_THAT(filled.logit_rows, ElementsAre(1, 3, 5, 7));
  EXPECT_THAT(filled.hidden_rows, ElementsAre(4, 5, 6, 7, 8, 9, 0, 0));

  ForwardBatch empty;  // a group without rows
  empty.hidden = &hidden;
  empty.group_tokens = empty.group_decode_tokens = {0, 5};
  empty.group_logit_rows = {0, 3};
  EXPECT_THAT(padded.Pad(empty, 7, 16).logit_rows, ElementsAre(7, 7, 7, 7));
  EXPECT_THAT(padded.Pad(empty, 7, 16).group_logit_rows, Each(4));
  EXPECT_THAT(padded.Pad(empty, 7, 16).hidden_rows, ::testing::SizeIs(8));
}

TEST(PaddedBatchTest, GroupsGetTheLargestOnesSize) {
  ForwardBatch batch;  // this group has no rows
  batch.group_tokens = batch.group_decode_tokens = batch.group_logit_rows = {0, 5};
  ASSERT_TRUE(IsPlainDecode(batch, 8));
  PaddedBatch padded;
  const ForwardBatch& filled = padded.Pad(batch, 1, 16);
  EXPECT_EQ(filled.num_tokens(), 8);
  EXPECT_THAT(filled.group_tokens, Each(8));
  EXPECT_THAT(filled.group_logit_rows, Each(8));
}

TEST(IsPlainDecodeTest, NotWithPromptsRequestedExpertsOrTooManyRows) {
  const int32_t page = 0;
  ForwardBatch batch = Decode(3, &page);
  EXPECT_FALSE(IsPlainDecode(batch, 3));  // four rows after padding
  batch.routed_experts = true;
  EXPECT_FALSE(IsPlainDecode(batch, 8));
  batch.routed_experts = false;
  batch.decode_tokens = 2;
  EXPECT_FALSE(IsPlainDecode(batch, 8));
  EXPECT_FALSE(IsPlainDecode(ForwardBatch(), 8));
}

}  // namespace
}  // namespace switchyard
