// The exact least maximum of rank loads that dispatch can reach, to judge others by.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace switchyard {

// Divides `load` [experts] (whole tokens) over replicas: `shares` [places] sums up to each expert's
// load, with the least possible load of the fullest bin, which is returned. `bin_of` [places]: −1
// where a place is not used; every expert with load has a place. `offset`, not negative: of equally
// good replicas which one is filled first (as WaterFilling has it).
//
// The linear program  min t : Σ_e x_eb ≤ t,  Σ_b x_eb = load_e,  x ≥ 0  in whole tokens: for one t
// it asks whether a flow from experts over their replicas to bins of capacity t carries everything,
// and t is found by halving. Flows by shortest augmenting paths (Dinic 1970). Some 0.3 ms for a
// layer: for benchmarks and tests, not for every batch.
int64_t ExactBalance(int num_bins, std::span<const int32_t> bin_of,
                     std::span<const int32_t> expert_of, std::span<const int32_t> load,
                     std::span<int32_t> shares, int offset = 0);

}  // namespace switchyard
