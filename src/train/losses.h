// The losses that a step minimizes, and the share of one rank in them.
#pragma once

#include <cstdint>

#include "train/layers/router.h"

namespace switchyard::train {

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
