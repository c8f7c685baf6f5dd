#include "engine/kv_cache/radix_cache.h"

#include <algorithm>

#include "core/check.h"

namespace switchyard {

struct RadixCache::Node {
  std::vector<int32_t> tokens;  // [pages · page_size]
  std::vector<int32_t> pages;
  Node* parent = nullptr;
  std::vector<std::unique_ptr<Node>> children;  // ascending by their first page's tokens
  int64_t locks = 0;                            // locks of this node and of its descendants
  uint64_t last_use = 0;
  uint64_t queued = 0;  // the node's key (last_use) in evictable_; 0: absent
  std::string salt;     // set in roots only

  bool IsRoot() const { return parent == nullptr; }
};

RadixCache::RadixCache(PageAllocator& allocator, int32_t page_size)
    : allocator_(allocator), page_size_(page_size) {
  CHECK_GT(page_size, 0);
}
RadixCache::~RadixCache() = default;

RadixCache::Node* RadixCache::Root(const std::string& salt) {
  std::unique_ptr<Node>& root = roots_[salt];
  if (!root) {
    root = std::make_unique<Node>();
    root->salt = salt;
  }
  return root.get();
}

void RadixCache::DropIfUnused(Node* root) {
  if (root->salt.empty() || root->locks > 0 || !root->children.empty()) return;
  const std::string salt = root->salt;  // outlives the node
  roots_.erase(salt);
}

int64_t RadixCache::NumPages(const Node& node) const {
  return static_cast<int64_t>(node.pages.size());
}

std::vector<std::unique_ptr<RadixCache::Node>>::iterator RadixCache::ChildFor(
    Node& node, std::span<const int32_t> tokens) const {
  const auto page = tokens.first(page_size_);
  return std::lower_bound(node.children.begin(), node.children.end(), page,
                          [this](const std::unique_ptr<Node>& child, std::span<const int32_t> key) {
                            const auto* first = child->tokens.data();
                            return std::lexicographical_compare(first, first + page_size_,
                                                                key.begin(), key.end());
                          });
}

bool RadixCache::StartsWithPage(const Node& node, std::span<const int32_t> tokens) const {
  return std::equal(tokens.begin(), tokens.begin() + page_size_, node.tokens.begin());
}

int64_t RadixCache::CommonPages(const Node& node, std::span<const int32_t> tokens) const {
  const size_t most = std::min(node.tokens.size(), tokens.size());
  const auto end = std::mismatch(tokens.begin(), tokens.begin() + most, node.tokens.begin()).first;
  return (end - tokens.begin()) / page_size_;
}

RadixCache::PrefixPath RadixCache::Peek(std::span<const int32_t> tokens,
                                        const std::string& salt) const {
  PrefixPath path;
  const auto root = roots_.find(salt);
  if (root == roots_.end()) return path;
  Node* node = root->second.get();
  while (static_cast<int64_t>(tokens.size()) >= page_size_) {
    const auto child = ChildFor(*node, tokens);
    if (child == node->children.end() || !StartsWithPage(**child, tokens)) break;
    node = child->get();
    const int64_t common = CommonPages(*node, tokens);
    path.nodes.push_back(node);
    path.tokens += common * page_size_;
    path.pages.insert(path.pages.end(), node->pages.begin(), node->pages.begin() + common);
    if (common < NumPages(*node)) break;
    tokens = tokens.subspan(common * page_size_);
  }
  return path;
}

void RadixCache::Touch(Node* node) {
  node->last_use = clock_;
  Requeue(node);
}

void RadixCache::Requeue(Node* node) {
  const bool evictable = node->children.empty() && node->locks == 0 && !node->IsRoot();
  const uint64_t key = evictable ? node->last_use : 0;
  if (node->queued == key) return;
  if (node->queued) evictable_.erase({node->queued, node});
  if (key) evictable_.insert({key, node});
  node->queued = key;
}

RadixCache::Node* RadixCache::Split(Node* node, int64_t pages) {
  const auto place = ChildFor(*node->parent, node->tokens);
  CHECK(place->get() == node);
  auto upper = std::make_unique<Node>();
  upper->tokens.assign(node->tokens.begin(), node->tokens.begin() + pages * page_size_);
  upper->pages.assign(node->pages.begin(), node->pages.begin() + pages);
  upper->parent = node->parent;
  upper->locks = node->locks;
  upper->last_use = node->last_use;
  node->tokens.erase(node->tokens.begin(), node->tokens.begin() + pages * page_size_);
  node->pages.erase(node->pages.begin(), node->pages.begin() + pages);
  node->parent = upper.get();
  upper->children.push_back(std::move(*place));
  *place = std::move(upper);
  return place->get();
}

RadixCache::Match RadixCache::Find(std::span<const int32_t> tokens, const std::string& salt) {
  ++clock_;
  Match match{.node = Root(salt)};
  while (tokens.size() >= static_cast<size_t>(page_size_)) {
    const auto child = ChildFor(*match.node, tokens);
    if (child == match.node->children.end() || !StartsWithPage(**child, tokens)) break;
    const int64_t common = CommonPages(**child, tokens);
    match.node = common < NumPages(**child) ? Split(child->get(), common) : child->get();
    match.pages.insert(match.pages.end(), match.node->pages.begin(), match.node->pages.end());
    tokens = tokens.subspan(common * page_size_);
    Touch(match.node);
  }
  return match;
}

int64_t RadixCache::Insert(std::span<const int32_t> tokens, std::span<const int32_t> pages,
                           const std::string& salt) {
  CHECK_EQ(tokens.size(), pages.size() * page_size_);
  const Match known = Find(tokens, salt);
  const size_t present = known.pages.size();
  if (present == pages.size()) return static_cast<int64_t>(present);

  auto leaf = std::make_unique<Node>();
  const auto rest = tokens.subspan(present * page_size_);
  leaf->tokens.assign(rest.begin(), rest.end());
  leaf->pages.assign(pages.begin() + present, pages.end());
  leaf->parent = known.node;
  pages_ += NumPages(*leaf);
  Node* added = leaf.get();
  known.node->children.insert(ChildFor(*known.node, rest), std::move(leaf));
  Requeue(known.node);  // no longer a leaf
  Touch(added);
  return static_cast<int64_t>(present);
}

void RadixCache::Lock(Node* node) {
  for (; !node->IsRoot(); node = node->parent) {
    if (node->locks++ == 0) locked_pages_ += NumPages(*node);
    Requeue(node);
  }
  ++node->locks;
}

void RadixCache::Unlock(Node* node) {
  for (; !node->IsRoot(); node = node->parent) {
    CHECK_GT(node->locks, 0);
    if (--node->locks == 0) locked_pages_ -= NumPages(*node);
    Requeue(node);
  }
  --node->locks;
  DropIfUnused(node);
}

int64_t RadixCache::Evict(int64_t pages) {
  int64_t freed = 0;
  while (freed < pages && !evictable_.empty()) {
    Node* leaf = evictable_.begin()->second;
    // Trims the leaf from its end, so that the remaining pages are still a prefix.
    while (freed < pages && !leaf->pages.empty()) {
      allocator_.Free(leaf->pages.back());
      leaf->pages.pop_back();
      --pages_;
      ++freed;
    }
    if (leaf->pages.empty()) {
      Remove(leaf);
    } else {
      leaf->tokens.resize(leaf->pages.size() * page_size_);
    }
  }
  return freed;
}

void RadixCache::Remove(Node* leaf) {
  evictable_.erase({leaf->queued, leaf});
  Node* parent = leaf->parent;
  parent->children.erase(ChildFor(*parent, leaf->tokens));
  Requeue(parent);
  if (parent->IsRoot()) DropIfUnused(parent);
}

}  // namespace switchyard
