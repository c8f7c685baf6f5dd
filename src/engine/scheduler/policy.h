// Admission order of waiting requests (--schedule-policy).
#pragma once

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

}  // namespace switchyard
