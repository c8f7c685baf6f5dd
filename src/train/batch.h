// A micro-batch: the sequences that one rank learns from between two exchanges of gradients.
#pragma once

#include <cstdint>
#include <vector>

namespace switchyard::train {

// Sequences packed one after the other. A sequence sees itself alone, and its positions count from
// 0: borders of documents are borders of sequences. May be empty: the rank then takes part in the
// exchanges only, because it holds experts that others need.
struct Batch {
  static constexpr int32_t kIgnored = -1;

  std::vector<int32_t> tokens;  // [T]
  // [T] what follows each token, or kIgnored where nothing is to be learned (prompts of chats).
  std::vector<int32_t> targets;
  std::vector<int32_t> begins;  // [sequences + 1], ascending from 0 to T, no sequence empty

  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
  int64_t sequences() const { return begins.empty() ? 0 : static_cast<int64_t>(begins.size()) - 1; }
};

// What the losses of a step are divided by, over all its micro-batches and all ranks, so that their
// gradients simply add up.
struct StepSize {
  double targets = 1.0;  // that are not ignored: of the cross-entropy
  double tokens = 1.0;   // of the balance losses
};

}  // namespace switchyard::train
