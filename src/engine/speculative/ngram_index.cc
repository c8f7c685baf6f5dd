#include "engine/speculative/ngram_index.h"

namespace switchyard {
namespace {

// FNV-1a over whole tokens, after the length.
uint64_t HashOf(std::span<const int32_t> tokens) {
  uint64_t hash = 0xcbf29ce484222325u ^ tokens.size();
  for (const int32_t token : tokens) {
    hash = (hash ^ static_cast<uint32_t>(token)) * 0x100000001b3u;
    hash ^= hash >> 29;
  }
  return hash;
}

}  // namespace

void NgramIndex::AddUpTo(std::span<const int32_t> tokens, int64_t end) {
  for (; added_ < end; ++added_) {
    for (int64_t n = kShortest; n <= kLongest && n <= added_ + 1; ++n)
      next_[HashOf(tokens.subspan(added_ + 1 - n, n))] = static_cast<int32_t>(added_ + 1);
  }
}

std::vector<int32_t> NgramIndex::Guess(std::span<const int32_t> tokens, int64_t count) {
  const auto length = static_cast<int64_t>(tokens.size());
  std::vector<int32_t> guess;
  AddUpTo(tokens, length - 1);  // without the n-grams of the end itself
  if (count <= 0) return guess;
  for (int64_t n = kLongest; n >= kShortest; --n) {
    if (n >= length) continue;
    const auto found = next_.find(HashOf(tokens.last(n)));
    if (found == next_.end()) continue;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t from = found->second + i;
      guess.push_back(from < length ? tokens[from] : guess[from - length]);
    }
    return guess;
  }
  return guess;
}

}  // namespace switchyard
