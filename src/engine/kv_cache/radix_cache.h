// The radix tree of finished prefixes: token pages that a later request may take over as they are.
//
// After RadixAttention (Zheng et al., SGLang, 2023), by whole pages: an edge holds one or more
// pages' tokens and their page numbers, and siblings differ in their first page.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "engine/kv_cache/page_allocator.h"

namespace switchyard {

// Owns the pages in it until it evicts them. A locked node, and with it the path above it, stays;
// what is not locked may be evicted, leaves first, least recently used first by a counter (no
// clock, so that all ranks evict alike). Borrows the allocator. The rank's thread only.
class RadixCache {
 public:
  struct Node;  // opaque to callers; valid while it or a node below it is locked

  RadixCache(PageAllocator& allocator, int32_t page_size);
  ~RadixCache();

  struct Match {
    std::vector<int32_t> pages;  // of the matched prefix
    Node* node = nullptr;        // its last node; the root where nothing matched
  };
  // The longest known prefix of `tokens` in whole pages. The path ends at `node` exactly (a node
  // is split where need be), so that locking it holds these pages and no more.
  Match Find(std::span<const int32_t> tokens);

  // The nodes of the longest known prefix, from below the root, the last one perhaps in part, and
  // that prefix's length in tokens. Changes nothing.
  struct Trail {
    std::vector<const void*> nodes;
    int64_t tokens = 0;
  };
  Trail Look(std::span<const int32_t> tokens) const;

  // Adds `tokens` (whole pages) stored in `pages`. A leading part that the tree has already stays
  // as it is; the pages after it become the tree's. Returns how many pages were there before: of
  // those, the caller keeps what it owned.
  int64_t Insert(std::span<const int32_t> tokens, std::span<const int32_t> pages);

  void Lock(Node* node);
  void Unlock(Node* node);

  // Frees up to `pages` pages that are not locked; returns how many.
  int64_t Evict(int64_t pages);

  int64_t pages() const { return pages_; }
  int64_t locked_pages() const { return locked_pages_; }
  int64_t evictable_pages() const { return pages_ - locked_pages_; }

 private:
  int64_t NumPages(const Node& node) const;
  // The child of `node` whose first page has these tokens, or the place where it would stand.
  std::vector<std::unique_ptr<Node>>::iterator ChildFor(Node& node,
                                                        std::span<const int32_t> tokens) const;
  bool StartsWithPage(const Node& node, std::span<const int32_t> tokens) const;
  int64_t CommonPages(const Node& node, std::span<const int32_t> tokens) const;
  // Cuts `node` after `pages` pages and returns the new upper part.
  Node* Split(Node* node, int64_t pages);
  void Touch(Node* node);
  void Requeue(Node* node);  // after its use, its locks or its children changed
  void Remove(Node* leaf);

  PageAllocator& allocator_;
  const int32_t page_size_;
  std::unique_ptr<Node> root_;
  std::set<std::pair<uint64_t, Node*>> evictable_;  // unlocked leaves by last use, never equal
  uint64_t clock_ = 0;
  int64_t pages_ = 0, locked_pages_ = 0;
};

}  // namespace switchyard
