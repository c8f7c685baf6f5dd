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
  static constexpr int64_t kShortest = 2, kLongest = 8;  // tokens of an n-gram

  // An earlier occurrence of the last tokens. `end`: the position after it; 0: there is none.
  // `length`: tokens of the n-gram.
  struct Match {
    int64_t end = 0, length = 0;
  };

  // Finds an n-gram at the end of `tokens` that occurred earlier. Only the latest kCandidates
  // occurrences of the last pair are compared. The longest n-gram is used, and of its occurrences
  // the latest. `tokens` begins with the tokens of the previous call.
  Match Find(std::span<const int32_t> tokens);
  // The `count` tokens that followed the match; none if there is no match. At the end of `tokens`
  // the result continues with its own tokens, so a repetition goes on.
  static std::vector<int32_t> Continue(std::span<const int32_t> tokens, const Match& match,
                                       int64_t count);

 private:
  static constexpr int kCandidates = 64;

  // Adds the pairs that end before position `end`.
  void AddUpTo(std::span<const int32_t> tokens, int64_t end);
  // Links the pair that ends before position `end`.
  void Link(std::span<const int32_t> tokens, int64_t end);
  // The entry of the pair that ends before position `end`.
  size_t EntryOf(std::span<const int32_t> tokens, int64_t end) const;

  // Indexed by the hash of a pair: the position after its latest occurrence; 0: none. The size is a
  // power of two.
  std::vector<int32_t> latest_;
  // Indexed by the position after a pair: the position after the previous pair with the same entry
  // in latest_; 0: none.
  std::vector<int32_t> previous_;
  int64_t added_ = 0;  // the pairs that end before this position, or earlier, are linked
};

}  // namespace switchyard
