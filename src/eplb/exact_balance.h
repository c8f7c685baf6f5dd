// Computes the exact minimum of the maximum rank load over all divisions of a batch. It is the
// reference for heuristics.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace switchyard {

// Divides `load` [experts] (whole tokens) over replicas. `shares` [slots] sum to each expert's load
// and minimize the maximum load of a bin, which is returned. `bin_of` [slots]: −1 for an unused
// slot; every expert with load has a slot. `offset`, not negative: selects which of several equally
// good replicas is filled first (as in WaterFilling).
//
// Solves the linear program  min t : Σ_e x_eb ≤ t,  Σ_b x_eb = load_e,  x ≥ 0  in whole tokens. For
// a fixed t the program is feasible if the maximum flow from experts, over their replicas, to bins
// of capacity t carries all load. t is found by binary search. The maximum flow is found by
// shortest augmenting paths (Dinic 1970). About 0.3 ms for a layer: meant for benchmarks and tests,
// not for every batch.
int64_t ExactBalance(int num_bins, std::span<const int32_t> bin_of,
                     std::span<const int32_t> expert_of, std::span<const int32_t> load,
                     std::span<int32_t> shares, int offset = 0);

}  // namespace switchyard
