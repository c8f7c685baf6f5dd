// Radix tree of cached prefixes: pages of tokens that a later request can reuse.
//
// Follows RadixAttention (Zheng et al., SGLang, 2023), with full pages as the unit. An edge holds
// the tokens of one or more pages and their page numbers; siblings differ in their first page.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/kv_cache/page_allocator.h"

namespace switchyard {

// Owns its pages until it evicts them. A locked node and the path above it are kept. Unlocked nodes
// are evicted from the leaves upwards, in LRU order. The order uses a counter, not a clock, so that
// all ranks evict the same nodes. Borrows the allocator. Used by the rank's thread only.
class RadixCache {
 public:
  struct Node;  // opaque to callers; valid while it or a node below it is locked

  RadixCache(PageAllocator& allocator, int32_t page_size);
  ~RadixCache();

  struct Match {
    std::vector<int32_t> pages;  // pages of the matched prefix
    Node* node = nullptr;        // its last node; the root if nothing matched
  };
  // The longest cached prefix of `tokens` in full pages. A node is split if necessary, so that the
  // path ends exactly at `node` and a lock on `node` covers exactly the matched pages. A prefix
  // that was added with one `salt` (cache_salt) is not found with another salt. Lock the node
  // before the next call, because an empty, unlocked tree of a salt is deleted.
  Match Find(std::span<const int32_t> tokens, const std::string& salt = {});

  // The nodes along the longest cached prefix, from the root's child on, and the length of that
  // prefix in tokens. The last node may match only in part. Changes nothing.
  struct PrefixPath {
    std::vector<const void*> nodes;
    std::vector<int32_t> pages;  // of the prefix
    int64_t tokens = 0;
  };
  PrefixPath Peek(std::span<const int32_t> tokens, const std::string& salt = {}) const;

  // Adds `tokens` (full pages) stored in `pages`. If the tree already has a prefix of `tokens`, the
  // tree keeps its own pages for that prefix and takes ownership of the remaining `pages`. Returns
  // the number of pages of that prefix; the caller still owns its copies of these pages.
  int64_t Insert(std::span<const int32_t> tokens, std::span<const int32_t> pages,
                 const std::string& salt = {});

  void Lock(Node* node);
  void Unlock(Node* node);

  // Frees up to `pages` pages that are not locked; returns how many.
  int64_t Evict(int64_t pages);

  int64_t pages() const { return pages_; }
  int64_t locked_pages() const { return locked_pages_; }
  int64_t evictable_pages() const { return pages_ - locked_pages_; }

 private:
  int64_t NumPages(const Node& node) const;
  // The child of `node` whose first page has these tokens, or its insertion point.
  std::vector<std::unique_ptr<Node>>::iterator ChildFor(Node& node,
                                                        std::span<const int32_t> tokens) const;
  bool StartsWithPage(const Node& node, std::span<const int32_t> tokens) const;
  int64_t CommonPages(const Node& node, std::span<const int32_t> tokens) const;
  // Splits `node` after `pages` pages and returns the new upper part.
  Node* Split(Node* node, int64_t pages);
  void Touch(Node* node);
  void Requeue(Node* node);  // call after a change of last_use, locks or children
  void Remove(Node* leaf);
  Node* Root(const std::string& salt);
  void DropIfUnused(Node* root);

  PageAllocator& allocator_;
  const int32_t page_size_;
  std::map<std::string, std::unique_ptr<Node>> roots_;  // by salt
  std::set<std::pair<uint64_t, Node*>> evictable_;  // unlocked leaves by last use, which is unique
  uint64_t clock_ = 0;
  int64_t pages_ = 0, locked_pages_ = 0;
};

}  // namespace switchyard
