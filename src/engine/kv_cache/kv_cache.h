// The cache as sequences see it: borrow a known prefix, grow, publish what is computed, give back.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/kv_cache/page_allocator.h"
#include "engine/kv_cache/radix_cache.h"

namespace switchyard {

// The pages of one sequence, in order of position. The first `borrowed` are the radix tree's and
// locked there through `lock`; the rest are the sequence's own.
//
//   pages:   [ tree's, locked  |  own, computed  |  own, to be computed ]
//              0 .. borrowed                                 .. pages.size()
struct SequencePages {
  std::vector<int32_t> pages;
  int64_t borrowed = 0;
  RadixCache::Node* lock = nullptr;
};

// Every page is in exactly one of three places: free, in the tree, or own to one sequence. Pages of
// the tree that nobody holds count as available: Grow evicts them. The rank's thread only.
class KvCache {
 public:
  KvCache(int64_t num_pages, int32_t page_size, bool reuse_prefixes);

  int32_t page_size() const { return page_size_; }
  int64_t total() const { return allocator_.total(); }
  int64_t free() const { return allocator_.free(); }
  int64_t cached() const { return tree_ ? tree_->evictable_pages() : 0; }
  int64_t available() const { return free() + cached(); }
  int64_t capacity() const { return total() * page_size_; }  // tokens
  int64_t PagesFor(int64_t tokens) const { return (tokens + page_size_ - 1) / page_size_; }

  // Gives an empty sequence the longest known prefix of `tokens`; returns its length in tokens.
  int64_t Borrow(std::span<const int32_t> tokens, SequencePages& sequence);
  bool reuses_prefixes() const { return tree_.has_value(); }
  // The tree's nodes along the longest known prefix of `tokens`, and its length. Nothing changes.
  std::vector<const void*> Path(std::span<const int32_t> tokens) const {
    return tree_ ? tree_->Look(tokens).nodes : std::vector<const void*>();
  }
  int64_t PrefixLength(std::span<const int32_t> tokens) const {
    return tree_ ? tree_->Look(tokens).tokens : 0;
  }
  // Makes room for `tokens` positions in all; false, and nothing done, where pages lack.
  bool Grow(int64_t tokens, SequencePages& sequence);
  // Puts the whole pages of `computed`, the sequence's leading tokens, into the tree and borrows
  // them from it, so that requests which follow can share them.
  void Publish(std::span<const int32_t> computed, SequencePages& sequence);
  // Publishes `computed` and lets go of everything. An empty span publishes nothing.
  void Release(std::span<const int32_t> computed, SequencePages& sequence);

  void DropPrefixes();   // all that are not locked
  bool IsWhole() const;  // no sequence holds a page

 private:
  const int32_t page_size_;
  PageAllocator allocator_;
  std::optional<RadixCache> tree_;
};

}  // namespace switchyard
