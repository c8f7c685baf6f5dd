// Pre- and post-permute: conversion between a dispatcher's layout and a runner's.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "core/parallel.h"
#include "moe/runner.h"
#include "moe/types.h"

namespace switchyard {

// Layer and rank parameters of both directions.
struct PermuteContext {
  int64_t hidden = 0;
  int num_local_experts = 0;
  ThreadPool& pool;
  // Alignment of each expert's first row in the contiguous layout (Runner::expert_alignment).
  int expert_alignment = 1;
};

// The conversion from a dispatch layout to a runner layout and back. Plain functions without state.
struct PermutePair {
  void (*pre)(const PermuteContext& context, const Dispatched& in, GroupedRows* out) = nullptr;
  // y: the runner's outputs for the rows of `pre`.
  ExpertRows (*post)(const GroupedRows& rows, float* y) = nullptr;
};

// The registered permutes by pair of layouts.
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
// standard, normal → masked: the same, with equal capacity for every expert.
PermutePair GroupRowsMasked();
// low-latency → contiguous: compacts the valid places, expert by expert.
PermutePair CompactPlaces();
// low-latency → masked: the same, with equal capacity for every expert.
PermutePair CompactPlacesMasked();

}  // namespace switchyard
