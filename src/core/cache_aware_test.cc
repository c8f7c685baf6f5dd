#include "core/cache_aware.h"

#include <gmock/gmock.h>

#include <map>
#include <random>
#include <vector>

namespace switchyard {
namespace {

constexpr size_t kNoLimit = size_t{1} << 40;

TEST(PrefixTreeTest, FindsTheWorkerOfTheLongestPrefix) {
  PrefixTree tree(kNoLimit);
  tree.Insert("You are helpful. Question A", 1);
  tree.Insert("You are helpful. Question B and more", 2);
  const std::vector<int64_t> both = {1, 2}, second = {2};
  EXPECT_EQ(tree.Find("You are helpful. Question A?", both).worker, 1);
  EXPECT_EQ(tree.Find("You are helpful. Question A?", both).bytes, 27u);
  EXPECT_EQ(tree.Find("You are helpful. Question B", both).worker, 2);
  // Worker 2 has not seen question A, so only the prefix that both texts share matches.
  EXPECT_EQ(tree.Find("You are helpful. Question A?", second).worker, 2);
  EXPECT_EQ(tree.Find("You are helpful. Question A?", second).bytes, 26u);
  EXPECT_EQ(tree.Find("Hello", both).worker, -1);
  EXPECT_EQ(tree.Find("", both).worker, -1);
}

TEST(PrefixTreeTest, OfEqualPrefixesTheLastUseCounts) {
  PrefixTree tree(kNoLimit);
  tree.Insert("abc", 1);
  tree.Insert("abc", 2);
  const std::vector<int64_t> both = {1, 2};
  EXPECT_EQ(tree.Find("abcd", both).worker, 2);
  tree.Insert("abc", 1);
  EXPECT_EQ(tree.Find("abcd", both).worker, 1);
}

TEST(PrefixTreeTest, RemoveDeletesOnlyOneWorker) {
  PrefixTree tree(kNoLimit);
  tree.Insert("common one", 1);
  tree.Insert("common two", 2);
  EXPECT_EQ(tree.bytes(), 13u);
  tree.Remove(1);
  EXPECT_EQ(tree.bytes(), 10u);
  EXPECT_EQ(tree.bytes_of(1), 0u);
  EXPECT_EQ(tree.bytes_of(2), 10u);
  const std::vector<int64_t> both = {1, 2};
  EXPECT_EQ(tree.Find("common one", both).worker, 2);
}

TEST(PrefixTreeTest, OldPrefixesAreRemovedAtTheLimit) {
  PrefixTree tree(1000);
  for (int i = 0; i < 200; ++i) {
    tree.Insert("prefix" + std::to_string(1000 + i) + std::string(20, 'x'), i % 3);
    EXPECT_LE(tree.bytes(), 1000u);
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
  EXPECT_EQ(tree.bytes(), 3000u);  // a chain of 3000 nodes, which the destructor frees
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
    ASSERT_EQ(match.worker >= 0, longest > 0);
  }
}

}  // namespace
}  // namespace switchyard
