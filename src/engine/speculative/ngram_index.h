// Earlier occurrences of the last tokens of a sequence.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace switchyard {

// The tokens that followed an earlier occurrence of the last n tokens of a sequence are a guess of
// its next tokens (prompt lookup decoding). Occurrences of each pair of tokens are linked, the
// latest first. A new token costs one entry of a table and one link.
class NgramIndex {
 public:
  static constexpr int64_t kShortest = 2, kLongest = 5;  // tokens of an n-gram

  // Returns up to `count` tokens that may follow `tokens`; none if no n-gram at the end of `tokens`
  // occurred earlier. Only the latest kCandidates occurrences of the last pair are compared. The
  // longest n-gram is used, and of its occurrences the latest. If the guess reaches the end of
  // `tokens`, it continues with its own tokens, so a repetition goes on. `tokens` begins with the
  // tokens of the previous call.
  std::vector<int32_t> Guess(std::span<const int32_t> tokens, int64_t count);

 private:
  static constexpr int kCandidates = 64;

  // Adds the pairs that end before position `end`.
  void AddUpTo(std::span<const int32_t> tokens, int64_t end);
  // Links the pair that ends before position `end`.
  void Link(std::span<const int32_t> tokens, int64_t end);
  // The entry of the pair that ends before position `end`.
  size_t EntryOf(std::span<const int32_t> tokens, int64_t end) const;
  // The position after the best occurrence of the last tokens; 0: none.
  int64_t Find(std::span<const int32_t> tokens) const;

  // Indexed by the hash of a pair: the position after its latest occurrence; 0: none. The size is a
  // power of two.
  std::vector<int32_t> latest_;
  // Indexed by the position after a pair: the position after the previous pair with the same entry
  // in latest_; 0: none.
  std::vector<int32_t> previous_;
  int64_t added_ = 0;  // the pairs that end before this position, or earlier, are linked
};

}  // namespace switchyard
