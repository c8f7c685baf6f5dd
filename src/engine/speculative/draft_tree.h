// Trees of drafts (EAGLE-2, Li et al. 2024; SGLang's --speculative-eagle-topk).
//
// The rows of a verification form a tree. Row 0 is the sequence's last token, the root. Row i > 0
// is draft i − 1. The parent of each row comes before it, so the first rows of a tree are a tree
// too. Children of a row are in descending order of probability.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/forward_batch.h"

namespace switchyard {

struct DraftTree {
  std::vector<int32_t> tokens;   // [drafts]
  std::vector<int32_t> parents;  // [drafts] the parent of row i + 1; empty: a chain

  int32_t rows() const { return static_cast<int32_t>(tokens.size()) + 1; }
  int32_t ParentOf(int32_t row) const { return parents.empty() ? row - 1 : parents[row - 1]; }
  // The first child of a row, which is its most probable one; 0: none.
  int32_t FirstChild(int32_t row) const;
  // The child of a row with this token; 0: none.
  int32_t ChildWith(int32_t row, int32_t token) const;
  // The number of drafts on the path from the root to each row, the row included. [rows]
  std::vector<int32_t> Depths() const;
  // The rows on the path from the root to `row`, both included.
  std::vector<int32_t> PathTo(int32_t row) const;
};

// A tree that grows by levels, from a draft model.
class GrowingTree {
 public:
  struct Candidate {
    int32_t token = 0;
    double probability = 0;  // given the parent
  };
  struct Node {
    int32_t parent = -1;  // −1: the root
    int32_t token = 0;
    int32_t depth = 0;  // 0: the root
    double score = 1;   // product of the probabilities from the root to this node
    // Set by the owner: the node's row in the last pass of the draft model, and its cache slot.
    int32_t row = 0, slot = 0;
  };

  GrowingTree() : nodes_(1) {}
  Node& node(int32_t index) { return nodes_[index]; }
  // Adds children of a node, in descending order of probability.
  void AddChildren(int32_t parent, std::span<const Candidate> candidates);
  // Returns the `count` best nodes added since the last call, the best first. Their children are
  // the next level.
  std::vector<int32_t> NextLevel(int64_t count);
  // The tree of the `count` best nodes with a score above 0. Among equal scores, the node that was
  // added first is better. So a node's parent is always better than the node. Rows are in
  // depth-first order.
  DraftTree Best(int64_t count) const;
  // The slots, or the tokens, of the nodes from depth 1 to `index`.
  std::vector<int32_t> SlotsTo(int32_t index) const { return PathTo(index, &Node::slot); }
  std::vector<int32_t> TokensTo(int32_t index) const { return PathTo(index, &Node::token); }

 private:
  std::vector<int32_t> PathTo(int32_t index, int32_t Node::*member) const;
  // The `count` best nodes among [first, end), the best first.
  std::vector<int32_t> Sorted(size_t first, int64_t count) const;

  std::vector<Node> nodes_;
  size_t level_ = 1;  // the first node of the last level
};

// Appends spans with branches to a batch. Set the pointers of the spans with Finish after the last
// one, because the memory of the branches moves while it grows.
class BranchSpans {
 public:
  explicit BranchSpans(ForwardBatch& batch) : batch_(batch) {}
  // `slots`: of the keys from span.branch_begin on; empty: all keys are in the pages.
  void Add(kernels::SequenceSpan span, std::span<const int32_t> slots);
  void Finish();

 private:
  struct Place {
    size_t span, begin;
  };
  ForwardBatch& batch_;
  std::vector<Place> places_;
};

}  // namespace switchyard
