#include "engine/kv_cache/kv_cache.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/check.h"
#include "engine/kv_cache/recorded_prefixes.h"

namespace switchyard {

KvCache::KvCache(int64_t num_pages, int32_t page_size, bool reuse_prefixes, PageRecords* records,
                 const StateCounts& states)
    : page_size_(page_size),
      chunk_(states.chunk),
      drafts_(states.drafts),
      state_room_(StateSlots::ForEach(states.drafts) * states.running + states.held),
      unit_(chunk_ > 0 ? std::lcm(page_size, chunk_) : page_size),
      records_(reuse_prefixes && states.slots == 0 ? records : nullptr),
      states_(states.slots > 0
                  ? std::make_optional<StateSlots>(states.slots, num_pages, states.running,
                                                   states.drafts, states.held)
                  : std::nullopt),
      allocator_(num_pages, records_, states_ ? &*states_ : nullptr) {
  if (reuse_prefixes) tree_.emplace(allocator_, page_size);
  if (records_) Restore();
}

void KvCache::Restore() {
  std::vector<bool> taken(total(), false);
  for (const RecordedPrefix& prefix : RecordedPrefixes(*records_, total())) {
    const int64_t present = tree_->Insert(prefix.tokens, prefix.pages, prefix.salt);
    for (size_t i = present; i < prefix.pages.size(); ++i) taken[prefix.pages[i]] = true;
    // Two sequences had computed the same tokens. The tree has the pages of the first one.
    if (present > 0 && present < std::ssize(prefix.pages)) {
      const auto shared = std::span(prefix.tokens).first(present * page_size_);
      records_->SetParent(prefix.pages[present], tree_->Find(shared, prefix.salt).pages.back());
    }
  }
  allocator_.Take(taken);
}

int64_t KvCache::Borrow(std::span<const int32_t> tokens, SequencePages& sequence,
                        const std::string& salt, int64_t prompt) {
  CHECK(sequence.pages.empty());
  if (chunk_ > 0) {
    sequence.states.chunked = prompt / unit_ * unit_;
    tokens = tokens.first(std::min(std::ssize(tokens), sequence.states.chunked));
  }
  if (!tree_) return 0;
  RadixCache::Match match = tree_->Find(tokens, salt);
  if (states_) {
    const int64_t matched = std::ssize(match.pages) * page_size_;
    sequence.states.matched = matched / unit_ * unit_;
    const int64_t found = WithState(match.pages);
    if (found < matched) match = tree_->Find(tokens.first(found), salt);
    if (found > 0) {
      const int32_t slot = sequence.states.current = states_->OfPage(match.pages.back());
      states_->Share(slot);
      states_->Touch(slot);
    }
  }
  tree_->Lock(match.node);
  sequence.salt = salt;
  sequence.lock = match.node;
  sequence.pages = std::move(match.pages);
  sequence.borrowed = sequence.recorded = static_cast<int64_t>(sequence.pages.size());
  return sequence.borrowed * page_size_;
}

int64_t KvCache::ComputedBy(uint64_t request, const SequencePages& sequence) const {
  int64_t pages = 0;
  for (int64_t i = 0; records_ && i < sequence.borrowed; ++i) {
    const auto record = records_->Get(sequence.pages[i]);
    pages += record && record->owner == request ? 1 : 0;
  }
  return pages * page_size_;
}

void KvCache::Record(std::span<const int32_t> computed, uint64_t request, SequencePages& sequence) {
  if (!records_) return;
  const auto whole = static_cast<int64_t>(computed.size()) / page_size_;
  for (int64_t& i = sequence.recorded; i < whole; ++i) {
    records_->Set(sequence.pages[i],
                  {.parent = i > 0 ? sequence.pages[i - 1] : PageRecords::kNoParent,
                   .owner = request,
                   .salt = sequence.salt,
                   .tokens = computed.subspan(i * page_size_, page_size_)});
  }
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
  const int64_t whole = Publishable(std::ssize(computed), sequence.states) / page_size_;
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
  if (records_ && present > sequence.borrowed && present < sequence.recorded)
    records_->SetParent(sequence.pages[present], sequence.pages[present - 1]);
  if (states_) PublishStates(match.pages, sequence.states);
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
  if (states_) DropStates(sequence.states);
  sequence = {};
}

void KvCache::DropPrefixes() {
  if (tree_) tree_->Evict(tree_->evictable_pages());
}

bool KvCache::IsWhole() const {
  if (states_ && !states_->IsWhole()) return false;
  if (!tree_) return free() == total();
  return tree_->locked_pages() == 0 && free() + tree_->pages() == total();
}

}  // namespace switchyard
