// The KV cache of sequences: borrow a cached prefix, grow, publish computed pages, release.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/kv_cache/page_allocator.h"
#include "engine/kv_cache/radix_cache.h"

namespace switchyard {

// The pages of one sequence, in order of position. The first `borrowed` pages belong to the radix
// tree and are locked there through `lock`; the others belong to the sequence.
//
//   pages:   [ tree's, locked  |  own, computed  |  own, to be computed ]
//              0 .. borrowed                                 .. pages.size()
struct SequencePages {
  std::vector<int32_t> pages;
  int64_t borrowed = 0;
  RadixCache::Node* lock = nullptr;
  std::string salt;      // the salt passed to Borrow
  int64_t recorded = 0;  // leading pages that have a record or need none
};

// Every page is in exactly one of three places: free, in the tree, or in one sequence. Unlocked
// pages of the tree count as available, because Grow evicts them. If there are records of pages
// from an earlier process, the tree initially holds these pages. Borrows the records. Used by the
// rank's thread only.
class KvCache {
 public:
  KvCache(int64_t num_pages, int32_t page_size, bool reuse_prefixes,
          PageRecords* records = nullptr);

  int32_t page_size() const { return page_size_; }
  int64_t total() const { return allocator_.total(); }
  int64_t free() const { return allocator_.free(); }
  int64_t cached() const { return tree_ ? tree_->evictable_pages() : 0; }
  int64_t available() const { return free() + cached(); }
  int64_t capacity() const { return total() * page_size_; }  // tokens
  int64_t PagesFor(int64_t tokens) const { return (tokens + page_size_ - 1) / page_size_; }

  // Gives an empty sequence the longest cached prefix of `tokens` among sequences of the same
  // `salt`; returns its length in tokens.
  int64_t Borrow(std::span<const int32_t> tokens, SequencePages& sequence,
                 const std::string& salt = {});
  // Of the tokens that `sequence` has borrowed, the number that `request` itself computed, in an
  // earlier epoch.
  int64_t ComputedBy(uint64_t request, const SequencePages& sequence) const;
  bool reuses_prefixes() const { return tree_.has_value(); }
  // The nodes and the length of the prefix that Borrow would find. Changes nothing.
  RadixCache::Trail Look(std::span<const int32_t> tokens, const std::string& salt = {}) const {
    return tree_ ? tree_->Look(tokens, salt) : RadixCache::Trail{};
  }
  // Allocates pages for `tokens` positions in total. Returns false, without effect, if there are
  // too few.
  bool Grow(int64_t tokens, SequencePages& sequence);
  // Writes records of the full pages of `computed`, the sequence's leading tokens.
  void Record(std::span<const int32_t> computed, uint64_t request, SequencePages& sequence);
  // Inserts the full pages of `computed`, the sequence's leading tokens, into the tree. The
  // sequence then borrows these pages from the tree, and later requests can share them.
  void Publish(std::span<const int32_t> computed, SequencePages& sequence);
  // Publishes `computed` and releases all pages. An empty span publishes nothing.
  void Release(std::span<const int32_t> computed, SequencePages& sequence);

  void DropPrefixes();   // evicts all unlocked pages
  bool IsWhole() const;  // no sequence holds a page

 private:
  void Restore();

  const int32_t page_size_;
  PageRecords* const records_;  // or null
  PageAllocator allocator_;
  std::optional<RadixCache> tree_;
};

}  // namespace switchyard
