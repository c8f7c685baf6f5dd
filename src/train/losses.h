// Losses of a step, and a rank's share of them.
#pragma once

#include <cstdint>

#include "train/layers/router.h"

namespace switchyard::train {

struct LossOptions {
  // Weights of the losses of each MoE layer; the losses are summed over layers.
  BalanceLosses balance;
  // Multi-token prediction (DeepSeek-V3, arXiv:2412.19437, section 2.2). Module d, counted from 1,
  // predicts the token d positions after the one that the model's head predicts. mtp_weight is λ,
  // the weight of the mean of the modules' cross-entropies.
  int64_t mtp_layers = 0;
  double mtp_weight = 0.3;
  // Trains the modules alone. The model's own parameters, with embedding and head, are frozen:
  // they have no gradient, their losses are not computed, and no backward pass runs through them.
  bool mtp_only = false;
};

// The share of a rank and micro-batch, divided by StepSize: shares sum to the step's losses.
struct Losses {
  double main = 0.0;     // mean cross-entropy
  double mtp = 0.0;      // weighted
  double balance = 0.0;  // weighted
  double total() const { return main + mtp + balance; }
  Losses& operator+=(const Losses& other) {
    main += other.main;
    mtp += other.mtp;
    balance += other.balance;
    return *this;
  }
};

}  // namespace switchyard::train
