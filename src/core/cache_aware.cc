#include "core/cache_aware.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

namespace switchyard {
namespace {

size_t CommonLength(std::string_view a, std::string_view b) {
  const size_t most = std::min(a.size(), b.size());
  return std::mismatch(a.begin(), a.begin() + most, b.begin()).first - a.begin();
}

}  // namespace

uint64_t PrefixTree::Node::last_use() const {
  uint64_t last = 0;
  for (const auto& [worker, time] : workers) last = std::max(last, time);
  return last;
}

PrefixTree::PrefixTree(size_t max_bytes) : max_bytes_(max_bytes) {}

PrefixTree::~PrefixTree() {
  // Moves all nodes to one list, because a recursive destructor could exceed the stack.
  std::vector<std::unique_ptr<Node>> nodes;
  const auto take = [&](Node& node) {
    for (auto& [first, child] : node.children) nodes.push_back(std::move(child));
    node.children.clear();
  };
  take(root_);
  while (!nodes.empty()) {
    const std::unique_ptr<Node> node = std::move(nodes.back());
    nodes.pop_back();
    take(*node);
  }
}

void PrefixTree::Insert(std::string_view text, int64_t worker) {
  ++now_;
  Node* node = &root_;
  while (!text.empty()) {
    std::unique_ptr<Node>& slot = node->children[text.front()];
    if (!slot) {
      slot = std::make_unique<Node>();
      slot->text = text;
      bytes_ += BytesOf(*slot);
    }
    const size_t common = CommonLength(slot->text, text);
    if (common < slot->text.size()) {  // split the edge
      auto upper = std::make_unique<Node>();
      upper->text = slot->text.substr(0, common);
      upper->workers = slot->workers;
      slot->text.erase(0, common);
      const char first = slot->text.front();
      upper->children[first] = std::move(slot);
      slot = std::move(upper);
      bytes_ += kNodeBytes;
    }
    node = slot.get();
    if (node->workers.insert_or_assign(worker, now_).second) bytes_of_[worker] += common;
    text.remove_prefix(common);
  }
  if (bytes_ > max_bytes_) Evict();
}

PrefixTree::Match PrefixTree::Find(std::string_view text, std::span<const int64_t> workers,
                                   size_t unit) const {
  Match match;
  std::vector<std::pair<uint64_t, int64_t>> uses;  // (last use, worker)
  size_t begin = 0;                                // of the node's text, in `text`
  const Node* node = &root_;
  while (begin < text.size()) {
    const auto child = node->children.find(text[begin]);
    if (child == node->children.end()) break;
    node = child->second.get();
    const size_t common = CommonLength(node->text, text.substr(begin));
    uses.clear();
    for (const int64_t worker : workers) {
      const auto use = node->workers.find(worker);
      if (use != node->workers.end()) uses.emplace_back(use->second, worker);
    }
    // If none of `workers` has this node, none has its descendants either, so the search ends.
    if (uses.empty()) break;
    const size_t end = (begin + common) / unit * unit;
    if (end > begin) {
      std::ranges::sort(uses, std::greater());
      match.workers.clear();
      for (const auto& [time, worker] : uses) match.workers.push_back(worker);
      match.bytes = end;
    }
    if (common < node->text.size()) break;
    begin += common;
  }
  return match;
}

void PrefixTree::Drop(Node& node, int64_t worker) {
  if (node.workers.erase(worker) == 0) return;
  bytes_of_[worker] -= node.text.size();
}

void PrefixTree::RemoveEmpty(Node& node) {
  std::vector<Node*> open = {&node};
  std::vector<std::unique_ptr<Node>> removed;
  const auto take_empty = [&](Node& from, bool all) {
    for (auto child = from.children.begin(); child != from.children.end();) {
      if (!all && !child->second->workers.empty()) {
        ++child;
        continue;
      }
      bytes_ -= BytesOf(*child->second);
      removed.push_back(std::move(child->second));
      child = from.children.erase(child);
    }
  };
  while (!open.empty()) {
    Node* const next = open.back();
    open.pop_back();
    take_empty(*next, false);
    for (auto& [first, child] : next->children) open.push_back(child.get());
  }
  while (!removed.empty()) {
    const std::unique_ptr<Node> last = std::move(removed.back());
    removed.pop_back();
    take_empty(*last, true);
  }
}

void PrefixTree::Remove(int64_t worker) {
  std::vector<Node*> open = {&root_};
  while (!open.empty()) {
    Node* const node = open.back();
    open.pop_back();
    Drop(*node, worker);
    for (auto& [first, child] : node->children) open.push_back(child.get());
  }
  bytes_of_.erase(worker);
  RemoveEmpty(root_);
}

size_t PrefixTree::bytes_of(int64_t worker) const {
  const auto found = bytes_of_.find(worker);
  return found == bytes_of_.end() ? 0 : found->second;
}

void PrefixTree::Evict() {
  // A use of a node is also a use of all its ancestors, so no node has a later last use than its
  // parent. If a node stays because its last use is recent, its parent therefore stays too.
  std::vector<std::pair<uint64_t, size_t>> uses;  // (last use, bytes) of each node
  std::vector<Node*> open = {&root_};
  while (!open.empty()) {
    Node* const node = open.back();
    open.pop_back();
    if (node != &root_) uses.emplace_back(node->last_use(), BytesOf(*node));
    for (auto& [first, child] : node->children) open.push_back(child.get());
  }
  std::ranges::sort(uses);
  uint64_t until = 0;
  size_t left = bytes_;
  for (const auto& [use, bytes] : uses) {
    if (left <= max_bytes_ / 4 * 3) break;
    until = use;
    left -= bytes;
  }
  open = {&root_};
  while (!open.empty()) {
    Node* const node = open.back();
    open.pop_back();
    std::vector<int64_t> old;
    for (const auto& [worker, use] : node->workers)
      if (use <= until) old.push_back(worker);
    for (const int64_t worker : old) Drop(*node, worker);
    for (auto& [first, child] : node->children) open.push_back(child.get());
  }
  RemoveEmpty(root_);
}

int64_t CacheAwareChoice::Choose(std::span<const Candidate> candidates,
                                 std::string_view prompt) const {
  const Candidate& fewest = *std::ranges::min_element(candidates, {}, &Candidate::open);
  const int64_t most = std::ranges::max(candidates, {}, &Candidate::open).open;
  if (most - fewest.open > options_.balance_abs_threshold &&
      static_cast<double>(most) > options_.balance_rel_threshold * static_cast<double>(fewest.open))
    return fewest.worker;
  if (prompt.empty()) return fewest.worker;
  std::vector<int64_t> workers;
  for (const Candidate& candidate : candidates) workers.push_back(candidate.worker);
  const PrefixTree::Match match = tree_.Find(prompt, workers, options_.match_unit);
  if (!match.workers.empty() && static_cast<double>(match.bytes) >=
                                    options_.cache_threshold * static_cast<double>(prompt.size())) {
    if (!options_.prefers_fewest_open) return match.workers.front();
    // Of workers with equally many open requests, the one that used the prefix last.
    return *std::ranges::min_element(match.workers, {}, [&](int64_t worker) {
      return std::ranges::find(candidates, worker, &Candidate::worker)->open;
    });
  }
  // Of equal sizes (all trees are empty at first), the fewest open requests; with
  // prefers_fewest_open, the other way round.
  return std::ranges::min_element(candidates, {},
                                  [&](const Candidate& c) {
                                    const auto bytes =
                                        static_cast<int64_t>(tree_.bytes_of(c.worker));
                                    return options_.prefers_fewest_open ? std::pair(c.open, bytes)
                                                                        : std::pair(bytes, c.open);
                                  })
      ->worker;
}

}  // namespace switchyard
