// Admission of waiting requests: their order (--schedule-policy), and what the running ones need.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "engine/kv_cache/kv_cache.h"
#include "engine/scheduler/sequence.h"
#include "engine/scheduler/waiting_queue.h"

namespace switchyard {

// SGLang's names and meanings.
enum class SchedulePolicy : uint8_t {
  kFcfs,       // oldest first
  kLpm,        // longest cached prefix first
  kDfsWeight,  // depth first through the radix tree, children with more requests first
  kLof,        // largest max_new_tokens first
  kRandom,
};
// Error kInvalid names --schedule-policy.
SchedulePolicy ParseSchedulePolicy(const std::string& name);

// Sorts `waiting` by the policy. Retracted requests stay at the head, in their order; ties stay in
// order of arrival. Without a prefix cache, and for queues of more than 128 requests, lpm and
// dfs-weight act as fcfs. This limit is SGLang's. It bounds the cost, because these policies look
// up each request in each step. The order is equal on all ranks of a group, because `step` counts
// steps and seeds `random`.
void OrderWaiting(SchedulePolicy policy, const KvCache& cache, uint64_t step,
                  WaitingQueue* waiting);

// Puts requests of higher priority first and keeps the order of equal ones.
void OrderByPriority(WaitingQueue* waiting);

// Estimates the tokens that running requests have still to generate. Most requests end long before
// max_new_tokens, so admission reserves only a fraction of it. The fraction is high after a
// retraction and decreases with every step without one. The method and the numbers are SGLang's
// (new token ratio). The estimate depends on steps, not on time, so that all ranks have the same
// one.
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
