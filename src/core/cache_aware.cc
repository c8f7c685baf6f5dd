#include "core/cache_aware.h"

#include <algorithm>
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
      bytes_ += text.size();
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
    }
    node = slot.get();
    if (node->workers.insert_or_assign(worker, now_).second) bytes_of_[worker] += common;
    text.remove_prefix(common);
  }
  if (bytes_ > max_bytes_) Evict();
}

PrefixTree::Match PrefixTree::Find(std::string_view text, std::span<const int64_t> workers) const {
  Match match;
  size_t bytes = 0;
  const Node* node = &root_;
  while (!text.empty()) {
    const auto child = node->children.find(text.front());
    if (child == node->children.end()) break;
    node = child->second.get();
    const size_t common = CommonLength(node->text, text);
    bytes += common;
    uint64_t latest = 0;
    for (const int64_t worker : workers) {
      const auto use = node->workers.find(worker);
      if (use == node->workers.end() || use->second <= latest) continue;
      latest = use->second;
      match = {.worker = worker, .bytes = bytes};
    }
    // If none of `workers` has this node, none has its descendants either, so the search ends.
    if (latest == 0 || common < node->text.size()) break;
    text.remove_prefix(common);
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
      bytes_ -= child->second->text.size();
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
  std::vector<std::pair<uint64_t, size_t>> uses;  // (last use, bytes of text) of each node
  std::vector<Node*> open = {&root_};
  while (!open.empty()) {
    Node* const node = open.back();
    open.pop_back();
    if (node != &root_) uses.emplace_back(node->last_use(), node->text.size());
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
  const PrefixTree::Match match = tree_.Find(prompt, workers);
  if (match.worker >= 0 && static_cast<double>(match.bytes) >=
                               options_.cache_threshold * static_cast<double>(prompt.size()))
    return match.worker;
  // The worker with the smallest tree. Among trees of equal size (all are empty at first), the
  // worker with the fewest open requests.
  return std::ranges::min_element(
             candidates, {},
             [&](const Candidate& c) { return std::pair(tree_.bytes_of(c.worker), c.open); })
      ->worker;
}

}  // namespace switchyard
