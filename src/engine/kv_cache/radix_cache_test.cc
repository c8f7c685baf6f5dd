#include "engine/kv_cache/radix_cache.h"

#include <gmock/gmock.h>

#include <numeric>

#include "engine/kv_cache/kv_cache.h"

namespace switchyard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Tokens = std::vector<int32_t>;

class RadixCacheTest : public ::testing::Test {
 protected:
  // Inserts `tokens` with new pages; frees pages of a prefix that the tree already has.
  Tokens Add(const Tokens& tokens) {
    Tokens pages;
    for (size_t i = 0; i < tokens.size() / 2; ++i) pages.push_back(allocator_.Allocate());
    const int64_t present = tree_.Insert(tokens, pages);
    for (int64_t i = 0; i < present; ++i) allocator_.Free(pages[i]);
    return pages;
  }

  PageAllocator allocator_{16};
  RadixCache tree_{allocator_, 2};
};

TEST_F(RadixCacheTest, FindsTheLongestPrefixInWholePages) {
  const Tokens pages = Add({1, 2, 3, 4, 5, 6});
  EXPECT_EQ(tree_.Find(Tokens{1, 2, 3, 4, 5, 6, 7}).pages, pages);
  EXPECT_THAT(tree_.Find(Tokens{1, 2, 3, 4, 5}).pages, ElementsAre(pages[0], pages[1]));
  EXPECT_THAT(tree_.Find(Tokens{1, 2, 3, 9}).pages, ElementsAre(pages[0]));
  EXPECT_THAT(tree_.Find(Tokens{1}).pages, IsEmpty());
  EXPECT_THAT(tree_.Find(Tokens{2, 1}).pages, IsEmpty());
  EXPECT_THAT(tree_.Find(Tokens{}).pages, IsEmpty());
}

TEST_F(RadixCacheTest, BranchesShareTheirPrefix) {
  const Tokens a = Add({1, 2, 3, 4, 5, 6});
  const Tokens b = Add({1, 2, 3, 4, 7, 8});
  EXPECT_EQ(tree_.pages(), 4);
  EXPECT_THAT(tree_.Find(Tokens{1, 2, 3, 4, 7, 8}).pages, ElementsAre(a[0], a[1], b[2]));
  EXPECT_EQ(tree_.Find(Tokens{1, 2, 3, 4, 5, 6}).pages, a);
  EXPECT_EQ(allocator_.free(), 12);
}

TEST_F(RadixCacheTest, EvictsTheLeastRecentlyUsedFromItsEnd) {
  Add({1, 2, 3, 4});
  Add({5, 6, 7, 8});
  tree_.Find(Tokens{1, 2, 3, 4});
  EXPECT_EQ(tree_.Evict(1), 1);
  EXPECT_EQ(tree_.Find(Tokens{5, 6, 7, 8}).pages.size(), 1u);
  EXPECT_EQ(tree_.Find(Tokens{1, 2, 3, 4}).pages.size(), 2u);
}

TEST_F(RadixCacheTest, ParentsFollowTheirChildren) {
  Add({1, 2, 3, 4});
  Add({1, 2, 5, 6});
  Add({1, 2, 7, 8});
  EXPECT_EQ(tree_.Evict(100), 4);
  EXPECT_EQ(tree_.pages(), 0);
  EXPECT_EQ(allocator_.free(), 16);
}

TEST_F(RadixCacheTest, LockedPathsStayAndOnlyThey) {
  Add({1, 2, 3, 4, 5, 6});
  RadixCache::Node* node = tree_.Find(Tokens{1, 2, 3, 4}).node;
  tree_.Lock(node);
  EXPECT_EQ(tree_.locked_pages(), 2);
  EXPECT_EQ(tree_.evictable_pages(), 1);
  EXPECT_EQ(tree_.Evict(100), 1);
  EXPECT_EQ(tree_.Find(Tokens{1, 2, 3, 4, 5, 6}).pages.size(), 2u);
  tree_.Unlock(node);
  EXPECT_EQ(tree_.Evict(100), 2);
}

TEST_F(RadixCacheTest, SplittingALockedNodeKeepsItsLocks) {
  Add({1, 2, 3, 4, 5, 6});
  RadixCache::Node* whole = tree_.Find(Tokens{1, 2, 3, 4, 5, 6}).node;
  tree_.Lock(whole);
  tree_.Find(Tokens{1, 2, 9, 9});
  EXPECT_EQ(tree_.locked_pages(), 3);
  EXPECT_EQ(tree_.Evict(100), 0);
  tree_.Unlock(whole);
  EXPECT_EQ(tree_.locked_pages(), 0);
  EXPECT_EQ(tree_.Evict(100), 3);
}

