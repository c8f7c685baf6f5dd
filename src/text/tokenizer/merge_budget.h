// A bound on deriving merges from a vocabulary, which tries every split of every token.
#pragma once

#include <cstddef>
#include <string>

#include "core/error.h"

namespace switchyard {

// Files of SentencePiece and tiktoken hold tokens, not merges. A few long tokens would cost the
// square of their length, and tokens that are prefixes of each other would make merges without end.
// Used by one thread.
class MergeBudget {
 public:
  // `file` is named by errors and outlives this object.
  explicit MergeBudget(const std::string& file) : file_(file) {}

  // A token of `bytes` is about to be split in all ways. Throws Error kInvalid beyond the bound.
  void AddToken(size_t bytes) {
    if (bytes > kMaxTokenBytes) {
      throw Invalid("{}: has a token of {} bytes, at most {} are allowed", file_, bytes,
                    kMaxTokenBytes);
    }
    compared_ += bytes * bytes;
    if (compared_ > kMaxCompared) {
      throw Invalid("{}: its tokens are too long in sum to derive merges from them", file_);
    }
  }
  // A merge was found.
  void AddMerge() {
    if (++merges_ > kMaxMerges) {
      throw Invalid("{}: its tokens give more than {} merges", file_, kMaxMerges);
    }
  }

 private:
  static constexpr size_t kMaxTokenBytes = 4096;
  static constexpr size_t kMaxCompared = size_t{1} << 32;  // a few seconds
  static constexpr size_t kMaxMerges = size_t{1} << 21;

  const std::string& file_;
  size_t compared_ = 0;  // bytes
  size_t merges_ = 0;
};

}  // namespace switchyard
