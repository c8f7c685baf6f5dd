// Pre- and post-permute: conversion between a dispatcher's layout and a runner's.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "core/format.h"
#include "core/parallel.h"
#include "moe/runners/runner.h"
#include "moe/types.h"

namespace switchyard {

// Maps pairs of a dispatch layout and a runner layout to permutes, both for CPUs (permute.h) and
// for GPUs (gpu_backends.h).

// Filled at startup together with the registries (registry.h), then read-only.
template <typename Permute>
class PermuteTableOf {
 public:
  void Add(DispatchLayout from, RunnerLayout to, Permute permute) {
    permutes_[{from, to}] = std::move(permute);
  }
  // Null if the pair is not registered.
  const Permute* Find(DispatchLayout from, RunnerLayout to) const {
    const auto it = permutes_.find({from, to});
    return it == permutes_.end() ? nullptr : &it->second;
  }
  // Returns the registered pairs as a text for messages: "standard → contiguous, normal →
  // contiguous, …".
  std::string Pairs() const {
    std::string text;
    for (const auto& entry : permutes_) {
      const auto& [from, to] = entry.first;
      text += fmt::format("{}{} → {}", text.empty() ? "" : ", ", Name(from), Name(to));
    }
    return text;
  }

 private:
  std::map<std::pair<DispatchLayout, RunnerLayout>, Permute> permutes_;
};

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
