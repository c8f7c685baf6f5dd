// A micro-batch: the sequences that one rank processes in one forward and backward pass.
#pragma once

#include <cstdint>
#include <vector>

namespace switchyard::train {

// Packed sequences. Attention stays within a sequence, and positions start at 0 in each sequence.
// Every document boundary is a sequence boundary. A batch may be empty. Its rank then only takes
// part in the exchanges, because other ranks need its experts.
struct Batch {
  static constexpr int32_t kIgnored = -1;

  std::vector<int32_t> tokens;  // [T]
  // [T] the next token of each token, or kIgnored for tokens without a loss (chat prompts).
  std::vector<int32_t> targets;
  std::vector<int32_t> begins;  // [sequences + 1], ascending from 0 to T, no sequence empty

  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
  int64_t sequences() const { return begins.empty() ? 0 : static_cast<int64_t>(begins.size()) - 1; }
};

// Denominators of a step's losses, counted over all micro-batches and ranks. The gradients of
// micro-batches and ranks therefore simply add up.
struct StepSize {
  double targets = 1.0;  // number of targets that are not ignored; divides the cross-entropy
  double tokens = 1.0;   // number of tokens; divides the balance losses
};

}  // namespace switchyard::train
