#include "core/cache_aware.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace switchyard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr size_t kNoLimit = size_t{1} << 40;
constexpr size_t kNode = PrefixTree::kNodeBytes;

TEST(PrefixTreeTest, FindsTheWorkerOfTheLongestPrefix) {
  PrefixTree tree(kNoLimit);
  tree.Insert("You are helpful. Question A", 1);
  tree.Insert("You are helpful. Question B and more", 2);
  const std::vector<int64_t> both = {1, 2}, second = {2};
  EXPECT_THAT(tree.Find("You are helpful. Question A?", both).workers, ElementsAre(1));
  EXPECT_EQ(tree.Find("You are helpful. Question A?", both).bytes, 27u);
  EXPECT_THAT(tree.Find("You are helpful. Question B", both).workers, ElementsAre(2));
  // Worker 2 has not seen question A, so only the prefix that both texts share matches.
  EXPECT_THAT(tree.Find("You are helpful. Question A?", second).workers, ElementsAre(2));
  EXPECT_EQ(tree.Find("You are helpful. Question A?", second).bytes, 26u);
  EXPECT_THAT(tree.Find("Hello", both).workers, IsEmpty());
  EXPECT_THAT(tree.Find("", both).workers, IsEmpty());
}

TEST(PrefixTreeTest, OfEqualPrefixesTheLastUseCounts) {
  PrefixTree tree(kNoLimit);
  tree.Insert("abc", 1);
  tree.Insert("abc", 2);
  const std::vector<int64_t> both = {1, 2};
  EXPECT_THAT(tree.Find("abcd", both).workers, ElementsAre(2, 1));
  tree.Insert("abc", 1);
  EXPECT_THAT(tree.Find("abcd", both).workers, ElementsAre(1, 2));
}

TEST(PrefixTreeTest, PrefixesAreMultiplesOfTheUnit) {
  PrefixTree tree(kNoLimit);
  tree.Insert("abcdefgh", 1);
  tree.Insert("abcdeXYZ", 2);
  const std::vector<int64_t> both = {1, 2};
  EXPECT_EQ(tree.Find("abcdefg", both).bytes, 7u);
  EXPECT_THAT(tree.Find("abcdefg", both).workers, ElementsAre(1));
  // Both workers have seen the first unit.
  EXPECT_EQ(tree.Find("abcdefg", both, 4).bytes, 4u);
  EXPECT_THAT(tree.Find("abcdefg", both, 4).workers, ElementsAre(2, 1));
  EXPECT_EQ(tree.Find("abcdefgh", both, 4).bytes, 8u);
  EXPECT_THAT(tree.Find("abcdefgh", both, 4).workers, ElementsAre(1));
  EXPECT_THAT(tree.Find("abc", both, 4).workers, IsEmpty());
}

TEST(PrefixTreeTest, RemoveDeletesOnlyOneWorker) {
  PrefixTree tree(kNoLimit);
  tree.Insert("common one", 1);
  EXPECT_EQ(tree.bytes(), 10 + kNode);
  tree.Insert("common two", 2);
  EXPECT_EQ(tree.bytes(), 13 + 3 * kNode);
  tree.Remove(1);
  EXPECT_EQ(tree.bytes(), 10 + 2 * kNode);
  EXPECT_EQ(tree.bytes_of(1), 0u);
  EXPECT_EQ(tree.bytes_of(2), 10u);
  const std::vector<int64_t> both = {1, 2};
  EXPECT_THAT(tree.Find("common one", both).workers, ElementsAre(2));
  tree.Remove(2);
  EXPECT_EQ(tree.bytes(), 0u);
}

