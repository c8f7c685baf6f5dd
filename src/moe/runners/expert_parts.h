// The parts in which combine returns outputs, for single-batch overlap.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "moe/types.h"

namespace switchyard {

// Maximum number of parts. It is small, because each part of the down projection must still have
// enough work for all threads.
constexpr int kMaxCombineParts = 4;

// Divides a rank's local experts into `parts` contiguous ranges, whose lengths differ by at most
// one. Part p has the outputs of the experts of range p. `local_experts`: maximum over ranks. So
// the parts are the same on all ranks, and a token's rank can compute in which part each output
// arrives.
class ExpertParts {
 public:
  ExpertParts(int64_t local_experts, int parts) : experts_(local_experts), parts_(parts) {}

  int count() const { return parts_; }
  Range Of(int part) const { return {part * experts_ / parts_, (part + 1) * experts_ / parts_}; }
  int PartOf(int64_t local_expert) const {
    return static_cast<int>(((local_expert + 1) * parts_ - 1) / experts_);
  }

 private:
  int64_t experts_;
  int parts_;
};

// A batch's tokens, sorted by the last part that has an output for them. Reused between batches.
class TokensByPart {
 public:
  // Sorts `count` tokens. part_of(token): the last part that has an output for the token.
  template <typename PartOf>
  void Sort(int64_t count, int parts, const PartOf& part_of) {
    part_of_token_.resize(count);
    begin_.assign(parts + 1, 0);
    for (int64_t t = 0; t < count; ++t) {
      part_of_token_[t] = part_of(t);
      ++begin_[part_of_token_[t] + 1];
    }
    for (int part = 0; part < parts; ++part) begin_[part + 1] += begin_[part];
    next_.assign(begin_.begin(), begin_.end());
    tokens_.resize(count);
    for (int64_t t = 0; t < count; ++t)
      tokens_[next_[part_of_token_[t]]++] = static_cast<int32_t>(t);
  }
  TokenList Of(int part) const {
    return {begin_[part + 1] - begin_[part], tokens_.data() + begin_[part]};
  }

 private:
  std::vector<int32_t> tokens_, part_of_token_;
  std::vector<int64_t> begin_, next_;  // [parts + 1]
};

}  // namespace switchyard
