// What a step minimises, and what of it a rank has seen.
#pragma once

#include <cstdint>

#include "train/layers/router.h"

namespace switchyard::train {

struct LossOptions {
  BalanceLosses balance;  // of each MoE layer; the layers' are added up
  // Multi-token prediction (DeepSeek-V3, arXiv:2412.19437, section 2.2): module d, counted from 1,
  // predicts the token d places after the one that the model's head predicts. mtp_weight is λ: the
  // mean of the modules' cross-entropies is weighted by it.
  int64_t mtp_layers = 0;
  double mtp_weight = 0.3;
};

// A rank's and a micro-batch's share, divided by StepSize: shares add up to the step's losses.
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
