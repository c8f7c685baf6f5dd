// In which order waiting requests are admitted (--schedule-policy).
#pragma once

#include <cstdint>
#include <string>

#include "engine/kv_cache/kv_cache.h"
#include "engine/scheduler/sequence.h"
#include "engine/scheduler/waiting_queue.h"

namespace switchyard {

// SGLang's names and meanings.
enum class SchedulePolicy : uint8_t {
  kFcfs,       // the oldest first
  kLpm,        // the longest prefix in the cache first
  kDfsWeight,  // depth first through the cache's tree, children with more requests first
  kLof,        // the longest output (max_new_tokens) first
  kRandom,
};
// Error kInvalid names --schedule-policy.
SchedulePolicy ParseSchedulePolicy(const std::string& name);

// Puts `waiting` in the policy's order. Retracted requests stay at the head, in their order. Equal
// requests stay in order of arrival. Without a prefix cache, and for queues of more than 128, lpm
// and dfs-weight are fcfs (SGLang's bound: a look at the cache for each request in each step).
// The same on all ranks of a group: `step` counts steps and seeds `random`.
void OrderWaiting(SchedulePolicy policy, const KvCache& cache, uint64_t step,
                  WaitingQueue* waiting);

}  // namespace switchyard
