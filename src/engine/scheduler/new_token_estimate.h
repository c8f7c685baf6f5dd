// Estimate of the remaining output tokens of running requests, for admission.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/scheduler/sequence.h"

namespace switchyard {

// Most requests end long before max_new_tokens, so admission reserves only a fraction of it. The
// fraction is high after a retraction and decreases with every step without one. The method and the
// numbers are SGLang's (new token ratio). The estimate depends on steps, not on time, so that all
// ranks have the same one.
class NewTokenEstimate {
 public:
  // `conservativeness` multiplies the fraction (--schedule-conservativeness); the product is at
  // most 1.
  explicit NewTokenEstimate(double conservativeness = 1.0)
      : first_share_(std::min(1.0, kFirstShare * conservativeness)),
        least_share_(std::min(1.0, kMinShare * conservativeness)),
        share_(first_share_) {}

  int64_t For(const Sequence& sequence) const {
    const int64_t left = sequence.request.sampling.max_new_tokens - sequence.output_length();
    return static_cast<int64_t>(static_cast<double>(std::clamp<int64_t>(left, 0, kMost)) * share_);
  }
  void DecayAfterStep() { share_ = std::max(least_share_, share_ - kDecay); }
  void ResetAfterRetraction() { share_ = first_share_; }

 private:
  static constexpr int64_t kMost = 4096;  // a single large max_new_tokens cannot block the others
  static constexpr double kFirstShare = 0.7, kMinShare = 0.1, kDecay = 0.001;
  double first_share_, least_share_, share_;
};

}  // namespace switchyard