TEST(KvCache, PublishedPrefixIsBorrowedByTheNext) {
  KvCache cache(8, 2, true);
  const Tokens tokens = {1, 2, 3, 4, 5};
  SequencePages first, second;
  EXPECT_EQ(cache.Borrow(tokens, first), 0);
  ASSERT_TRUE(cache.Grow(5, first));
  cache.Publish(tokens, first);
  EXPECT_EQ(cache.Borrow(std::span(tokens).first(4), second), 4);
  EXPECT_THAT(second.pages, ElementsAre(first.pages[0], first.pages[1]));
  EXPECT_FALSE(cache.IsWhole());
  cache.Release(tokens, first);
  cache.Release({}, second);
  EXPECT_TRUE(cache.IsWhole());
  EXPECT_EQ(cache.cached(), 2);
}

TEST(KvCache, SaltsKeepPrefixesApart) {
  KvCache cache(8, 1, true);
  const Tokens tokens = {1, 2, 3};
  SequencePages plain, salted, same, other;
  EXPECT_EQ(cache.Borrow(tokens, plain), 0);
  ASSERT_TRUE(cache.Grow(3, plain));
  cache.Release(tokens, plain);
  EXPECT_EQ(cache.Borrow(tokens, salted, "a"), 0);
  ASSERT_TRUE(cache.Grow(3, salted));
  cache.Publish(tokens, salted);
  EXPECT_EQ(cache.Borrow(tokens, same, "a"), 3);
  EXPECT_EQ(same.pages, salted.pages);
  EXPECT_EQ(cache.Borrow(tokens, other, "b"), 0);
  cache.Release({}, other);
  EXPECT_EQ(cache.Borrow(tokens, plain), 3);
  EXPECT_NE(plain.pages, salted.pages);
  cache.Release(tokens, plain);
  cache.Release(tokens, same);
  cache.Release(tokens, salted);
  EXPECT_TRUE(cache.IsWhole());
  cache.DropPrefixes();
  EXPECT_EQ(cache.free(), 8);
  EXPECT_EQ(cache.Borrow(tokens, salted, "a"), 0);
  cache.Release({}, salted);
}

TEST(KvCache, TwoThatComputedTheSameKeepOneCopy) {
  KvCache cache(8, 2, true);
  const Tokens tokens = {1, 2, 3, 4};
  SequencePages first, second;
  ASSERT_TRUE(cache.Grow(4, first));
  ASSERT_TRUE(cache.Grow(4, second));
  cache.Publish(tokens, first);
  cache.Publish(tokens, second);
  EXPECT_EQ(second.pages, first.pages);
  EXPECT_EQ(cache.free(), 6);
  cache.Release(tokens, first);
  cache.Release(tokens, second);
  EXPECT_TRUE(cache.IsWhole());
}

TEST(KvCache, GrowEvictsOrDoesNothing) {
  KvCache cache(4, 1, true);
  SequencePages first, second;
  ASSERT_TRUE(cache.Grow(3, first));
  cache.Release(Tokens{1, 2, 3}, first);
  EXPECT_EQ(cache.free(), 1);
  EXPECT_FALSE(cache.Grow(5, second));
  EXPECT_THAT(second.pages, IsEmpty());
  EXPECT_TRUE(cache.Grow(4, second));
  EXPECT_EQ(cache.cached(), 0);
  cache.Release({}, second);
  EXPECT_EQ(cache.free(), 4);
}

TEST(KvCache, WithoutReuseNothingIsKept) {
  KvCache cache(4, 1, false);
  SequencePages pages;
  ASSERT_TRUE(cache.Grow(3, pages));
  cache.Release(Tokens{1, 2, 3}, pages);
  EXPECT_EQ(cache.free(), 4);
  EXPECT_EQ(cache.Borrow(Tokens{1, 2, 3}, pages), 0);
}

TEST(PageAllocatorDeathTest, RefusesAPageFreedTwice) {
  PageAllocator allocator(2);
  const int32_t page = allocator.Allocate();
  allocator.Free(page);
  EXPECT_DEATH(allocator.Free(page), "check failed");
}

}  // namespace
}  // namespace switchyard
