#include "engine/kv_cache/page_records.h"

#include <gmock/gmock.h>

#include <array>

#include "engine/kv_cache/kv_cache.h"
#include "engine/kv_cache/recorded_prefixes.h"

namespace switchyard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Tokens = std::vector<int32_t>;

constexpr int32_t kPages = 8, kPageSize = 2;

class PageRecordsTest : public ::testing::Test {
 protected:
  static void Set(PageRecords& records, int32_t page, int32_t parent, Tokens tokens,
                  std::string_view salt = {}) {
    records.Set(page, {.parent = parent, .owner = 5, .salt = salt, .tokens = tokens});
  }
  std::vector<RecordedPrefix> Prefixes() const { return RecordedPrefixes(records_, kPages); }

  alignas(64) std::array<std::byte, 64 + size_t{128} * kPages> memory_{}, other_memory_{};
  PageRecords records_{memory_, kPages, kPageSize};
};

TEST_F(PageRecordsTest, KeepsWhatWasSet) {
  EXPECT_EQ(PageRecords::Bytes(kPages, kPageSize), memory_.size());
  EXPECT_FALSE(records_.Get(3));
  Set(records_, 3, 1, {7, 8}, "salt");
  const auto page = PageRecords(memory_, kPages, kPageSize).Get(3);
  ASSERT_TRUE(page);
  EXPECT_EQ(page->parent, 1);
  EXPECT_EQ(page->owner, 5u);
  EXPECT_EQ(page->salt, "salt");
  EXPECT_EQ(Tokens(page->tokens.begin(), page->tokens.end()), (Tokens{7, 8}));
  records_.Clear(3);
  EXPECT_FALSE(records_.Get(3));
  Set(records_, 3, 1, {7, 8}, std::string(PageRecords::kMaxSalt + 1, 's'));
  EXPECT_FALSE(records_.Get(3));
}

TEST_F(PageRecordsTest, OnlyEqualRecordsAreCommon) {
  PageRecords other(other_memory_, kPages, kPageSize);
  for (PageRecords* records : {&records_, &other}) {
    Set(*records, 0, PageRecords::kNoParent, {1, 2});
    Set(*records, 1, 0, {3, 4});
    Set(*records, 2, 0, {5, 6});
    Set(*records, 3, 0, {7, 8});
  }
  Set(other, 1, 0, {3, 5});
  Set(other, 2, 1, {5, 6});
  other.Clear(3);
  std::vector<uint64_t> digests = records_.Digests();
  for (const uint64_t digest : other.Digests()) digests.push_back(digest);
  for (PageRecords* records : {&records_, &other}) {
    records->KeepCommon(digests);
    EXPECT_EQ(records->count(), 1);
    EXPECT_TRUE(records->Get(0));
  }
}

TEST_F(PageRecordsTest, PrefixesAreTheLongestChains) {
  EXPECT_THAT(Prefixes(), IsEmpty());
  Set(records_, 4, PageRecords::kNoParent, {1, 2});
  Set(records_, 2, 4, {3, 4});
  Set(records_, 7, 4, {5, 6});
  Set(records_, 0, PageRecords::kNoParent, {1, 2}, "salt");
  const auto prefixes = Prefixes();
  ASSERT_THAT(prefixes, SizeIs(3));
  EXPECT_EQ(prefixes[0].salt, "salt");
  EXPECT_THAT(prefixes[1].pages, ElementsAre(4, 2));
  EXPECT_THAT(prefixes[1].tokens, ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(prefixes[2].pages, ElementsAre(4, 7));
}

TEST_F(PageRecordsTest, DamagedRecordsAreSkipped) {
  Set(records_, 0, 6, {1, 2});  // no such parent
  Set(records_, 1, 2, {1, 2});  // a cycle
  Set(records_, 2, 1, {1, 2});
  Set(records_, 3, 3, {1, 2});
  Set(records_, 4, 99, {1, 2});
  Set(records_, 5, -7, {1, 2});
  EXPECT_THAT(Prefixes(), IsEmpty());
  Set(records_, 7, PageRecords::kNoParent, {1, 2});
  Set(records_, 6, 7, {1, 2}, "salt");  // differs from the salt of its parent
  ASSERT_THAT(Prefixes(), SizeIs(1));
  EXPECT_THAT(Prefixes()[0].pages, ElementsAre(7));
}

// Two sequences have computed the same tokens, and only one of them has published them.
TEST_F(PageRecordsTest, ACacheBeginsWithTheRecordedPrefixes) {
  Set(records_, 1, PageRecords::kNoParent, {1, 2});
  Set(records_, 2, 1, {3, 4});
  Set(records_, 5, PageRecords::kNoParent, {1, 2});
  Set(records_, 6, 5, {3, 9});
  for (int epoch = 0; epoch < 2; ++epoch) {
    KvCache cache(kPages, kPageSize, /*reuse_prefixes=*/true, &records_);
    EXPECT_EQ(cache.cached(), 3);
    EXPECT_EQ(cache.free(), kPages - 3);
    EXPECT_TRUE(cache.IsWhole());
    EXPECT_FALSE(records_.Get(5));
    SequencePages sequence;
    EXPECT_EQ(cache.Borrow(Tokens{1, 2, 3, 9, 1}, sequence), 4);
    EXPECT_THAT(sequence.pages, ElementsAre(1, 6));
    EXPECT_EQ(cache.ComputedBy(5, sequence), 4);
    EXPECT_EQ(cache.ComputedBy(6, sequence), 0);
    cache.Release({}, sequence);
  }
  KvCache cache(kPages, kPageSize, true, &records_);
  cache.DropPrefixes();
  EXPECT_EQ(records_.count(), 0);
}

TEST_F(PageRecordsTest, ASequenceThatTakesPublishedPagesIsTheirChild) {
  KvCache cache(kPages, kPageSize, true, &records_);
  const Tokens a = {1, 2, 3, 4}, b = {1, 2, 5, 6};
  SequencePages first, second;
  cache.Borrow(a, first);
  cache.Borrow(b, second);
  ASSERT_TRUE(cache.Grow(4, first) && cache.Grow(4, second));
  cache.Record(a, 1, first);
  cache.Record(b, 2, second);
  EXPECT_EQ(records_.count(), 4);
  cache.Publish(a, first);
  const int32_t replaced = second.pages[0];
  cache.Publish(b, second);
  EXPECT_FALSE(records_.Get(replaced));
  EXPECT_EQ(records_.Get(second.pages[1])->parent, first.pages[0]);
  cache.Release(a, first);
  cache.Release(b, second);
  EXPECT_EQ(KvCache(kPages, kPageSize, true, &records_).cached(), 3);
}

}  // namespace
}  // namespace switchyard
