// What a step processes and minimizes: a micro-batch, the layers of a pipeline stage, and the
// losses.
#pragma once

#include <cstdint>
#include <vector>

#include "train/layers/router.h"

namespace switchyard::train {

// A micro-batch: the sequences that one rank processes in one forward and backward pass.

// Packed sequences. Attention stays within a sequence, and positions start at 0 in each sequence.
// Every document boundary is a sequence boundary. A batch may be empty. Its rank then only takes
// part in the exchanges, because other ranks need its experts.
struct Batch {
  static constexpr int32_t kIgnored = -1;

  std::vector<int32_t> tokens;  // [T]
  // [T] the next token of each token, or kIgnored for tokens without a loss (chat prompts).
  std::vector<int32_t> targets;
  std::vector<int32_t> begins;  // [sequences + 1], ascending from 0 to T, no sequence empty
  // [T, layers, top_k] experts given to each token (routing replay), or empty: every token selects
  // its own. A token whose ids of a layer are all −1 selects its own there. Layers are those of the
  // whole model without MTP modules; layers without experts have −1.
  std::vector<int32_t> experts;

  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
  int64_t sequences() const { return begins.empty() ? 0 : static_cast<int64_t>(begins.size()) - 1; }
};

// Denominators of a step's losses, counted over all micro-batches and ranks. The gradients of
// micro-batches and ranks therefore simply add up.
struct StepSize {
  double targets = 1.0;  // number of targets that are not ignored; divides the cross-entropy
  double tokens = 1.0;   // number of tokens; divides the balance losses
};

// The part of a model that a pipeline stage holds.

// Layers [first_layer, last_layer) of the model, without MTP modules. MTP modules, the final norm
// and the head are on the last stage. The embedding is on the first stage. The last stage has a
// copy if MTP modules or a tied head need it.
struct StageRange {
  int64_t first_layer = 0;
  int64_t last_layer = -1;  // exclusive; -1: the number of layers
  bool first = true, last = true;
};

// The losses that a step minimizes, and the share of one rank in them.

struct LossOptions {
  // Weights of the balance losses of an MoE layer. Each loss is summed over the layers.
  BalanceLosses balance;
  // Multi-token prediction (DeepSeek-V3, arXiv:2412.19437, section 2.2). Module d, counted from 1,
  // predicts the token d positions after the one that the model's head predicts. mtp_weight is λ,
  // the weight of the mean of the modules' cross-entropies.
  int64_t mtp_layers = 0;
  double mtp_weight = 0.3;
  // Trains only the MTP modules. All other parameters, also embedding and head, are frozen: they
  // have no gradient, their losses are not computed, and no backward pass runs through them.
  bool mtp_only = false;
};

// The share of one rank and micro-batch in the losses, divided by StepSize. The sum of all shares
// is the loss of the step.
struct Losses {
  double main = 0.0;     // mean cross-entropy
  double mtp = 0.0;      // multiplied by LossOptions::mtp_weight
  double balance = 0.0;  // multiplied by the weights of LossOptions::balance
  double total() const { return main + mtp + balance; }
  Losses& operator+=(const Losses& other) {
    main += other.main;
    mtp += other.mtp;
    balance += other.balance;
    return *this;
  }
};

}  // namespace switchyard::train
