// Limits the work of deriving merges from a vocabulary, which tries every split of every token.
#pragma once

#include <cstddef>
#include <string>

#include "core/error.h"

namespace switchyard {

// Files of SentencePiece and tiktoken contain tokens, but no merges. The time to derive the merges
// grows with the square of a token's length, and tokens that are prefixes of each other have many
// merges. Lives during one derivation. Used by one thread.
class MergeBudget {
 public:
  // `file`: name for errors; must outlive this object.
  explicit MergeBudget(const std::string& file) : file_(file) {}

  // Call before all splits of a token of `bytes` bytes are tried. Throws Error kInvalid if a limit
  // is exceeded.
  void AddToken(size_t bytes) {
    if (bytes > kMaxTokenBytes) {
      throw Invalid("{}: has a token of {} bytes, at most {} are allowed", file_, bytes,
                    kMaxTokenBytes);
    }
    compared_ += bytes * bytes;
    if (compared_ > kMaxCompared) {
      throw Invalid("{}: the tokens are too long in total to derive merges", file_);
    }
  }
  // Call for each merge that was found. Throws Error kInvalid if there are too many.
  void AddMerge() {
    if (++merges_ > kMaxMerges) {
      throw Invalid("{}: the tokens have more than {} merges", file_, kMaxMerges);
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
