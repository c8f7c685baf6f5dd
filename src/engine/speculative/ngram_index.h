// Earlier occurrences of the last tokens of a sequence.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace switchyard {

// For each n-gram of a sequence, the position of its latest occurrence. The tokens that followed an
// earlier occurrence of the last n tokens are a guess of the next tokens (prompt lookup decoding).
// Memory: a few entries per token.
class NgramIndex {
 public:
  static constexpr int64_t kShortest = 2, kLongest = 5;  // tokens of an n-gram

  // Returns up to `count` tokens that may follow `tokens`; none if no n-gram of the end occurred
  // before. The longest n-gram takes precedence, and its latest occurrence. If the guess reaches
  // the end of `tokens`, it continues with its own tokens, so a repetition goes on. `tokens` begins
  // with the tokens of the previous call.
  std::vector<int32_t> Guess(std::span<const int32_t> tokens, int64_t count);

 private:
  // Adds the n-grams that end before position `end`.
  void AddUpTo(std::span<const int32_t> tokens, int64_t end);

  // Hash of an n-gram -> the position after its latest occurrence. Equal hashes of different
  // n-grams give a bad guess, which is rejected.
  std::unordered_map<uint64_t, int32_t> next_;
  int64_t added_ = 0;  // the n-grams that end before this position are in the map
};

}  // namespace switchyard
