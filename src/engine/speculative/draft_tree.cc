#include "engine/speculative/draft_tree.h"

#include <algorithm>
#include <numeric>

#include "core/check.h"

namespace switchyard {

int32_t DraftTree::FirstChild(int32_t row) const {
  for (int32_t child = row + 1; child < rows(); ++child)
    if (ParentOf(child) == row) return child;
  return 0;
}

int32_t DraftTree::ChildWith(int32_t row, int32_t token) const {
  for (int32_t child = row + 1; child < rows(); ++child)
    if (ParentOf(child) == row && tokens[child - 1] == token) return child;
  return 0;
}

std::vector<int32_t> DraftTree::Depths() const {
  std::vector<int32_t> depths(rows());
  for (int32_t row = 1; row < rows(); ++row) {
    CHECK(ParentOf(row) >= 0 && ParentOf(row) < row);
    depths[row] = depths[ParentOf(row)] + 1;
  }
  return depths;
}

std::vector<int32_t> DraftTree::PathTo(int32_t row) const {
  std::vector<int32_t> path = {row};
  for (; row > 0; path.push_back(row)) row = ParentOf(row);
  std::ranges::reverse(path);
  return path;
}

void GrowingTree::AddChildren(int32_t parent, std::span<const Candidate> candidates) {
  for (const Candidate& candidate : candidates)
    nodes_.push_back({.parent = parent,
                      .token = candidate.token,
                      .depth = nodes_[parent].depth + 1,
                      .score = nodes_[parent].score * candidate.probability});
}

std::vector<int32_t> GrowingTree::Sorted(size_t first, int64_t count) const {
  std::vector<int32_t> order(nodes_.size() - first);
  std::iota(order.begin(), order.end(), static_cast<int32_t>(first));
  std::ranges::stable_sort(order, std::ranges::greater(),
                           [&](int32_t index) { return nodes_[index].score; });
  if (std::ssize(order) > count) order.resize(static_cast<size_t>(count));
  return order;
}

std::vector<int32_t> GrowingTree::NextLevel(int64_t count) {
  const size_t first = level_;
  level_ = nodes_.size();
  return Sorted(first, count);
}

DraftTree GrowingTree::Best(int64_t count) const {
  std::vector<int32_t> kept = Sorted(1, count);
  std::erase_if(kept, [&](int32_t index) { return !(nodes_[index].score > 0); });
  std::ranges::sort(kept);
  DraftTree tree;
  // Depth first, with explicit positions: a node's children are contiguous and in their order.
  struct Open {
    int32_t node, row;
    size_t next;  // in `kept`
  };
  std::vector<Open> open = {{.node = 0, .row = 0, .next = 0}};
  while (!open.empty()) {
    Open& top = open.back();
    while (top.next < kept.size() && nodes_[kept[top.next]].parent != top.node) ++top.next;
    if (top.next == kept.size()) {
      open.pop_back();
      continue;
    }
    const int32_t child = kept[top.next++];
    tree.tokens.push_back(nodes_[child].token);
    tree.parents.push_back(top.row);
    open.push_back({.node = child, .row = tree.rows() - 1, .next = 0});
  }
  CHECK_EQ(tree.tokens.size(), kept.size());
  return tree;
}

std::vector<int32_t> GrowingTree::PathTo(int32_t index, int32_t Node::*member) const {
  std::vector<int32_t> values;
  for (; index > 0; index = nodes_[index].parent) values.push_back(nodes_[index].*member);
  std::ranges::reverse(values);
  return values;
}

void BranchSpans::Add(kernels::SequenceSpan span, std::span<const int32_t> slots) {
  if (!slots.empty()) {
    CHECK_EQ(std::ssize(slots), int64_t{span.kv_len} - span.branch_begin);
    places_.push_back({batch_.sequences.size(), batch_.branch_slots.size()});
    batch_.branch_slots.insert(batch_.branch_slots.end(), slots.begin(), slots.end());
  }
  batch_.sequences.push_back(span);
}

void BranchSpans::Finish() {
  for (const Place& place : places_)
    batch_.sequences[place.span].branch = batch_.branch_slots.data() + place.begin;
  places_.clear();
}

}  // namespace switchyard