TEST(PrefixTreeTest, OldPrefixesAreRemovedAtTheLimit) {
  constexpr size_t kLimit = 1000 + 40 * kNode;
  PrefixTree tree(kLimit);
  for (int i = 0; i < 200; ++i) {
    tree.Insert("prefix" + std::to_string(1000 + i) + std::string(20, 'x'), i % 3);
    EXPECT_LE(tree.bytes(), kLimit);
  }
  const std::vector<int64_t> all = {0, 1, 2};
  EXPECT_EQ(tree.Find("prefix1199" + std::string(20, 'x'), all).bytes, 30u);
  EXPECT_LT(tree.Find("prefix1000" + std::string(20, 'x'), all).bytes, 30u);
  EXPECT_LE(tree.bytes_of(0) + tree.bytes_of(1) + tree.bytes_of(2), 3 * tree.bytes());
}

TEST(PrefixTreeTest, ALongTextIsOneNode) {
  PrefixTree tree(kNoLimit);
  std::string text;
  for (int i = 0; i < 3000; ++i) tree.Insert(text += static_cast<char>('a' + i % 26), 0);
  EXPECT_EQ(tree.bytes(), 3000 * (1 + kNode));  // a chain of 3000 nodes, which the destructor frees
}

// Compares the tree with a linear search in the list of all inserted texts.
TEST(PrefixTreeTest, EqualsASearchThroughAllTexts) {
  std::mt19937 random(7);
  PrefixTree tree(kNoLimit);
  std::vector<std::pair<std::string, int64_t>> texts;
  const auto text = [&] {
    std::string out;
    for (size_t i = random() % 12; i > 0; --i) out += static_cast<char>('a' + random() % 2);
    return out;
  };
  for (int i = 0; i < 2000; ++i) {
    if (random() % 50 == 0) {
      const auto worker = static_cast<int64_t>(random() % 4);
      tree.Remove(worker);
      std::erase_if(texts, [&](const auto& t) { return t.second == worker; });
    }
    texts.emplace_back(text(), random() % 4);
    tree.Insert(texts.back().first, texts.back().second);
    const std::string query = text();
    std::vector<int64_t> workers;
    for (int64_t worker = 0; worker < 4; ++worker)
      if (random() % 2) workers.push_back(worker);
    size_t longest = 0;
    for (const auto& [known, worker] : texts) {
      if (std::ranges::find(workers, worker) == workers.end()) continue;
      size_t common = 0;
      while (common < std::min(known.size(), query.size()) && known[common] == query[common])
        ++common;
      longest = std::max(longest, common);
    }
    const PrefixTree::Match match = tree.Find(query, workers);
    ASSERT_EQ(match.bytes, longest);
    ASSERT_EQ(match.workers.empty(), longest == 0);
    for (const int64_t worker : workers) {  // those that have seen the whole prefix
      const bool has_seen = std::ranges::any_of(texts, [&](const auto& t) {
        return t.second == worker && t.first.starts_with(query.substr(0, longest));
      });
      ASSERT_EQ(std::ranges::count(match.workers, worker), has_seen && longest > 0 ? 1 : 0);
    }
  }
}

TEST(CacheAwareChoiceTest, TheLoadCountsFirstIfPreferred) {
  using Candidates = std::vector<CacheAwareChoice::Candidate>;
  const std::string prompt = "You are helpful.";
  for (const bool prefers : {false, true}) {
    CacheAwareChoice choice({.prefers_fewest_open = prefers});
    choice.Add(prompt, 1);
    choice.Add(prompt, 2);
    choice.Add("Hello, this is another text.", 2);
    // Both workers have seen the prompt, worker 2 later.
    EXPECT_EQ(choice.Choose(Candidates{{1, 3}, {2, 3}}, prompt), 2);
    EXPECT_EQ(choice.Choose(Candidates{{1, 3}, {2, 4}}, prompt), prefers ? 1 : 2);
    EXPECT_EQ(choice.Choose(Candidates{{1, 3}, {2, 3}, {3, 0}}, prompt), 2);
    // No worker has seen this prompt. Worker 1 has the smallest tree.
    EXPECT_EQ(choice.Choose(Candidates{{1, 3}, {2, 3}}, "xyz"), 1);
    EXPECT_EQ(choice.Choose(Candidates{{1, 3}, {2, 2}}, "xyz"), prefers ? 2 : 1);
  }
}

}  // namespace
}  // namespace switchyard
