#include "engine/kv_cache/kv_cache.h"

#include "core/check.h"

namespace switchyard {

KvCache::KvCache(int64_t num_pages, int32_t page_size, bool reuse_prefixes)
    : page_size_(page_size), allocator_(num_pages) {
  if (reuse_prefixes) tree_.emplace(allocator_, page_size);
}

int64_t KvCache::Borrow(std::span<const int32_t> tokens, SequencePages& sequence,
                        const std::string& salt) {
  CHECK(sequence.pages.empty());
  if (!tree_) return 0;
  RadixCache::Match match = tree_->Find(tokens, salt);
  tree_->Lock(match.node);
  sequence.salt = salt;
  sequence.lock = match.node;
  sequence.pages = std::move(match.pages);
  sequence.borrowed = static_cast<int64_t>(sequence.pages.size());
  return sequence.borrowed * page_size_;
}

bool KvCache::Grow(int64_t tokens, SequencePages& sequence) {
  const int64_t more = PagesFor(tokens) - static_cast<int64_t>(sequence.pages.size());
  if (more <= 0) return true;
  if (more > available()) return false;
  if (more > free()) tree_->Evict(more - free());
  for (int64_t i = 0; i < more; ++i) sequence.pages.push_back(allocator_.Allocate());
  return true;
}

void KvCache::Publish(std::span<const int32_t> computed, SequencePages& sequence) {
  const auto whole = static_cast<int64_t>(computed.size()) / page_size_;
  if (!tree_ || whole <= sequence.borrowed) return;
  const auto tokens = computed.first(whole * page_size_);
  const int64_t present =
      tree_->Insert(tokens, std::span(sequence.pages).first(whole), sequence.salt);
  RadixCache::Match match = tree_->Find(tokens, sequence.salt);
  // If the tree already had the prefix, its pages hold the same values: free the sequence's copies.
  for (int64_t i = sequence.borrowed; i < present; ++i) {
    allocator_.Free(sequence.pages[i]);
    sequence.pages[i] = match.pages[i];
  }
  tree_->Lock(match.node);
  if (sequence.lock) tree_->Unlock(sequence.lock);
  sequence.lock = match.node;
  sequence.borrowed = whole;
}

void KvCache::Release(std::span<const int32_t> computed, SequencePages& sequence) {
  Publish(computed, sequence);
  // Frees in reverse order. Since the allocator is LIFO, the next sequence gets the pages in the
  // same order.
  for (auto i = static_cast<int64_t>(sequence.pages.size()); i-- > sequence.borrowed;)
    allocator_.Free(sequence.pages[i]);
  if (sequence.lock) tree_->Unlock(sequence.lock);
  sequence = {};
}

void KvCache::DropPrefixes() {
  if (tree_) tree_->Evict(tree_->evictable_pages());
}

bool KvCache::IsWhole() const {
  if (!tree_) return free() == total();
  return tree_->locked_pages() == 0 && free() + tree_->pages() == total();
}

}  // namespace switchyard
