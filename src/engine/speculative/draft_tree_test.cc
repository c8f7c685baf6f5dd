#include "engine/speculative/draft_tree.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <set>

#include "engine/sampler/random.h"

namespace switchyard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(DraftTreeTest, WithoutParentsRowsFormAChain) {
  const DraftTree tree{.tokens = {5, 6, 7}};
  EXPECT_THAT(tree.Depths(), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(tree.PathTo(2), ElementsAre(0, 1, 2));
  EXPECT_EQ(tree.FirstChild(0), 1);
  EXPECT_EQ(tree.ChildWith(1, 6), 2);
  EXPECT_EQ(tree.ChildWith(1, 7), 0);
  EXPECT_EQ(tree.FirstChild(3), 0);
  EXPECT_THAT(DraftTree{}.Depths(), ElementsAre(0));
}

TEST(DraftTreeTest, ChildrenFollowTheirParents) {
  //        0
  //      1   3
  //     2   4  5
  const DraftTree tree{.tokens = {10, 11, 20, 11, 12}, .parents = {0, 1, 0, 3, 3}};
  EXPECT_THAT(tree.Depths(), ElementsAre(0, 1, 2, 1, 2, 2));
  EXPECT_THAT(tree.PathTo(5), ElementsAre(0, 3, 5));
  EXPECT_EQ(tree.ChildWith(0, 20), 3);
  EXPECT_EQ(tree.ChildWith(1, 11), 2);
  EXPECT_EQ(tree.ChildWith(3, 11), 4);
  EXPECT_EQ(tree.ChildWith(3, 12), 5);
  EXPECT_EQ(tree.ChildWith(1, 12), 0);
  EXPECT_EQ(tree.FirstChild(3), 4);
  EXPECT_EQ(tree.FirstChild(2), 0);
}

TEST(GrowingTreeTest, TheBestNodesOfALevelGrow) {
  GrowingTree tree;
  tree.AddChildren(0, std::vector<GrowingTree::Candidate>{{7, 0.5}, {8, 0.4}});
  EXPECT_THAT(tree.NextLevel(2), ElementsAre(1, 2));
  tree.AddChildren(1, std::vector<GrowingTree::Candidate>{{1, 0.5}, {2, 0.3}});  // 0.25, 0.15
  tree.AddChildren(2, std::vector<GrowingTree::Candidate>{{3, 0.9}, {4, 0.1}});  // 0.36, 0.04
  EXPECT_THAT(tree.NextLevel(2), ElementsAre(5, 3));
  EXPECT_EQ(tree.node(5).depth, 2);
  tree.node(2).slot = 40;
  tree.node(5).slot = 50;
  EXPECT_THAT(tree.SlotsTo(5), ElementsAre(40, 50));
  EXPECT_THAT(tree.SlotsTo(0), IsEmpty());
  const DraftTree best = tree.Best(4);
  EXPECT_THAT(best.tokens, ElementsAre(7, 1, 8, 3));
  EXPECT_THAT(best.parents, ElementsAre(0, 1, 0, 3));
  EXPECT_THAT(tree.Best(100).tokens, ElementsAre(7, 1, 2, 8, 3, 4));
}

TEST(GrowingTreeTest, ImpossibleDraftsAreDropped) {
  GrowingTree tree;
  tree.AddChildren(0, std::vector<GrowingTree::Candidate>{{7, 0.5}, {8, 0}});
  EXPECT_THAT(tree.NextLevel(2), ElementsAre(1, 2));
  tree.AddChildren(1, std::vector<GrowingTree::Candidate>{{1, 0}, {2, 0}});
  tree.AddChildren(2, std::vector<GrowingTree::Candidate>{{3, 1}, {4, 0}});
  EXPECT_THAT(tree.Best(6).tokens, ElementsAre(7));
  EXPECT_THAT(GrowingTree().Best(6).tokens, IsEmpty());
}

// Compares with a search over all nodes: the selected ones have the largest scores, each after its
// parent, and siblings in descending order of their scores.
TEST(GrowingTreeTest, RandomTreesKeepTheBestNodes) {
  uint64_t draws = 0;
  const auto random = [&] { return UniformDraw(7, ++draws); };
  for (int round = 0; round < 200; ++round) {
    const auto width = static_cast<int64_t>(1 + random() * 4);
    const auto depth = static_cast<int>(1 + random() * 4);
    GrowingTree tree;
    std::map<std::vector<int32_t>, double> all;  // the score of each path of tokens
    std::map<int32_t, std::vector<int32_t>> paths = {{0, {}}};
    int32_t next = 1;
    std::vector<int32_t> level = {0};
    for (int i = 0; i < depth; ++i) {
      if (i > 0) level = tree.NextLevel(width);
      for (const int32_t parent : level) {
        std::vector<GrowingTree::Candidate> children;
        for (int64_t c = 0; c < width; ++c)
          children.push_back({static_cast<int32_t>(c), round % 3 == 0 ? 0.25 : random()});
        std::ranges::sort(children, std::ranges::greater(), &GrowingTree::Candidate::probability);
        tree.AddChildren(parent, children);
        for (const GrowingTree::Candidate& child : children) {
          paths[next] = paths[parent];
          paths[next].push_back(child.token);
          all[paths[next]] = tree.node(next).score;
          ++next;
        }
      }
    }
    const auto count = static_cast<int64_t>(1 + random() * static_cast<double>(all.size() + 2));
    const DraftTree best = tree.Best(count);
    ASSERT_EQ(std::ssize(best.tokens), std::min<int64_t>(count, std::ssize(all)));
    std::set<std::vector<int32_t>> kept;
    double least = 1;
    std::map<int32_t, double> last;  // the score of the last child of a row
    for (int32_t row = 1; row < best.rows(); ++row) {
      std::vector<int32_t> path;
      for (const int32_t at : best.PathTo(row))
        if (at > 0) path.push_back(best.tokens[at - 1]);
      ASSERT_TRUE(kept.insert(path).second);
      ASSERT_TRUE(all.contains(path));
      least = std::min(least, all[path]);
      const auto sibling = last.find(best.ParentOf(row));
      if (sibling != last.end()) {
        EXPECT_GE(sibling->second, all[path]);
      }
      last[best.ParentOf(row)] = all[path];
    }
    for (const auto& [path, score] : all) {
      if (!kept.contains(path)) {
        EXPECT_LE(score, least);
      }
    }
  }
}

TEST(BranchSpansTest, PointersAreSetAtTheEnd) {
  ForwardBatch batch;
  BranchSpans spans(batch);
  const int32_t pages[] = {2, 0};
  for (int32_t i = 0; i < 50; ++i) {
    const std::vector<int32_t> slots(i % 3, 100 + i);
    spans.Add({.row_begin = i, .rows = 1, .kv_len = 5 + i % 3, .pages = pages, .branch_begin = 5},
              slots);
  }
  spans.Finish();
  ASSERT_EQ(batch.sequences.size(), 50u);
  for (int32_t i = 0; i < 50; ++i) {
    const kernels::SequenceSpan& span = batch.sequences[i];
    EXPECT_EQ(span.branch == nullptr, i % 3 == 0);
    EXPECT_EQ(span.SlotOf(4, 4), 0);
    EXPECT_EQ(span.SlotOf(3, 4), 11);
    for (int32_t key = 5; key < span.kv_len; ++key) EXPECT_EQ(span.SlotOf(key, 4), 100 + i);
  }
}

}  // namespace
}  // namespace switchyard
