// Pre- and post-permute: conversion between a dispatcher's layout and a runner's.
#pragma once

#include "core/parallel.h"
#include "moe/permute/permute_table.h"
#include "moe/runners/runner.h"
#include "moe/types.h"

namespace switchyard {

// Parameters of the layer and the rank, for pre-permute and post-permute.
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
  // `y`: the runner's outputs for the rows that `pre` returned.
  ExpertRows (*post)(const GroupedRows& rows, float* y) = nullptr;
};

using PermuteTable = PermuteTableOf<PermutePair>;

// standard or normal → contiguous: a stable counting sort of (row, slot) by expert.
PermutePair SortRowsByExpert();
// standard or normal → masked: groups rows by expert, with equal capacity for every expert.
PermutePair GroupRowsMasked();
// low-latency → contiguous: compacts the valid places, expert by expert.
PermutePair CompactPlaces();
// low-latency → masked: compacts the valid places, expert by expert, with equal capacity for every
// expert.
PermutePair CompactPlacesMasked();

}  // namespace switchyard
