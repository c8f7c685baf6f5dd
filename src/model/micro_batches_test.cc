#include "model/micro_batches.h"

#include <gmock/gmock.h>

namespace switchyard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Sequences with these numbers of new rows, after `before` earlier keys each. The first `decode`
// of them decode.
ForwardBatch BatchOf(const std::vector<int32_t>& rows, int64_t decode = 0, int32_t before = 10) {
  ForwardBatch batch;
  for (const int32_t count : rows) {
    const auto begin = static_cast<int32_t>(batch.num_tokens());
    batch.request_ids.push_back(batch.sequences.size() + 100);
    batch.sequences.push_back({.row_begin = begin, .rows = count, .kv_len = before + count});
    for (int32_t i = 0; i < count; ++i) {
      batch.tokens.push_back(begin + i);
      batch.positions.push_back(before + i);
      batch.slots.push_back(1000 + begin + i);
    }
    batch.logit_rows.push_back(begin + count - 1);
  }
  batch.decode_tokens = decode;
  return batch;
}

TEST(SplitRowsTest, HalvesDecodeAndUnequalPrompts) {
  EXPECT_THAT(SplitRows(BatchOf({1, 1, 1, 1, 1}, 5), {.threshold = 0.48}), ElementsAre(3));
  EXPECT_THAT(SplitRows(BatchOf({100}), {.threshold = 0.48}), ElementsAre(50));
  EXPECT_THAT(SplitRows(BatchOf({30, 70}), {.threshold = 0.48}), ElementsAre(50));
}

TEST(SplitRowsTest, SplitsBetweenSequencesNearTheMiddle) {
  EXPECT_THAT(SplitRows(BatchOf({49, 51}), {.threshold = 0.48}), ElementsAre(49));
  EXPECT_THAT(SplitRows(BatchOf({30, 70}), {.threshold = 0.25}), ElementsAre(30));
  EXPECT_THAT(SplitRows(BatchOf({49, 51}), {.threshold = 0.5}), ElementsAre(50));
  EXPECT_THAT(SplitRows(BatchOf({10, 20, 22, 48}), {.threshold = 0.25}), ElementsAre(52));
}

TEST(SplitRowsTest, OfSeveralGroupsFollowsFromTheirCounts) {
  ForwardBatch batch = BatchOf({3, 4});
  batch.group_tokens = {7, 1, 0, 2};
  batch.group_decode_tokens = {0, 1, 0, 2};
  EXPECT_THAT(SplitRows(batch, {.threshold = 0.1}), ElementsAre(4, 1, 0, 1));
  batch.group_tokens = {1, 0, 1, 1};
  EXPECT_THAT(SplitRows(batch, {.threshold = 0.1}), IsEmpty());
  EXPECT_THAT(SplitRows(BatchOf({1}, 1), {.threshold = 0.48}), IsEmpty());
  EXPECT_THAT(SplitRows(BatchOf({}), {.threshold = 0.48}), IsEmpty());
}

TEST(SplitRowsTest, KeepsFewRowsOfAllGroupsInOnePart) {
  ForwardBatch batch = BatchOf({3, 4});
  EXPECT_THAT(SplitRows(batch, {.min_rows = 8}), IsEmpty());
  EXPECT_THAT(SplitRows(batch, {.min_rows = 7}), ElementsAre(4));
  batch.group_tokens = {7, 1};
  batch.group_decode_tokens = {0, 1};
  EXPECT_THAT(SplitRows(batch, {.min_rows = 8}), ElementsAre(4, 1));
  EXPECT_THAT(SplitRows(batch, {.min_rows = 9}), IsEmpty());
}

TEST(SplitRowsTest, SplitsWhatOnePartCannotHold) {
  ForwardBatch batch = BatchOf({3, 4});
  EXPECT_THAT(SplitRows(batch, {.min_rows = 100, .max_in_one = 7}), IsEmpty());
  EXPECT_THAT(SplitRows(batch, {.min_rows = 100, .max_in_one = 6}), ElementsAre(4));
}

TEST(MicroBatchesTest, KeepRowsKeysAndLogits) {
  const ForwardBatch batch = BatchOf({1, 1, 4, 3}, 2);
  const MicroBatches parts(batch, std::vector<int64_t>{4}, 0);
  EXPECT_THAT(parts.first.tokens, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(parts.first.slots, ElementsAre(1000, 1001, 1002, 1003));
  EXPECT_EQ(parts.first.decode_tokens, 2);
  EXPECT_THAT(parts.first.request_ids, ElementsAre(100, 101, 102));
  ASSERT_EQ(parts.first.sequences.size(), 3u);
  EXPECT_EQ(parts.first.sequences[2].row_begin, 2);
  EXPECT_EQ(parts.first.sequences[2].rows, 2);
  EXPECT_EQ(parts.first.sequences[2].kv_len, 12);  // without the two rows of the other part
  EXPECT_THAT(parts.first.logit_rows, ElementsAre(0, 1));
  EXPECT_THAT(parts.first.group_tokens, ElementsAre(4));

  EXPECT_THAT(parts.second.positions, ElementsAre(12, 13, 10, 11, 12));
  EXPECT_EQ(parts.second.decode_tokens, 0);
  EXPECT_THAT(parts.second.request_ids, ElementsAre(102, 103));
  ASSERT_EQ(parts.second.sequences.size(), 2u);
  EXPECT_EQ(parts.second.sequences[0].row_begin, 0);
  EXPECT_EQ(parts.second.sequences[0].rows, 2);
  EXPECT_EQ(parts.second.sequences[0].kv_len, 14);
  EXPECT_EQ(parts.second.sequences[1].row_begin, 2);
  EXPECT_THAT(parts.second.logit_rows, ElementsAre(1, 4));
  EXPECT_THAT(parts.second.group_decode_tokens, ElementsAre(0));
}

}  // namespace
}  // namespace switchyard
