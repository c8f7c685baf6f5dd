#include "engine/speculative/ngram_index.h"

#include <algorithm>
#include <bit>

namespace switchyard {

size_t NgramIndex::EntryOf(std::span<const int32_t> tokens, int64_t end) const {
  const uint64_t pair = uint64_t{static_cast<uint32_t>(tokens[end - 2])} << 32 |
                        static_cast<uint32_t>(tokens[end - 1]);
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15u;  // 2^64 / golden ratio (Knuth)
  return (pair * kOdd) >> (64 - std::countr_zero(latest_.size()));
}

void NgramIndex::Link(std::span<const int32_t> tokens, int64_t end) {
  int32_t& latest = latest_[EntryOf(tokens, end)];
  previous_[end] = latest;
  latest = static_cast<int32_t>(end);
}

void NgramIndex::AddUpTo(std::span<const int32_t> tokens, int64_t end) {
  if (end <= added_) return;
  previous_.resize(end + 1);
  if (std::ssize(latest_) <= end) {
    constexpr size_t kEntries = 256;
    latest_.assign(std::max(kEntries, std::bit_ceil(2 * static_cast<size_t>(end))), 0);
    added_ = 0;
  }
  for (int64_t at = std::max(added_ + 1, kShortest); at <= end; ++at) Link(tokens, at);
  added_ = end;
}

NgramIndex::Match NgramIndex::Find(std::span<const int32_t> tokens) {
  const auto length = static_cast<int64_t>(tokens.size());
  Match best;
  if (length <= kShortest) return best;
  AddUpTo(tokens, length - 1);  // all pairs but the last
  best.length = kShortest - 1;
  int64_t at = latest_[EntryOf(tokens, length)];
  for (int i = 0; at > 0 && i < kCandidates && best.length < kLongest; ++i, at = previous_[at]) {
    int64_t same = 0;
    while (same < kLongest && same < at && tokens[at - 1 - same] == tokens[length - 1 - same])
      ++same;
    if (same > best.length) best = {.end = at, .length = same};
  }
  return best;
}

std::vector<int32_t> NgramIndex::Continue(std::span<const int32_t> tokens, const Match& match,
                                          int64_t count) {
  const auto length = static_cast<int64_t>(tokens.size());
  std::vector<int32_t> guess;
  for (int64_t i = match.end; i > 0 && i < match.end + count; ++i)
    guess.push_back(i < length ? tokens[i] : guess[i - length]);
  return guess;
}

}  // namespace switchyard
