// Pre- and post-permute: between the layout a dispatcher delivers and the one a runner computes in.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "core/parallel.h"
#include "moe/runner.h"
#include "moe/types.h"

namespace switchyard {

// What both directions need to know of the layer and the rank.
struct PermuteContext {
  int64_t hidden = 0;
  int num_local_experts = 0;
  ThreadPool& pool;
  // What the rows of each expert begin at a multiple of, in the contiguous layout (Runner).
  int expert_alignment = 1;
};

// One way from a dispatch layout to a runner layout and back. Plain functions: all state is in
// their arguments.
struct PermutePair {
  void (*pre)(const PermuteContext& context, const Dispatched& in, GroupedRows* out) = nullptr;
  // y: the runner's outputs for the rows that `pre` laid out.
  ExpertRows (*post)(const GroupedRows& rows, float* y) = nullptr;
};

// Which pairs of layouts can be joined.
class PermuteTable {
 public:
  void Add(DispatchLayout from, RunnerLayout to, PermutePair pair) { pairs_[{from, to}] = pair; }
  const PermutePair* Find(DispatchLayout from, RunnerLayout to) const;
  std::string Pairs() const;  // "standard → contiguous, normal → contiguous, …", for messages

 private:
  std::map<std::pair<DispatchLayout, RunnerLayout>, PermutePair> pairs_;
};

// standard, normal → contiguous: a stable counting sort of (row, slot) by expert.
PermutePair SortRowsByExpert();
// standard, normal → masked: the same, with equally many places for every expert.
PermutePair DealRowsToExperts();
// low-latency → contiguous: the places in use, expert by expert.
PermutePair PackValidRows();
// low-latency → masked: the same, with equally many places for every expert.
PermutePair DealValidRows();

}  // namespace switchyard
